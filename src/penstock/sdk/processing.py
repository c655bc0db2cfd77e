"""`consumer.run`: many workers, in order where it matters; commits never pass a message that is not finished.

One thread owns the consumer and the books; workers get jobs from it and report back. A message is finished when its
handler returned, or when the broker has it in a retry or dead-letter topic.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.sdk import checks, dead_letters
from penstock.sdk.errors import ConfigurationError, ProcessingFailed
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message, Place
from penstock.sdk.outlet import Outlet
from penstock.sdk.retrying import (
    Again,
    Aside,
    Backoff,
    Later,
    Policy,
    RetryTopics,
    Stop,
    check_backoff,
    retry_topics_of,
)
from penstock.sdk.tracing import continued, installed_tracer
from penstock.sdk.workers import Books, Job, Lanes, Order, Pool, ThreadPool

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer

Handler = Callable[[Message], object]

_POLL_S: Final = 0.05
_KEEP_ALIVE_S: Final = (
    1.0  # with no room for longer than this, partitions are paused and the group kept
)
_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Options:
    workers: int
    order: Order
    retries: int
    backoff: Backoff
    dead_letter: str | None
    retry_topics: RetryTopics | None
    max_in_flight: int
    drain_timeout_s: float

    @classmethod
    def of(
        cls,
        topics: Sequence[str],
        *,
        retry_topics: RetryTopics | Sequence[float] | None,
        **given: Any,
    ) -> Self:
        """Those of `run` over these topics, looked at before anything begins."""
        options = cls(retry_topics=retry_topics_of(retry_topics), **given)
        checks.whole("workers", options.workers, at_least=1)
        checks.whole("retries", options.retries, at_least=0)
        checks.whole("max_in_flight", options.max_in_flight, at_least=1)
        checks.number("drain_timeout", options.drain_timeout_s, at_least=0)
        check_backoff(options.backoff)
        if options.order not in ("key", "partition", "none"):
            raise ConfigurationError(
                f"order={options.order!r}", remedy="give 'key', 'partition' or 'none'"
            )
        if options.dead_letter is not None:
            checks.text("dead_letter", options.dead_letter, remedy="give the name of a topic")
        if options.dead_letter in topics:
            raise ConfigurationError(
                f"dead_letter={options.dead_letter!r} is read by this consumer: its letters would come back for ever",
                remedy="give another topic",
            )
        return options

    @property
    def policy(self) -> Policy:
        return Policy(self.retries, self.backoff, self.retry_topics, self.dead_letter is not None)


@dataclass(slots=True)
class Summary:
    """What a run did."""

    handled: int = 0
    retried: int = 0
    put_off: int = 0
    dead_letters: int = 0


class Engine:
    """Fetches, hands to the pool, keeps the books, commits. Its methods run on the consumer's thread."""

    def __init__(self, consumer: "Consumer", options: Options) -> None:
        self.summary = Summary()
        self.stopping = threading.Event()
        self.on_stopping: Callable[[], object] = self.stopping.set
        self._consumer = consumer
        self._options = options
        self._lanes = Lanes(options.order, options.workers)
        self._books: dict[Place, Books] = {}
        self._reports: SimpleQueue[Job] = SimpleQueue()
        self._in_flight = 0
        self._later: dict[
            Place, tuple[int, Job]
        ] = {}  # one in each retry partition: when it is due
        self._paused: set[Place] = set()  # by this run
        self._error: BaseException | None = None
        self._is_ended = False
        self._is_paused = False
        self._polled_s = self._committed_s = time.monotonic()

    def report(self, job: Job) -> None:
        """By a worker, from any thread: done with it, one way or another."""
        self._reports.put(job)

    def end(self) -> None:
        """End this run, but not the consumer. Any thread may call it."""
        self._is_ended = True

    def run(self, pool: Pool) -> None:
        """Until the consumer is stopped, or a message can neither be handled nor put aside."""
        consumer = self._consumer
        commits, consumer.auto_commits = consumer.auto_commits, False
        before, consumer.before_loss = consumer.before_loss, self._on_loss
        self._pool = pool
        try:
            while not (consumer.is_stopped or self._is_ended or self._error is not None):
                self._step()
        finally:
            try:
                self._begin_stop()
                self._drain()
                pool.close()
            finally:
                consumer.auto_commits = commits
                consumer.before_loss = before
                self._hand_back()
        if self._error is not None:
            raise self._error

    def _hand_back(self) -> None:
        """Whoever reads next, with this consumer or another, gets what is not finished."""
        self._consumer.end_run(self._next_offsets(list(self._books)))
        self._books.clear()
        self._resume_places(list(self._paused))

    def _step(self) -> None:
        if self._in_flight >= self._options.max_in_flight:
            self._await_room()
        else:
            self._resume()
            room = min(_AT_ONCE, self._options.max_in_flight - self._in_flight)
            self._polled_s = time.monotonic()
            self._take_in(room, _POLL_S)
        self._dispatch_due()
        self._take_reports()
        now_s = time.monotonic()
        if now_s - self._committed_s >= self._consumer.commit_interval_s:
            self._committed_s = now_s
            self._commit(list(self._books), wait=False)

    def _await_room(self) -> None:
        self._take_report(timeout_s=_POLL_S)
        if time.monotonic() - self._polled_s > _KEEP_ALIVE_S:
            if not self._is_paused:
                self._is_paused = True
                self._pause(self._consumer.assignment())
            self._polled_s = time.monotonic()
            self._take_in(1, 0.0)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._resume_places([place for place in self._paused if place not in self._later])

    def _pause(self, places: Sequence[Place]) -> None:
        """Pause partitions, except those that the application paused itself."""
        chosen = [place for place in places if place not in self._consumer.paused]
        self._consumer.pause(chosen)
        self._paused.update(chosen)

    def _resume_places(self, places: Sequence[Place]) -> None:
        """Resume partitions that this run paused and that are still here."""
        chosen = [place for place in places if place in self._paused & self._consumer.paused]
        self._paused.difference_update(places)
        if chosen:
            self._consumer.resume(chosen)

    def _take_in(self, room: int, timeout_s: float) -> None:
        """Hand up to `room` messages to the pool.

        A message of a retry topic that is not due pauses its partition and waits here alone: what is
        behind it stays with the consumer, so messages that wait take no room from the others.
        """
        jobs: list[tuple[int, Job]] = []
        try:
            message = self._consumer.poll(timeout_s)
            while message is not None:
                job = self._enter(message)
                due_ms = self._due_ms(message)
                if due_ms > now_ms():
                    self._later[message.place] = (due_ms, job)
                    self._pause([message.place])
                else:
                    jobs.append((self._lanes.lane(message), job))
                message = self._consumer.take_more() if len(jobs) < room else None
        finally:
            self._submit(jobs)

    def _enter(self, message: Message) -> Job:
        books = self._books.setdefault(message.place, Books())
        books.start(message.first_offset, message.offset)
        return Job(message, books)

    def _submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        for _, job in jobs:
            job.tracker.outstanding += 1
        self._in_flight += len(jobs)
        self._pool.submit(jobs)

    def _due_ms(self, message: Message) -> int:
        """When a message may be handled: at once, or after at most the longest delay.

        The limit bounds how long a wrong clock of another instance holds a partition up.
        """
        if self._options.retry_topics is None:
            return 0
        due_ms = dead_letters.retry_at_ms(message.headers) or 0
        return min(due_ms, now_ms() + int(max(self._options.retry_topics.delays) * 1000))

    def _dispatch_due(self) -> None:
        """Hand out the messages of retry topics that are due, and continue with their partitions."""
        at_ms = now_ms()
        for place, (due_ms, job) in list(self._later.items()):
            if due_ms > at_ms or self._in_flight >= self._options.max_in_flight:
                continue
            del self._later[place]
            self._submit([(self._lanes.lane(job.message), job)])
            if not self._is_paused:
                self._resume_places([place])

    def _take_reports(self) -> None:
        while self._take_report(timeout_s=None):
            pass

    def _take_report(self, timeout_s: float | None) -> bool:
        try:
            job = (
                self._reports.get_nowait()
                if timeout_s is None
                else self._reports.get(timeout=timeout_s)
            )
        except Empty:
            return False
        self._in_flight -= 1
        job.tracker.outstanding -= 1
        if job.is_finished:
            job.tracker.finish(job.message.first_offset)
            self.summary.handled += 1
        elif job.error is not None and self._error is None:
            self._error = job.error
            self._begin_stop()
        return True

    def _begin_stop(self) -> None:
        """Nobody waits for another attempt any more."""
        self.stopping.set()
        self.on_stopping()

    def _commit(self, places: Sequence[Place], *, wait: bool) -> None:
        self._consumer.commit_finished(self._next_offsets(places), wait=wait)

    def _next_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Up to where each partition is finished."""
        offsets: dict[Place, int] = {}
        for place in places:
            books = self._books.get(place)
            if books is not None and books.next_offset is not None:
                pending = self._consumer.first_pending(place)
                offsets[place] = min(
                    books.next_offset, books.next_offset if pending is None else pending
                )
        return offsets

    def _on_loss(self, places: list[Place], may_commit: bool) -> None:
        """Before partitions go: nothing more is begun, what is begun is waited for, what is finished is committed."""
        lost = [self._books[place] for place in places if place in self._books]
        for books in lost:
            books.is_lost = True
        for place in places:
            self._later.pop(place, None)
            self._paused.discard(place)
        if may_commit:
            self._await(lambda: all(books.outstanding == 0 for books in lost))
            self._commit(places, wait=True)
        for place in places:
            self._books.pop(place, None)

    def _drain(self) -> None:
        """At the end: what is begun is finished, what waits in queues is left for the next run."""
        for books in self._books.values():
            books.is_lost = True
        self._later.clear()
        self._await(lambda: self._in_flight == 0)
        self._commit(list(self._books), wait=True)

    def _await(self, is_done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + self._options.drain_timeout_s
        self._take_reports()
        while not is_done() and time.monotonic() < deadline_s:
            self._take_report(timeout_s=_POLL_S)
        if not is_done():
            LOGGER.warning(
                "handlers still run after %s s: their messages will be handed out again",
                self._options.drain_timeout_s,
            )


class Attempts:
    """One message through its handler: again, later, aside. Blocking; the asyncio twin is in aio.py."""

    def __init__(self, handler: Handler, engine: Engine, options: Options, outlet: Outlet) -> None:
        self._handler = handler
        self._engine = engine
        self._policy = options.policy
        self._outlet = outlet
        self._tracer = installed_tracer()

    def __call__(self, job: Job) -> None:
        """Sets `is_finished`, or `error`, or neither when the run ends while the message waits for another attempt."""
        attempt = 0
        while not job.tracker.is_lost or attempt == 0:
            attempt += 1
            try:
                with continued(self._tracer, dict(job.message.headers) if self._tracer else {}):
                    made = self._handler(job.message)
                if isinstance(made, Coroutine):
                    job.error = _unawaited(made)
                    return
                job.is_finished = True
                return
            except Exception as error:  # noqa: BLE001  # the application's: any of them is a failed attempt
                if not self._try_again(job, error, attempt):
                    return
            except BaseException as error:  # noqa: BLE001  # SystemExit and its kin end the run
                job.error = error
                return

    def _try_again(self, job: Job, error: Exception, attempt: int) -> bool:
        step = dead_letters.retry_step(job.message.headers)
        decision = self._policy.decide(error, attempt, step)
        if isinstance(decision, Again):
            self._engine.summary.retried += 1
            return not self._engine.stopping.wait(decision.delay_s)
        try:
            settle(decision, job, error, attempt, self._outlet, self._engine.summary)
        except Exception as failure:  # noqa: BLE001  # it could not be put aside: the run must end
            job.error = failure
        return False


def _unawaited(made: "Coroutine[Any, Any, object]") -> ConfigurationError:
    """A handler that only promises: its message is not handled, and must not be committed."""
    made.close()
    return ConfigurationError(
        f"the handler returned {made!r}, which nobody awaits",
        remedy="give the coroutine function itself: async def handle(message)",
    )


def settle(
    decision: Later | Aside | Stop,
    job: Job,
    error: Exception,
    attempt: int,
    outlet: Outlet,
    summary: Summary,
) -> None:
    """Puts a message off or aside, and waits until the broker has it; or says that the run must end."""
    message = job.message
    match decision:
        case Later(step, delay_s):
            outlet.put_off(message, error, attempt, step=step, delay_s=delay_s)
            summary.put_off += 1
        case Aside():
            outlet.put_aside(message, error, attempt)
            summary.dead_letters += 1
        case Stop():
            failed = ProcessingFailed(
                f"{message.topic}-{message.partition}@{message.offset} failed {attempt} times: "
                f"{type(error).__name__}: {error}"
            )
            failed.__cause__ = error
            job.error = failed
            return
    job.is_finished = True


def check_handler(handler: Any) -> None:
    if not callable(handler):
        raise ConfigurationError(
            f"handler={handler!r} cannot be called", remedy="give a function of one message"
        )


def run_on_threads(consumer: "Consumer", handler: Handler, options: Options) -> Summary:
    check_handler(handler)
    engine = Engine(consumer, options)
    with Outlet(consumer, options.dead_letter, options.retry_topics) as outlet:
        attempts = Attempts(handler, engine, options, outlet)
        pool = ThreadPool(
            options.workers,
            shares_queue=options.order == "none",
            handle=attempts,
            report=engine.report,
        )
        engine.run(pool)
    return engine.summary


def now_ms() -> int:
    """Wall time: it is compared with what producers wrote."""
    return time.time_ns() // 1_000_000
