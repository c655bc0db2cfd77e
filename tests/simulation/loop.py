"""Virtual time, and event loops that share it: one for each simulated process, one callback at a time.

Within a process, callbacks run in the order that asyncio promises. The seed chooses which process runs next.
A hash covers every step: the same seed gives the same hash.
"""

import asyncio
import heapq
import os
from asyncio import events
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context, copy_context
from hashlib import blake2b
from itertools import count
from random import Random
from typing import Any, Final, Protocol, TypeVar

from tests.simulation.threads import ProcessEnded, SimThread

T = TypeVar("T")

_STEP_S: Final = 0.000_005  # every callback takes time, so a loop that spins lets time pass
EPOCH_S: Final = 1000.0
VERBOSE: Final = bool(os.environ.get("TRACE"))  # print the trace as it happens
_LULL_PAUSE_S: Final = 2.5
_FINISHED_TASKS_MAX: Final = 500  # kept beside the running ones before they are dropped


class Stuck(Exception):
    """No event is left, or the awaited state was not reached within its time limit."""


class Broken(Exception):
    """An invariant does not hold."""


class ProcessNetwork(Protocol):
    """The network, as a process sees it."""

    async def connect(
        self, loop: "SimLoop", factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]: ...

    def is_readable(self, fd: int) -> bool:
        """Whether a read of the socket returns data or its end."""


class ProcessClock(Protocol):
    """The monotonic clock of a process's machine."""

    def monotonic_s(self) -> float: ...
    def world_s(self, monotonic_s: float) -> float:
        """The virtual time at which it shows this."""


class World:
    """All processes, and the events outside of them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_s = EPOCH_S
        self.steps = 0
        self.loops: list[SimLoop] = []  # of running processes
        self.dead: list[SimLoop] = []  # referenced so that their tasks are not garbage-collected
        self.ready: list[SimLoop] = []  # running, not paused, and with callbacks to run
        self.failures: list[str] = []
        self.faults: Counter[str] = Counter()  # injected, by kind
        self.is_lull = False  # clients do little
        self.after_step: Callable[[SimLoop], None] = lambda _loop: None
        self._timers: list[tuple[float, int, SimLoop | None, Any]] = []
        self._order = count()
        self._mixed = 0  # hash of the steps since the last note
        self._hash = blake2b(digest_size=8)

    @property
    def trace(self) -> str:
        whole = self._hash.copy()
        whole.update(b"%d" % self._mixed)
        return whole.hexdigest()

    def note(self, what: str) -> None:
        """Add an entry to the trace."""
        if VERBOSE:
            print(f"{self.now_s:.6f} {what}")  # noqa: T201 - requested with TRACE=1
        self._hash.update(b"%d %.6f %s\n" % (self._mixed, self.now_s, what.encode()))

    def pause_s(self, mean_s: float) -> float:
        """Choose the pause before a client's next operation."""
        mean_s = max(mean_s, _LULL_PAUSE_S) if self.is_lull else mean_s
        return self.rng.expovariate(1 / mean_s)

    def call_later(self, delay_s: float, event: Callable[[], None]) -> None:
        """Schedule an event outside of all processes: of the network, the store or a fault."""
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._order), None, event))

    def call_at(self, when_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (when_s, next(self._order), None, event))

    def add_timer(self, when_s: float, loop: "SimLoop", timer: "SimTimer") -> None:
        heapq.heappush(self._timers, (when_s, next(self._order), loop, timer))

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
        self.call_at(end_s, lambda: None)
        while self.now_s < end_s:
            if self.failures:
                raise Broken(self.failures[0])
            self.step()

    def step(self) -> None:
        """Run one callback of one process, or advance the time if no process is ready."""
        ready = self.ready
        if not ready:
            self._advance()
            return
        count = len(ready)
        index = 0 if count == 1 else int(self.rng.random() * count)
        loop = ready[index]
        self.steps += 1
        now_s = self.now_s = self.now_s + _STEP_S
        callbacks = loop.callbacks
        backlog = len(callbacks)
        self._mixed = hash((self._mixed, now_s, loop.number, backlog))
        if backlog == 1:
            del ready[index]  # `call_soon` adds it again
        handle = callbacks.popleft()
        if not handle._cancelled:
            loop.run(handle)
            self.after_step(loop)
        timers = self._timers
        if timers and timers[0][0] <= now_s:
            self._advance()

    def _advance(self) -> None:
        """Move the time to the next timer or event, and run all that are due."""
        timers = self._timers
        while timers and (loop := timers[0][2]) is not None:
            if not timers[0][3]._cancelled and not loop.is_killed:
                break
            heapq.heappop(timers)
        if not timers:
            raise Stuck("no process is ready, and no event is scheduled")
        now_s = self.now_s = max(self.now_s, timers[0][0])
        while timers and timers[0][0] <= now_s:
            _, _, loop, due = heapq.heappop(timers)
            if loop is None:
                due()
            elif not due._cancelled and not loop.is_killed:
                loop.enqueue(due)

    def finish(self) -> None:
        """End all tasks of all processes, so that asyncio complains about none of them."""
        for loop in [*self.loops, *self.dead]:
            loop.drain()
        self.loops.clear()
        self.dead.clear()
        self.ready.clear()
        self._timers.clear()


class SimHandle(asyncio.Handle):
    """Handle without asyncio's debug mode, which costs two calls for each callback."""

    __slots__ = ()

    _cancelled: bool

    def __init__(
        self, callback: Any, args: tuple[Any, ...], loop: "SimLoop", context: Context | None
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()


class SimTimer(asyncio.TimerHandle):
    __slots__ = ()

    _cancelled: bool

    def __init__(
        self,
        when_s: float,
        callback: Any,
        args: tuple[Any, ...],
        loop: "SimLoop",
        context: Context | None,
    ) -> None:
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._when = when_s
        self._scheduled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()


def _nothing() -> None:
    """The callback of a cancelled handle."""


class SimLoop(asyncio.BaseEventLoop):
    """The event loop of one process. The world runs its callbacks; `kill` ends it like SIGKILL."""

    def __init__(
        self,
        world: World,
        name: str,
        network: ProcessNetwork | None = None,
        *,
        broker_id: int = 0,
        clock: ProcessClock | None = None,
    ) -> None:
        super().__init__()
        self._clock = clock  # None: true time
        self.broker_id = broker_id  # 0: the process is no broker
        self.world = world
        self.callbacks: deque[Any] = deque()  # to be run: SimHandle or SimTimer
        self.name = name
        self.number = len(world.loops) + len(world.dead)
        self.is_paused = False
        self.is_killed = False
        self.thread_delay_s = 0.0  # what waits for a disk takes so much longer
        self.threads: list[SimThread] = []  # that are not done
        self.when_unwound: Callable[[], None] = (
            _nothing  # it was killed in a callback that has ended
        )
        self.network = network
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._readable: set[int] = set()  # descriptors whose reader is about to run
        self._running: dict[asyncio.Task[Any], None] = {}  # and some that are done
        self._running_max = _FINISHED_TASKS_MAX
        self._unfinished: deque[Any] = deque()  # callbacks left when it was killed, and later ones
        self.set_exception_handler(_note_failure)
        world.loops.append(self)

    # What the world does with it ---------------------------------------------------------------

    def run(self, handle: Any) -> None:
        """Run one callback, a SimHandle or SimTimer."""
        events._set_running_loop(self)
        try:
            handle._context.run(handle._callback, *handle._args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except ProcessEnded:
            pass
        except BaseException as error:  # noqa: BLE001 - as Handle._run does
            message = f"a callback failed: {handle._callback!r}"
            self.call_exception_handler({"message": message, "exception": error})
        finally:
            events._set_running_loop(None)
            if self.is_killed:
                self.when_unwound()

    def enqueue(self, handle: asyncio.Handle) -> None:
        callbacks = self.callbacks
        if not callbacks and not self.is_paused:
            self.world.ready.append(self)
        callbacks.append(handle)

    def kill(self) -> None:
        """End the process: no callback runs any more, and what a `finally` does has no effect."""
        self.is_killed = True
        for thread in self.threads:
            thread.kill()
        self.threads.clear()
        self._leave_ready()
        self._unfinished, self.callbacks = self.callbacks, deque()
        self._readers.clear()
        self._writers.clear()
        self.world.loops.remove(self)
        self.world.dead.append(self)

    def pause(self) -> None:
        self.is_paused = True
        self._leave_ready()

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if self.callbacks:
                self.world.ready.append(self)

    def _leave_ready(self) -> None:
        if self in self.world.ready:
            self.world.ready.remove(self)

    def drain(self) -> None:
        """Cancel all tasks and run them to their end, after the history is over."""
        for thread in self.threads:
            thread.kill()
        self.threads.clear()
        self.when_unwound = _nothing
        self.is_killed = False
        self.callbacks.extendleft(reversed(self._unfinished))
        self._unfinished.clear()
        self.set_exception_handler(lambda _loop, _context: None)
        for _ in range(20):
            running = [task for task in self._running if not task.done()]
            if not running:
                break
            for task in running:
                task.cancel()
            for _ in range(10_000):
                if not self.callbacks:
                    break
                handle = self.callbacks.popleft()
                if not handle._cancelled:
                    self.run(handle)
        for task in self._running:
            if task.done() and not task.cancelled():
                task.exception()  # mark it as retrieved
            task._log_destroy_pending = False  # type: ignore[attr-defined] # its awaited future never completes
        self.is_killed = True
        self.callbacks.clear()
        self._unfinished.clear()
        self._running.clear()
        self.close()

    def spawn(self, coroutine: Any, name: str) -> asyncio.Task[Any]:
        """Start a task in this process; also from a task of it."""
        running = events._get_running_loop()
        events._set_running_loop(self)
        try:
            return self.create_task(coroutine, name=name)
        finally:
            events._set_running_loop(running)

    # The interface of BaseEventLoop ------------------------------------------------------------

    def time(self) -> float:
        return self.world.now_s if self._clock is None else self._clock.monotonic_s()

    def call_soon(  # type: ignore[override] # without the types of arguments
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = SimHandle(callback, args, self, context)
        if self.is_killed:
            self._unfinished.append(handle)
        else:
            self.enqueue(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # without the types of arguments
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override] # without the types of arguments
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override] # without the types of arguments
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = SimTimer(when, callback, args, self, context)
        if not self.is_killed:
            when_s = when if self._clock is None else self._clock.world_s(when)
            self.world.add_timer(when_s, self, timer)
        return timer

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        running = self._running
        running[task] = None
        if len(running) > self._running_max:
            self._running = {it: None for it in running if not it.done()}
            self._running_max = len(self._running) + _FINISHED_TASKS_MAX
        return task

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override] # only this form is used
        """Run the function after the delay of a thread. It never runs after the end of the process."""
        _executor, func, *rest = args
        future = self.create_future()
        delay_s = self.world.rng.uniform(0.000_1, 0.003) + self.thread_delay_s
        self.call_later(delay_s, self._work, future, func, rest)
        return future

    def _work(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        if future.cancelled():
            return
        if SimThread.is_chosen(self.world.rng):
            self._work_in_steps(future, func, args)
            return
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - the caller of `run_in_executor` receives it
            self.call_later(0.000_05, _fail, future, error)
        else:
            self.call_later(0.000_05, _finish, future, result)

    def _work_in_steps(self, future: asyncio.Future[T], func: Callable[..., T], args: Any) -> None:
        def done(result: T, error: Exception | None) -> None:
            self.threads.remove(thread)
            if error is None:
                self.call_later(0.000_05, _finish, future, result)
            else:
                self.call_later(0.000_05, _fail, future, error)

        thread = SimThread(self, lambda: func(*args), done)
        self.threads.append(thread)
        thread.resume()

    async def create_connection(self, *args: Any, **_: Any) -> Any:
        assert self.network is not None
        factory, host, port = args
        return await self.network.connect(self, factory, host, port)

    # Sockets -----------------------------------------------------------------------------------

    def add_reader(self, *args: Any) -> None:  # type: ignore[override] # only this form is used
        fd, callback, *rest = args
        self._readers[fd] = (callback, tuple(rest))
        assert self.network is not None
        if self.network.is_readable(fd):
            self.readable(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def add_writer(self, *args: Any) -> None:  # type: ignore[override] # only this form is used
        fd, callback, *rest = args
        self._writers[fd] = (callback, tuple(rest))

    def remove_writer(self, fd: Any) -> bool:
        return self._writers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        """Run the reader of the descriptor soon: data or the end has arrived."""
        if fd in self._readers and fd not in self._readable:
            self._readable.add(fd)
            self.call_soon(self._read, fd)

    def writable(self, fd: int) -> None:
        if fd in self._writers:
            self.call_soon(self._write, fd)

    def _read(self, fd: int) -> None:
        self._readable.discard(fd)
        reader = self._readers.get(fd)
        if reader is not None:
            reader[0](*reader[1])
            if fd in self._readers and self.network.is_readable(fd):  # type: ignore[union-attr] # it has a socket
                self.readable(fd)

    def _write(self, fd: int) -> None:
        writer = self._writers.get(fd)
        if writer is not None:
            writer[0](*writer[1])


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimLoop)
    error = context.get("exception")
    loop.world.failures.append(f"{loop.name}: {context.get('message')}: {error!r}")


def _finish(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
