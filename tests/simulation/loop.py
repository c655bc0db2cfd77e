"""Virtual time, and event loops that share it: one for each simulated process, one callback at a time.

Within a process callbacks run in the order that asyncio promises; which process goes next is the seed's
choice. Everything that happens goes into a hash: the same seed gives the same trace.
"""

import asyncio
import heapq
import os
from asyncio import events
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from itertools import count
from random import Random
from select import POLLIN, poll
from typing import Any, Final, Protocol, TypeVar

T = TypeVar("T")

_STEP_S: Final = 0.000_005  # no work is free: a loop that spins lets time pass
EPOCH_S: Final = 1000.0
VERBOSE: Final = bool(os.environ.get("TRACE"))  # tell the story as it happens


class Stuck(Exception):
    """Nothing will ever happen again, or not within the time given."""


class Broken(Exception):
    """An invariant does not hold."""


class Dialler(Protocol):
    """The network, as a process sees it."""

    async def connect(
        self, loop: "SimLoop", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...


class World:
    """All processes, and events of the world outside of them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_s = EPOCH_S
        self.steps = 0
        self.loops: list[SimLoop] = []  # that run
        self.dead: list[
            SimLoop
        ] = []  # whose tasks nobody finishes; kept, so that nobody collects them
        self.failures: list[str] = []
        self.after_step: Callable[[SimLoop], None] = lambda _loop: None
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._hash = blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()

    def note(self, what: str) -> None:
        """Into the trace."""
        if VERBOSE:
            print(f"{self.now_s:.6f} {what}")  # noqa: T201 - asked for
        self._hash.update(b"%.6f %s\n" % (self.now_s, what.encode()))

    def call_later(self, delay_s: float, event: Callable[[], None]) -> None:
        """Outside of all processes: the network, the store, faults."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._order), event))

    def run_until(self, done: Callable[[], bool], limit_s: float, what: str) -> None:
        end_s = self.now_s + limit_s
        while not done():
            if self.failures:
                raise Broken(self.failures[0])
            if self.now_s > end_s:
                raise Stuck(f"not within {limit_s:g} s: {what}")
            self.step()

    def run_for(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        self.call_later(seconds, lambda: None)
        self.run_until(lambda: self.now_s >= end_s, seconds + 1, "time passes")

    def step(self) -> None:
        """One callback of one process, or one event of the world; time passes when there is none."""
        ready = [loop for loop in self.loops if loop.is_ready]
        if not ready:
            self._advance()
            return
        loop = ready[0] if len(ready) == 1 else ready[int(self.rng.random() * len(ready))]
        self.steps += 1
        self.now_s += _STEP_S
        self._hash.update(b"%.6f %d %d;" % (self.now_s, loop.number, loop.backlog))
        loop.run_one()
        self.after_step(loop)
        if self._events and self._events[0][0] <= self.now_s:
            self._advance()

    def _advance(self) -> None:
        times = [loop.next_timer_s for loop in self.loops if not loop.is_paused]
        if self._events:
            times.append(self._events[0][0])
        next_s = min(times, default=float("inf"))
        if next_s == float("inf"):
            raise Stuck("nothing is ready, and nothing ever will be")
        self.now_s = max(self.now_s, next_s)
        for loop in self.loops:
            if not loop.is_paused:
                loop.wake_due()
        while self._events and self._events[0][0] <= self.now_s:
            _, _, event = heapq.heappop(self._events)
            event()

    def finish(self) -> None:
        """Every task of every process is ended, so that none is left to complain."""
        for loop in [*self.loops, *self.dead]:
            loop.drain()
        self.loops.clear()
        self.dead.clear()


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process. It runs when the world says so; `kill` ends it as SIGKILL would."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(
        self, world: World, name: str, network: Dialler | None = None, *, broker_id: int = 0
    ) -> None:
        super().__init__()
        self.broker_id = broker_id  # 0: none runs in it
        self.world = world
        self.name = name
        self.number = len(world.loops) + len(world.dead)
        self.is_paused = False
        self.is_killed = False
        self.network = network
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._unfinished: deque[asyncio.Handle] = deque()  # when it was killed
        self.set_task_factory(_factory)
        self.set_exception_handler(_complain)
        world.loops.append(self)

    # What the world does with it ---------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) and not self.is_paused

    @property
    def backlog(self) -> int:
        return len(self._ready)

    @property
    def next_timer_s(self) -> float:
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)._scheduled = False  # type: ignore[attr-defined] # as BaseEventLoop does
        return scheduled[0].when() if scheduled else float("inf")

    def wake_due(self) -> None:
        now_s = self.world.now_s
        while self.next_timer_s <= now_s:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False  # type: ignore[attr-defined] # as BaseEventLoop does
            self._ready.append(handle)

    def run_one(self) -> None:
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)

    def kill(self) -> None:
        """Nothing of it runs any more: no callback, no `finally`."""
        self.is_killed = True
        self._unfinished, self._ready = self._ready, deque()
        self._scheduled.clear()
        self._readers.clear()
        self.world.loops.remove(self)
        self.world.dead.append(self)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False

    def drain(self) -> None:
        """Only when all is over: every task is cancelled and ends, whatever it does in the end."""
        self.is_killed = False
        self._ready.extendleft(reversed(self._unfinished))
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(20):
            running = [task for task in self._tasks if not task.done()]
            if not running:
                break
            for task in running:
                task.cancel()
            for _ in range(10_000):
                if not self._ready:
                    break
                self.run_one()
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.exception()  # seen
            task._log_destroy_pending = False  # type: ignore[attr-defined] # it waits for what never comes
        self.is_killed = True
        self._ready.clear()
        self._scheduled.clear()
        self._tasks.clear()
        self.close()

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        """Runs it in this process."""
        events._set_running_loop(self)
        try:
            return self.create_task(coroutine, name=name)
        finally:
            events._set_running_loop(None)

    # What BaseEventLoop asks for ---------------------------------------------------------------

    def time(self) -> float:
        return self.world.now_s

    def _call_soon(self, *args: Any) -> asyncio.Handle:
        handle: asyncio.Handle = super()._call_soon(*args)  # type: ignore[misc] # not in typeshed
        if self.is_killed:
            self._ready.clear()
        return handle

    def call_soon_threadsafe(self, *args: Any, **more: Any) -> asyncio.Handle:  # type: ignore[override] # only what is used here
        return self.call_soon(*args, **more)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers go when their time has come."""

    def _write_to_self(self) -> None:
        """No thread waits for anything."""

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override] # only what is used here
        """In a thread that takes its time, and that ends with the process."""
        _executor, func, *rest = args
        future = self.create_future()
        self.call_later(self.world.rng.uniform(0.000_1, 0.003), self._work, future, func, rest)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            self.call_later(0.000_05, _fail, future, error)
        else:
            self.call_later(0.000_05, _finish, future, result)

    async def create_connection(self, *args: Any, **_: Any) -> Any:
        assert self.network is not None
        factory, host, port = args
        return await self.network.connect(self, factory, host, port)

    # Sockets -----------------------------------------------------------------------------------

    def add_reader(self, *args: Any) -> None:  # type: ignore[override] # only what is used here
        fd, callback, *rest = args
        self._readers[fd] = (callback, tuple(rest))
        self.readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, *args: Any) -> None:  # type: ignore[override] # only what is used here
        fd, callback, *rest = args
        self._writers[fd] = (callback, tuple(rest))

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """There may be something to read, or an end."""
        if fd in self._readers and not self.is_killed:
            self.call_soon(self._read, fd)

    def writable(self, fd: int) -> None:
        if fd in self._writers and not self.is_killed:
            self.call_soon(self._write, fd)

    def _read(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if reader is not None:
            reader[0](*reader[1])
            if fd in self._readers and _has_more(fd):
                self.readable(fd)

    def _write(self, fd: int) -> None:
        writer = self._writers.get(fd)
        if writer is not None:
            writer[0](*writer[1])


def _has_more(fd: int) -> bool:
    """As `select` says it, which knows no descriptor beyond 1023."""
    asked = poll()
    asked.register(fd, POLLIN)
    return bool(asked.poll(0))


def _factory(loop: Any, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **more)
    loop._tasks[task] = None
    task.add_done_callback(lambda done: loop._tasks.pop(done, None))
    return task


def _complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    loop.world.failures.append(f"{loop.name}: {context.get('message')}: {error!r}")


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
