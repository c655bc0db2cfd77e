"""What becomes of one message: a future that librdkafka completes, and the thread that lets it."""

import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock.sdk.errors import BufferExhausted, PenstockError, TimedOut, from_kafka
from penstock.sdk.librdkafka import LOGGER

_BUSY_TICK_S: Final = 0.005
_IDLE_POLL_S: Final = 0.1
_BUSY_SENDS: Final = 64  # a sender this quick serves its own events

_NO_OFFSET: Final = -1
_TROUBLE_S: Final = 30.0  # librdkafka tries to connect every 10 s or sooner

_lock: Final = threading.Lock()  # held for the few instructions that add or take waiters


class Delivered(NamedTuple):
    """Where a message is now. With acks=0 nobody knows its offset: it is -1."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Delivery:
    """A message on its way. It is its own librdkafka callback: that saves an object a message.

    Callbacks run on the thread that serves librdkafka: keep them short.
    """

    __slots__ = ("_outcome", "_pump", "_waiters")

    def __init__(self, pump: "Pump") -> None:
        self._pump = pump
        self._outcome: Any = None  # librdkafka's message without its value, or a PenstockError
        self._waiters: list[Callable[[Any], None]] | None = None

    def __call__(self, error: Any, message: Any) -> None:
        """librdkafka's report. Benchmark: benchmarks/sdk.py."""
        if error is None:
            message.set_value(None)  # an answered message must not keep its bytes
            self._outcome = message
            self._pump.delivered += 1
        else:
            self._outcome = self._pump.explained(from_kafka(error, f"topic {message.topic()!r}"))
            self._pump.failed += 1
            self._pump.newest_failure = self._outcome
            if self._waiters is None and not error.name().startswith("_PURGE"):  # by abort or close
                LOGGER.warning("a message is lost, and nobody waits for it: %s", self._outcome)
        if self._waiters is not None:
            self._wake()

    def __repr__(self) -> str:
        if self._outcome is None:
            return "<Delivery on its way>"
        if isinstance(self._outcome, PenstockError):
            return f"<Delivery failed: {self._outcome}>"
        return f"<Delivery {_delivered(self._outcome)}>"

    @property
    def done(self) -> bool:
        return self._outcome is not None

    def result(self, timeout: float | None = None) -> Delivered:
        """Waits for the broker's answer; raises what went wrong."""
        if self._outcome is None:
            self._wait(timeout)
        if isinstance(self._outcome, PenstockError):
            raise self._outcome
        return _delivered(self._outcome)

    def exception(self, timeout: float | None = None) -> PenstockError | None:
        if self._outcome is None:
            self._wait(timeout)
        return self._outcome if isinstance(self._outcome, PenstockError) else None

    def add_callback(self, call: Callable[[Delivered], object]) -> "Delivery":
        """Calls `call(delivered)` when the broker has it; at once if it has it already."""

        def on_success(outcome: Any) -> None:
            if not isinstance(outcome, PenstockError):
                call(_delivered(outcome))

        self._when_done(on_success)
        return self

    def add_errback(self, call: Callable[[PenstockError], object]) -> "Delivery":
        """Calls `call(error)` when the message is given up."""

        def on_failure(outcome: Any) -> None:
            if isinstance(outcome, PenstockError):
                call(outcome)

        self._when_done(on_failure)
        return self

    def hurry(self) -> None:
        """Somebody waits: its report is served as soon as it is there."""
        self._pump.hurry()

    def fail(self, error: PenstockError) -> "Delivery":
        """Ends it without librdkafka."""
        self._outcome = error
        self._wake()
        return self

    def succeed(self, delivered: Delivered) -> None:
        self._outcome = delivered
        self._wake()

    def _when_done(self, call: Callable[[Any], None]) -> None:
        with _lock:
            if self._waiters is None:
                self._waiters = []
            self._waiters.append(call)
        if (
            self._outcome is not None
        ):  # it may have come before the waiter: whoever takes it calls it
            self._wake()

    def _wake(self) -> None:
        with _lock:
            waiters, self._waiters = self._waiters, None
        for call in waiters or ():
            try:
                call(self._outcome)
            except Exception:  # noqa: BLE001  # a callback's error must not end the thread that serves all
                LOGGER.exception("a callback of a delivery failed")

    def _wait(self, timeout: float | None) -> None:
        finished = threading.Event()
        self._when_done(lambda _: finished.set())
        self._pump.hurry()
        if not finished.wait(timeout):
            raise self._pump.explained(
                TimedOut(
                    f"the message is not acknowledged after {timeout} s",
                    remedy="it is still on its way: wait longer, or check that the broker is up",
                )
            )


def _delivered(outcome: Any) -> Delivered:
    if isinstance(outcome, Delivered):
        return outcome
    offset = outcome.offset()
    return Delivered(
        outcome.topic(),
        outcome.partition(),
        _NO_OFFSET if offset is None else offset,
        outcome.timestamp()[1],
    )


def joined(pump: "Pump", parts: list[Delivery]) -> Delivery:
    """Done when all parts are: where the last one is, or the first error."""
    whole = Delivery(pump)
    left = [len(parts)]

    def on_part(outcome: Any) -> None:
        with _lock:
            left[0] -= 1
            is_last = left[0] == 0
        if isinstance(outcome, PenstockError) and not whole.done:
            whole.fail(outcome)
        elif is_last and not whole.done:
            whole.succeed(_delivered(parts[-1]._outcome))

    for part in parts:
        part._when_done(on_part)
    return whole


class Trouble:
    """librdkafka cannot reach a broker, or is refused there, and goes on trying: what waits in vain says so."""

    def __init__(self) -> None:
        self._newest: tuple[float, PenstockError] | None = None

    def __call__(self, error: Any) -> None:
        """The callback that librdkafka reports to."""
        self._newest = (time.monotonic(), from_kafka(error, "connection"))

    def explained(self, error: PenstockError) -> PenstockError:
        """The error, with the reason where one is known."""
        if self._newest is None or not isinstance(error, TimedOut | BufferExhausted):
            return error
        noted_s, reason = self._newest
        if time.monotonic() - noted_s > _TROUBLE_S:
            return error
        remedy = reason.remedy or error.remedy
        return type(error)(f"{error.fact} ({reason.fact})", remedy=remedy, code=error.code)


class Pump:
    """Lets librdkafka report: on the sender's own thread while it sends fast, on a thread of its own otherwise.

    Two threads that take turns at Python's lock would cost a sender most of its speed. Counters are exact because
    reports are served by one thread at a time.
    """

    def __init__(self, client: Any, trouble: Trouble) -> None:
        from confluent_kafka import KafkaException

        self.fatal: PenstockError | None = None  # from now on librdkafka refuses everything
        self._exception: type[Exception] = KafkaException
        self.newest_failure: PenstockError | None = None
        self.explained: Final = trouble.explained
        self.delivered = 0
        self.failed = 0
        self.dropped = 0
        self.sends = 0
        self._client = client
        self._serving = threading.Lock()
        self._hurry = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="penstock-producer", daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """By the sender, between messages: serves what is there, unless somebody does."""
        if self._serving.acquire(blocking=False):
            try:
                self._poll(0)
            finally:
                self._serving.release()

    def hurry(self) -> None:
        """Somebody waits for a report."""
        self._hurry.set()

    def flush(self, timeout_s: float) -> int:
        """Serves until nothing is on its way, or time is up; how many are left."""
        if not len(self._client):
            return 0
        with self._serving:
            try:
                return int(self._client.flush(timeout_s))
            except self._exception as error:
                self.fatal = from_kafka(error.args[0], "this producer")
                return len(self._client)

    def exclusively(self, call: Callable[[], object]) -> None:
        """Runs a call of librdkafka that serves reports itself."""
        with self._serving:
            call()

    def close(self) -> None:
        self._closed = True
        self._hurry.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        seen = 0
        while not self._closed:
            sends, seen = self.sends - seen, self.sends
            if sends >= _BUSY_SENDS:
                self._hurry.wait(_BUSY_TICK_S)
            self._hurry.clear()
            with self._serving:
                self._poll(0 if sends >= _BUSY_SENDS else _IDLE_POLL_S)

    def _poll(self, timeout_s: float) -> None:
        """librdkafka raises a fatal error in whatever serves it next: it is kept for those whom it concerns."""
        try:
            self._client.poll(timeout_s)
        except self._exception as error:
            self.fatal = from_kafka(error.args[0], "this producer")
