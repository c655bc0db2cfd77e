"""An answer that comes later. Whoever waits for it hears in that very moment, not a turn of the loop later as from a future."""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Promise(Generic[T]):
    """What `asyncio.Future` offers, as far as connections use it. Only the first outcome counts."""

    __slots__ = ("_callbacks", "_error", "_result", "_state")

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Promise[T]], object]] = []
        self._state = "open"
        self._result: T | None = None
        self._error: Exception | None = None

    def done(self) -> bool:
        return self._state != "open"

    def cancelled(self) -> bool:
        return self._state == "cancelled"

    def result(self) -> T:
        """Only where there is one: `cancelled` and `exception` come first."""
        return self._result  # type: ignore[return-value] # T itself may include None

    def exception(self) -> Exception | None:
        return self._error

    def add_done_callback(self, callback: "Callable[[Promise[T]], object]") -> None:
        assert self._state == "open", "who asks for it is there before it comes"
        self._callbacks.append(callback)

    def set_result(self, result: T) -> None:
        if self._state == "open":
            self._result = result
            self._end("kept")

    def set_exception(self, error: Exception) -> None:
        if self._state == "open":
            self._error = error
            self._end("broken")

    def cancel(self) -> None:
        if self._state == "open":
            self._end("cancelled")

    def __await__(self) -> Generator[Any, None, T]:
        """For whoever is not in a hurry."""
        if not self.done():
            arrived = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: _tell(arrived))
            yield from arrived
        if self._state == "cancelled":
            raise asyncio.CancelledError
        if self._error is not None:
            raise self._error
        return self.result()

    def _end(self, state: str) -> None:
        self._state = state
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)


def _tell(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)
