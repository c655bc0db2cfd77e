"""The rule of `penstock.sdk.shelf` over random interleavings of poll, cancel, fail, rebalance, commit, run and close.

The fake cluster checks every commit. The machines check every message that is handed out: none is skipped, none comes
from a partition of another member, and none comes twice unless a call had to go back.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from random import Random
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from penstock import AsyncConsumer, Consumer
from penstock.sdk import aio, processing, reading
from penstock.sdk.client_thread import ClientThread
from penstock.sdk.errors import (
    Fenced,
    PenstockError,
    ProcessingFailed,
    TimedOut,
    TransactionAborted,
)
from penstock.sdk.exactly_once import Transaction
from penstock.sdk.message import Message, Place
from penstock.sdk.processing import Engine, Options
from penstock.sdk.workers import Job
from tests.unit.sdk.fake_cluster import (
    FINAL,
    RETRIABLE,
    TOPIC,
    Cluster,
    FakeClient,
    kafka_exception,
)

PARTITIONS = 3
places = st.sampled_from([(TOPIC, n) for n in range(PARTITIONS)])
troubles = st.sampled_from(
    ["time", "error", "retriable error", "crash", "report", "seek", "commit", "committed"]
)
moments = st.sampled_from(["poll", "consume"])
QUICK = settings(max_examples=100, stateful_step_count=40, deadline=None)


class World(RuleBasedStateMachine):
    """One consumer, what happens around it, and what its application knows."""

    auto_commits = True

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(PARTITIONS)
        self.cluster.ends |= dict.fromkeys(self.cluster.places, 5)
        self.patches: list[Any] = [
            mock.patch.object(reading, "time", self.cluster.clock),
            mock.patch.object(processing, "time", self.cluster.clock),
            mock.patch.object(reading, "connect", self._connect),
        ]
        for patch in self.patches:
            patch.start()
        self.in_hand: list[tuple[Place, int]] = []
        self.expected: dict[Place, int] = {}
        self.may_repeat: set[Place] = set()
        self.silent: set[Place] = set()
        self.open(range(PARTITIONS))

    def teardown(self) -> None:
        try:
            self.finish()
        finally:
            for patch in self.patches:
                patch.stop()

    def _connect(self, _: object, properties: dict[str, Any]) -> FakeClient:
        self.client = FakeClient(self.cluster, properties)
        return self.client

    def make(self) -> Any:
        return Consumer("b:1", TOPIC, **self.arguments())

    def arguments(self) -> dict[str, Any]:
        return {
            "group_id": "g",
            "group_protocol": "consumer",
            "enable_auto_commit": self.auto_commits,
            "max_poll_records": 4,
            "auto_commit_interval_ms": 1000,
        }

    def open(self, indexes: Sequence[int]) -> None:
        self.consumer = self.make()
        self.in_hand.clear()
        self.silent.clear()
        self.expected.clear()
        self.give([(TOPIC, index) for index in indexes])

    def finish(self) -> None:
        """Whoever comes last gets all the rest: every message is finished by somebody."""
        self.close(is_crash=True)
        self.open(range(PARTITIONS))
        self.read_all()
        self.close(is_crash=False)
        for place in self.cluster.places:
            assert self.cluster.committed.get(place, 0) == self.cluster.ends[place]

    def read_all(self) -> None:
        for _ in range(1000):
            if not self.client.has_messages() and self.consumer._shelf.is_empty:
                return
            self.poll()
        raise AssertionError("it does not come to the end")

    # The application ---------------------------------------------------------------------------

    def hand_out(self, message: Message) -> None:
        place, offset = message.place, message.offset
        assert place in self.client.positions, f"{place} belongs to another member"
        assert place not in self.silent, f"{place} is paused"
        assert offset <= self.expected[place], f"{place}: skipped {self.expected[place]}"
        assert offset == self.expected[place] or place in self.may_repeat, "repeated for nothing"
        self.may_repeat.discard(place)
        self.expected[place] = offset + 1
        self.in_hand.append((place, offset))

    def ask(self) -> None:
        """The application asks for the next message: it has finished those before."""
        for place, offset in self.in_hand:
            self.cluster.finished[place].add(offset)
        self.in_hand.clear()

    # Around it ---------------------------------------------------------------------------------

    @rule(place=places, count=st.integers(1, 6))
    def append(self, place: Place, count: int) -> None:
        self.cluster.ends[place] += count

    def give(self, given: list[Place]) -> None:
        for place in given:
            if place not in self.client.positions:
                self.expected[place] = self.cluster.committed.get(place, 0)
                self.may_repeat.discard(place)
                self.silent.discard(place)
        self.client.give([place for place in given if place not in self.client.positions])

    def take_away(self, place: Place, is_lost: bool) -> None:
        if place in self.client.positions:
            self.client.take_away([place], is_lost=is_lost)
            if is_lost:
                self.in_hand = [one for one in self.in_hand if one[0] != place]

    @rule(place=places, is_lost=st.booleans(), moment=moments)
    def rebalance(self, place: Place, is_lost: bool, moment: str) -> None:
        """It is served inside of a call of the client, as librdkafka does it."""

        def move() -> None:
            if place in self.client.positions:
                self.take_away(place, is_lost)
            else:
                self.give([place])

        (self.client.on_poll if moment == "poll" else self.client.on_consume).append(move)

    @rule(place=places)
    def other_member_reads(self, place: Place) -> None:
        if place not in self.client.positions:
            self.cluster.other_member_reads(place)

    @rule(kind=troubles, moment=moments, behind=st.integers(0, 3))
    def trouble(self, kind: str, moment: str, behind: int) -> None:
        """Time passes; librdkafka reports an error behind some messages; the next fetch or call fails."""
        match kind:
            case "time":
                self.cluster.clock.now_s += 2.0
            case "error" | "retriable error":
                self.client.events.append(FINAL if kind == "error" else RETRIABLE)
                self.client.events_behind = behind
            case "crash":
                self.crash(moment)
            case "report":
                self.client.refusal = KafkaError(KafkaError._TIMED_OUT)
            case _:
                self.client.failures[kind] = kafka_exception()

    def crash(self, moment: str) -> None:
        """A callback fails or Ctrl-C comes: librdkafka has handed messages over, and nobody gets them."""
        self.client.failures[moment] = KeyboardInterrupt()

    def settle_crash(self) -> None:
        self.may_repeat.update(self.client.positions)

    # Calls that each machine has ---------------------------------------------------------------

    def poll(self) -> None:
        raise NotImplementedError

    def close(self, is_crash: bool) -> None:
        raise NotImplementedError

    @rule(is_crash=st.booleans(), first=st.integers(0, PARTITIONS - 1))
    def restart(self, is_crash: bool, first: int) -> None:
        self.close(is_crash)
        self.open(range(first, PARTITIONS))


class SyncWorld(World):
    """Consumer: poll, iterate, seek, pause."""

    def close(self, is_crash: bool) -> None:
        self.client.failures.clear()
        if not is_crash:
            self.ask()
        error = RuntimeError() if is_crash else None
        self.consumer.__exit__(None if error is None else RuntimeError, error, None)

    def call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KeyboardInterrupt:
            self.settle_crash()
        except PenstockError:
            pass
        return None

    @rule()
    def poll(self) -> None:
        self.ask()
        message = self.call(lambda: self.consumer.poll(0))
        if message is not None:
            self.hand_out(message)

    @rule(limit=st.integers(1, 5))
    def poll_many(self, limit: int) -> None:
        self.ask()
        for message in self.call(lambda: self.consumer.poll_many(limit, 0)) or []:
            self.hand_out(message)

    @rule()
    def iterate(self) -> None:
        if self.client.has_messages() and not (self.client.on_poll or self.client.on_consume):
            self.ask()
            message = self.call(lambda: next(iter(self.consumer)))
            if message is not None:
                self.hand_out(message)

    @rule(place=places)
    def pause_or_resume(self, place: Place) -> None:
        if place not in self.client.positions:
            return
        if place in self.silent:
            self.consumer.resume([place])
            self.silent.discard(place)
        else:
            self.consumer.pause([place])
            self.silent.add(place)


class SyncMachine(SyncWorld):
    """With commits of its own, seeks, and `run`."""

    @rule(asynchronous=st.booleans(), fails=st.booleans())
    def commit(self, asynchronous: bool, fails: bool) -> None:
        if fails:
            self.client.failures["commit"] = kafka_exception()
        before = {place: set(offsets) for place, offsets in self.cluster.finished.items()}
        in_hand = list(self.in_hand)
        self.ask()
        try:
            self.consumer.commit(asynchronous=asynchronous)
        except PenstockError:  # as if it had not been called: they are still in hand
            self.cluster.finished = defaultdict(set, before)
            self.in_hand = in_hand

    @rule(place=places, share=st.floats(0, 1), fails=st.booleans())
    def seek(self, place: Place, share: float, fails: bool) -> None:
        if place not in self.client.positions:
            return
        if fails:
            self.client.failures["seek"] = kafka_exception()
        offset = int(self.cluster.ends[place] * share)
        try:
            self.consumer.seek(*place, offset)
        except PenstockError:
            return
        self.cluster.finished[place].update(range(offset))  # the application wants it so
        self.in_hand = [one for one in self.in_hand if one[0] != place]
        self.expected[place] = offset
        self.may_repeat.discard(place)

    @rule(polls=st.integers(1, 4), fails=st.integers(0, 12), seed=st.integers(0, 99))
    def run_handlers(self, polls: int, fails: int, seed: int) -> None:
        """Handlers end in any order; one may fail, and then the run ends."""
        self.ask()
        options = Options.of(
            [TOPIC],
            workers=1,
            order="none",
            retries=0,
            backoff=0,
            dead_letter=None,
            retry_topics=None,
            max_in_flight=5,
            drain_timeout_s=1,
        )
        engine = Engine(self.consumer, options)
        calls = self.client.on_poll
        while len(calls) < polls:
            calls.append(lambda: None)
        calls.append(engine.end)
        pool = InlinePool(self, engine, fails, Random(seed))
        with suppress(ProcessingFailed):
            self.call_run(lambda: engine.run(pool))
        calls.clear()
        assert not pool.problem, pool.problem
        assert self.client.paused == self.silent & set(self.client.positions)
        for place in self.client.positions:
            self.expected[place] = min({self.expected[place], *pool.unfinished[place]})

    def call_run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except ProcessingFailed:
            raise
        except (KeyboardInterrupt, PenstockError):
            pass


class InlinePool:
    """Handles at once, in a drawn order. Message number `fails` fails."""

    def __init__(self, world: World, engine: Engine, fails: int, random: Random) -> None:
        self.world = world
        self.engine = engine
        self.left = fails
        self.random = random
        self.problem = ""
        self.unfinished: dict[Place, set[int]] = defaultdict(set)

    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        world = self.world
        for _, job in jobs:
            place, offset = job.message.place, job.message.offset
            if place not in world.client.positions:
                self.problem = f"{place} belongs to another member"
            elif offset > world.expected[place]:
                self.problem = f"{place}: skipped {world.expected[place]}"
            world.expected[place] = max(world.expected[place], offset + 1)
            self.unfinished[place].add(offset)
        for _, job in self.random.sample(jobs, len(jobs)):
            self.left -= 1
            if self.left == 0:
                job.error = ProcessingFailed("the handler's")
            elif not job.tracker.is_lost and self.left > 0:
                job.is_finished = True
                world.cluster.finished[job.message.place].add(job.message.offset)
                self.unfinished[job.message.place].discard(job.message.offset)
            self.engine.report(job)

    def close(self) -> None:
        pass


class FakeProducer:
    """Transactions of a cluster: `fails` says where, and whether the coordinator has committed nevertheless."""

    transactional_id = "id"
    transaction_timeout_s = 60.0

    def __init__(self, cluster: Cluster, fails: str) -> None:
        self.cluster = cluster
        self.fails = fails
        self.offsets: list[Any] = []
        self.is_committed = False
        self.client = self

    def ensure_transactions(self, timeout_s: float) -> None:
        pass

    def begin_transaction(self) -> None:
        pass

    def exclusively(self, call: Callable[[], object], what: str) -> None:  # noqa: ARG002
        call()

    def send_offsets_to_transaction(self, offsets: list[Any], *_: object) -> None:
        if self.fails == "offsets":
            raise TransactionAborted("offsets")
        self.offsets = offsets

    def commit_transaction(self, _: float) -> None:
        if self.fails == "aborted":
            raise TransactionAborted("commit")
        if self.fails == "fenced":
            raise Fenced("fenced")
        if self.fails != "lost":
            for one in self.offsets:
                self.cluster.commit((one.topic, one.partition), one.offset)
            self.is_committed = True
        if self.fails in ("lost", "late"):
            raise TimedOut("commit")

    def abort_transaction(self, _: float) -> None:
        if self.fails in ("lost", "late"):
            raise KafkaException(KafkaError(KafkaError._STATE))


class TransactionMachine(SyncWorld):
    """What is handed out is processed in transactions, each message in exactly one that is committed."""

    auto_commits = False

    def __init__(self) -> None:
        self.processed: dict[Place, set[int]] = defaultdict(set)
        self.begun: list[tuple[Place, int]] = []  # handed out since the last commit
        super().__init__()

    def ask(self) -> None:
        """Only a transaction finishes messages."""

    def open(self, indexes: Sequence[int]) -> None:
        self.begun.clear()
        super().open(indexes)

    def finish(self) -> None:
        self.close(is_crash=True)
        self.open(range(PARTITIONS))
        self.read_all()
        self.transact("")
        for place in self.cluster.places:
            assert self.processed[place] == set(range(self.cluster.ends[place]))

    def hand_out(self, message: Message) -> None:
        super().hand_out(message)
        self.begun.append((message.place, message.offset))

    def take_away(self, place: Place, is_lost: bool) -> None:
        if is_lost and place in self.client.positions:
            self._process_rest(place)
        super().take_away(place, is_lost)

    @rule(place=places)
    def other_member_reads(self, place: Place) -> None:
        if place not in self.client.positions:
            self._process_rest(place)
            super().other_member_reads(place)

    def _process_rest(self, place: Place) -> None:
        self._process(
            [
                (place, n)
                for n in range(self.cluster.committed.get(place, 0), self.cluster.ends[place])
            ]
        )

    def _process(self, messages: list[tuple[Place, int]]) -> None:
        for place, offset in messages:
            assert offset not in self.processed[place], f"{place}@{offset} is processed twice"
            self.processed[place].add(offset)
            self.cluster.finished[place].add(offset)

    @rule(fails=st.sampled_from(["", "", "body", "offsets", "aborted", "fenced", "lost", "late"]))
    def transact(self, fails: str) -> None:
        producer: Any = FakeProducer(self.cluster, fails)
        before = {place: set(offsets) for place, offsets in self.cluster.finished.items()}
        for place, offset in self.begun:
            self.cluster.finished[place].add(offset)
        self.client.consumer_group_metadata = lambda: None  # type: ignore[attr-defined]
        try:
            with Transaction(producer, self.consumer):
                if fails == "body":
                    raise ValueError(fails)
        except (ValueError, PenstockError, KafkaException):
            pass
        self.cluster.finished = defaultdict(set, before)
        if producer.is_committed:
            self._process(self.begun)
        else:
            for place in self.client.positions:
                self.expected[place] = min(
                    self.expected[place], *(n for p, n in self.begun if p == place), 10**9
                )
        self.begun.clear()


class ManualThread(ClientThread):
    """Runs a call when the test says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.queue: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.queue.append((future, lambda: fn(*args, **kwargs)))
        self.unfinished.add(future)
        future.add_done_callback(self._finish)
        return future

    def run_next(self) -> None:
        future, call = self.queue.popleft()
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - as an executor does
            future.set_exception(error)
        else:
            future.set_result(result)


class AsyncMachine(World):
    """AsyncConsumer: its loop, its thread and cancellations in any order."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.task: asyncio.Task[Any] | None = None
        super().__init__()

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.loop.close()

    def make(self) -> Any:
        with mock.patch.object(aio, "ClientThread", ManualThread):
            twin = AsyncConsumer("b:1", TOPIC, **self.arguments())
        self.thread: Any = twin._thread
        self.twin = twin
        return twin.consumer

    def close(self, is_crash: bool) -> None:
        self.cancel()
        self.client.failures.clear()
        self.client.on_poll.clear()
        self.client.on_consume.clear()
        if not is_crash:
            self.ask()
        error = RuntimeError() if is_crash else None
        closing = self.loop.create_task(
            self.twin.__aexit__(None if error is None else RuntimeError, error, None)
        )
        while not closing.done():
            self.work()
        closing.result()

    def poll(self) -> None:
        self.begin(lambda: self.twin.poll(0))
        while self.task is not None:
            self.work()

    def work(self) -> None:
        self.turn()
        if self.thread.queue:
            self.thread.run_next()
        self.turn()

    def begin(self, call: Callable[[], Awaitable[Any]]) -> None:
        if self.task is None:
            self.ask()

            async def run() -> Any:
                return await call()

            self.task = self.loop.create_task(run())

    @rule(limit=st.integers(1, 5))
    def begin_poll_many(self, limit: int) -> None:
        self.begin(lambda: self.twin.poll_many(limit, 1e9))

    @rule()
    def begin_poll(self) -> None:
        self.begin(self.twin.poll)

    @rule()
    def begin_iteration(self) -> None:
        self.begin(lambda: self.twin.__aiter__().__anext__())

    @rule()
    def begin_commit(self) -> None:
        self.begin(self.twin.commit)

    @rule()
    def turn(self) -> None:
        """One turn of the loop; a task that has ended hands its messages to the application."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        task = self.task
        if task is None or not task.done():
            return
        self.task = None
        if task.cancelled():
            return
        if isinstance(task.exception(), KeyboardInterrupt):
            self.settle_crash()
        if task.exception() is None:
            result = task.result()
            for message in result if isinstance(result, list) else [result]:
                if message is not None:
                    self.hand_out(message)

    @rule()
    def thread_works(self) -> None:
        if self.thread.queue:
            self.thread.run_next()

    @rule(turns=st.integers(1, 4), cancels=st.booleans(), moment=moments)
    def loop_turns_inside_of_a_call(self, turns: int, cancels: bool, moment: str) -> None:
        """While the thread waits in librdkafka the loop goes on, and may cancel and begin anew."""

        def go_on() -> None:
            if cancels:
                self.cancel()
                self.begin_poll()
            for _ in range(turns):
                self.turn()

        (self.client.on_poll if moment == "poll" else self.client.on_consume).append(go_on)

    @precondition(lambda self: self.task is not None)
    @rule()
    def cancel(self) -> None:
        while self.task is not None:
            self.task.cancel()
            self.turn()

    def crash(self, moment: str) -> None:
        """A callback of the application fails."""
        self.client.failures[moment] = LookupError()
        self.settle_crash()  # the error may come to the task after the next


for _machine in (SyncMachine, TransactionMachine, AsyncMachine):
    _machine.TestCase.settings = QUICK
TestSync = pytest.mark.timeout(60)(SyncMachine.TestCase)
TestTransactions = pytest.mark.timeout(60)(TransactionMachine.TestCase)
TestAsync = pytest.mark.timeout(60)(AsyncMachine.TestCase)
