"""What a process gives to its threads, in steps: a thread may stop at any system call, and the world goes on.

Each is a real thread, but exactly one of all threads runs: whoever resumes another waits until that stops or ends.
So the seed decides about every step. The product holds no lock while it is in a system call; one that did would
stop the whole simulation here.
"""

from asyncio import events
from collections.abc import Callable
from random import Random
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from tests.simulation.loop import SimLoop

_IN_STEPS: Final = 0.3  # of all work; the rest runs at once, which costs less
_CALLS_BETWEEN_STOPS: Final = (1, 4, 15, 60)  # on average
_LONG: Final = 0.04  # of the stops
_LONG_S: Final = (0.2, 2.5)
_SHORT_S: Final = 0.004
_SLOW_S: Final = 2.5  # of stops in one work, unless the disk hangs: less than a sync may take


class ProcessEnded(BaseException):
    """The process is gone: nothing that its code does from here on has an effect."""


class WorkerEnded(BaseException):
    """So is its worker process."""


def _nothing() -> None:
    """What an idle thread has to do."""


class Carrier:
    """A real thread that carries one function after the other: to begin one takes long."""

    idle: ClassVar[list["Carrier"]] = []

    def __init__(self) -> None:
        self.go, self.back = Lock(), Lock()
        self.go.acquire()
        self.back.acquire()
        self.work: Callable[[], None] = _nothing
        Thread(target=self._run, daemon=True).start()

    @classmethod
    def take(cls) -> "Carrier":
        return cls.idle.pop() if cls.idle else cls()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            self.work()
            self.back.release()


class SimThread:
    """One function in a thread. `done` gets its result or its error; it is not called after `kill`."""

    current: ClassVar["SimThread | None"] = None

    def __init__(
        self,
        loop: "SimLoop",
        work: Callable[[], Any],
        done: Callable[[Any, Exception | None], None],
    ) -> None:
        self._loop = loop
        self._rng: Random = loop.world.rng
        self._work = work
        self._done = done
        self._mean = self._rng.choice(_CALLS_BETWEEN_STOPS)
        self._calls_left = self._next_stop()
        self._slow_left_s = _SLOW_S
        self._raises: BaseException | None = None
        self.is_ended = False
        self._is_killed = False
        self._carrier = Carrier.take()
        self._carrier.work = self._run

    @staticmethod
    def is_chosen(rng: Random) -> bool:
        """Whether some work is done in steps."""
        return rng.random() < _IN_STEPS

    def resume(self, raising: BaseException | None = None) -> None:
        """Let it run until it stops or ends."""
        if self.is_ended:
            return
        self._raises = raising
        before, SimThread.current = SimThread.current, self
        self._carrier.go.release()
        self._carrier.back.acquire()
        SimThread.current = before
        if self.is_ended:
            self._carrier.work = _nothing  # or it would keep the whole history in memory
            Carrier.idle.append(self._carrier)

    def kill(self) -> None:
        """Its process has ended."""
        self._done = lambda _result, _error: None
        self._is_killed = True
        if SimThread.current is not self:
            self.resume(ProcessEnded())

    def before_call(self) -> None:
        """Called in the thread: it may stop here."""
        if self._is_killed:
            raise ProcessEnded
        self._calls_left -= 1
        if self._calls_left > 0:
            return
        self._calls_left = self._next_stop()
        self._loop.call_later(self._delay_s(), self.resume)
        self._carrier.back.release()
        self._carrier.go.acquire()
        raises, self._raises = self._raises, None
        if raises is not None:
            raise raises

    def _delay_s(self) -> float:
        delay_s = self._rng.expovariate(1 / _SHORT_S)
        if self._rng.random() < _LONG:
            delay_s = self._rng.uniform(*_LONG_S)
        delay_s += self._loop.thread_delay_s
        if self._loop.thread_delay_s < _SLOW_S:
            delay_s = min(delay_s, self._slow_left_s)
            self._slow_left_s -= delay_s
        return delay_s

    def _next_stop(self) -> int:
        return 1 + int(self._rng.expovariate(1 / self._mean))

    def _run(self) -> None:
        events._set_running_loop(self._loop)
        result, error = None, None
        try:
            result = self._work()
        except Exception as failure:  # noqa: BLE001 - the caller of `run_in_executor` receives it
            error = failure
        except ProcessEnded:
            pass
        events._set_running_loop(None)
        self.is_ended = True
        self._done(result, error)
