"""`run` on an event loop: the engine on the consumer's thread, the handlers as tasks of the loop."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from penstock.sdk import dead_letters
from penstock.sdk.errors import ConfigurationError
from penstock.sdk.message import Message
from penstock.sdk.outlet import Outlet
from penstock.sdk.processing import Engine, Options, Summary, check_handler, settle
from penstock.sdk.retrying import Again
from penstock.sdk.tracing import continued, installed_tracer
from penstock.sdk.workers import Job

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer

Handler = Callable[[Message], Awaitable[object]]


class TaskPool:
    """One task a lane; without an order, all share one queue. `submit` and `close` come from the engine's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lanes: int, *, shares_queue: bool) -> None:
        self._loop = loop
        self._lanes = lanes
        queues = 1 if shares_queue else lanes
        self._queues: list[asyncio.Queue[Job | None]] = [asyncio.Queue() for _ in range(queues)]

    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        if jobs:
            self._loop.call_soon_threadsafe(self._put, list(jobs))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end)

    async def work(
        self, lane: int, handle: Callable[[Job], Awaitable[None]], report: Callable[[Job], None]
    ) -> None:
        queue = self._queues[lane % len(self._queues)]
        while (job := await queue.get()) is not None:
            try:
                if not job.tracker.is_lost:
                    await handle(job)
            finally:
                report(job)

    def _put(self, jobs: list[tuple[int, Job]]) -> None:
        for lane, job in jobs:
            self._queues[lane % len(self._queues)].put_nowait(job)

    def _end(self) -> None:
        for lane in range(self._lanes):
            self._queues[lane % len(self._queues)].put_nowait(None)


class AsyncAttempts:
    """One message through its coroutine: again, later, aside. The twin of processing.Attempts."""

    def __init__(
        self,
        handler: Handler,
        engine: Engine,
        options: Options,
        outlet: Outlet,
        stopping: asyncio.Event,
    ) -> None:
        self._handler = handler
        self._engine = engine
        self._policy = options.policy
        self._outlet = outlet
        self._stopping = stopping
        self._tracer = installed_tracer()

    async def __call__(self, job: Job) -> None:
        attempt = 0
        while not job.tracker.is_lost or attempt == 0:
            attempt += 1
            try:
                with continued(self._tracer, dict(job.message.headers) if self._tracer else {}):
                    made: object = self._handler(job.message)
                    if not isinstance(made, Awaitable):
                        job.error = _unasked(made)
                        return
                    await made
                job.is_finished = True
                return
            except Exception as error:  # noqa: BLE001  # the application's: any of them is a failed attempt
                if not await self._try_again(job, error, attempt):
                    return
            except BaseException as error:
                job.error = error  # SystemExit and its kin end the run
                if _is_cancelled():
                    raise
                return

    async def _try_again(self, job: Job, error: Exception, attempt: int) -> bool:
        step = dead_letters.retry_step(job.message.headers)
        decision = self._policy.decide(error, attempt, step)
        if isinstance(decision, Again):
            self._engine.summary.retried += 1
            return not await self._stops_within(decision.delay_s)
        try:
            await asyncio.to_thread(
                settle, decision, job, error, attempt, self._outlet, self._engine.summary
            )
        except Exception as failure:  # noqa: BLE001  # it could not be put aside: the run must end
            job.error = failure
        return False

    async def _stops_within(self, delay_s: float) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        except TimeoutError:
            return False
        return True


async def run_on_loop(
    consumer: "Consumer", handler: Handler, options: Options, thread: Executor
) -> Summary:
    """Return when the consumer is stopped. If cancelled, end the run and wait for what is begun."""
    check_handler(handler)
    loop = asyncio.get_running_loop()
    engine = Engine(consumer, options)
    stopping = asyncio.Event()
    engine.on_stopping = lambda: loop.call_soon_threadsafe(stopping.set)
    pool = TaskPool(loop, options.workers, shares_queue=options.order == "none")
    outlet = Outlet(consumer, options.dead_letter, options.retry_topics)
    attempts = AsyncAttempts(handler, engine, options, outlet, stopping)

    def run() -> None:
        try:
            with outlet:
                engine.run(pool)
        finally:
            pool.close()

    async with asyncio.TaskGroup() as tasks:
        for lane in range(options.workers):
            tasks.create_task(pool.work(lane, attempts, engine.report))
        running = loop.run_in_executor(thread, run)
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            engine.end()
            await asyncio.wait({running})
            raise
    running.result()  # raises what ended the run
    return engine.summary


def _unasked(made: object) -> ConfigurationError:
    """A plain function: it has held up the loop while it worked."""
    return ConfigurationError(
        f"the handler returned {type(made).__name__}, which cannot be awaited",
        remedy="give a coroutine function, or use Consumer, whose workers are threads",
    )


def _is_cancelled() -> bool:
    """This task is, not something that the handler awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
