"""Appends the batches of one large request slice by slice, so that other work runs in between.

A slice is appended in one turn of the loop. Slices enter in their order, and the next request of the connection begins
only when the last slice has entered. Acknowledgements are awaited after that.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol

from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.parts import Parts
from penstock.model.steps import Steps
from penstock.wire.schema import Message

_TURN_S: Final = 0.005  # the first append to each of 20 partitions takes 4 ms
_PARTS_PER_TURN: Final = 10

Refuse = Callable[[Message, Exception], Message]
Start = Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]]
Reply = asyncio.Task[Any] | Message | None


class Appends(Protocol):
    """The appends of one request, checked as far as they can be checked in advance."""

    @property
    def waiting(self) -> asyncio.Future[Any] | None:
        """What must end before the first slice is appended; None: nothing."""

    @property
    def is_sent_again(self) -> bool:
        """Whether the client sends the request again if its connection ends before the response."""

    def append(self, part: Any) -> Any:
        """Append a slice in one turn of the loop, and return its reply as a handler does."""


class Slices(NamedTuple):
    """How an API appends a large request."""

    parts: Parts
    begin: Callable[[Any, Context], Steps[Appends]]


class SlicedAppend:
    """The appends of one request, and the replies to its slices."""

    def __init__(
        self, parts: Parts, appends: Appends, context: Context, refuse: Refuse, start: Start
    ) -> None:
        """`refuse`: the response to a slice that failed. `start`: runs a coroutine as a task."""
        self._parts = parts
        self._appends = appends
        self._context = context
        self._refuse = refuse
        self._start = start
        self._replies: list[tuple[Reply, int]] = []  # with `Part.continued`
        self._unfinished: list[Awaitable[Any]] = []  # replies to slices that are not in the log yet
        self._hang_up: HangUp | None = None

    def steps(
        self, request: Message, is_given_up: Callable[[], bool], time: Callable[[], float]
    ) -> Steps[None]:
        """Append all slices, unless the client gives the request up and may send it again.

        A client that closes its connection before the response may send the request again on
        another one, and later requests after it. Slices that are appended only then would follow
        those, and break the order of a partition. So this looks for the client's end before each
        slice, and drops the slices that are left. A connection that is half closed looks the same:
        a client that only stops sending loses them too, and gets no response.
        """
        began_s, count = time(), 0
        for part in self._parts.split(request):
            if self._appends.is_sent_again and is_given_up():
                raise HangUp("the client closed the connection before its request was appended")
            self._append(part.request, part.continued)
            count += 1
            if count >= _PARTS_PER_TURN or time() - began_s >= _TURN_S:
                yield
                began_s, count = time(), 0

    def _append(self, part: Message, continued: int) -> None:
        context = self._context
        context.holds = False
        try:
            reply = self._appends.append(part)
        except HangUp as error:  # without acknowledgements: later slices are appended nonetheless
            self._note(error)
            return
        except Exception as error:  # noqa: BLE001 - a request never crashes the broker
            reply = self._refused(part, error)
        if not (reply is None or isinstance(reply, Message)):
            reply = self._started(self._parts.without_records(part), reply)
            if context.holds:
                self._unfinished.append(reply)
        self._replies.append((reply, continued))

    def _started(self, part: Message, reply: Awaitable[Message | None]) -> asyncio.Task[Any]:
        task = self._start(self._ended(part, reply))
        if asyncio.iscoroutine(reply):  # a task that is cancelled before its first step leaves it
            task.add_done_callback(lambda _: reply.close())
        return task

    async def _ended(self, part: Message, reply: Awaitable[Message | None]) -> Message | None:
        try:
            return await reply
        except HangUp as error:
            self._note(error)
        except Exception as error:  # noqa: BLE001 - as in `_append`
            return self._refused(part, error)
        return None

    def _refused(self, part: Message, error: Exception) -> Message | None:
        try:
            return self._refuse(part, error)
        except HangUp as reason:
            self._note(reason)
        return None

    def _note(self, error: HangUp) -> None:
        self._hang_up = self._hang_up or error.without_frames()

    async def entered(self) -> None:
        """Wait for batches that must be opened before they are appended."""
        for reply in self._unfinished:
            await reply

    async def response(self) -> Message | None:
        """Wait for the acknowledgements and join the replies. Raise HangUp if a slice without acknowledgement failed."""
        whole: Message | None = None
        for reply, continued in self._replies:
            answer = await reply if isinstance(reply, asyncio.Future) else reply
            if whole is None or answer is None:
                whole = whole or answer
            else:
                self._parts.join(whole, answer, continued)
        if self._hang_up is not None:
            raise self._hang_up
        return whole
