"""`transform` and transactions without a broker: time-outs are told from fencing, and a consumer always goes back."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from penstock.sdk import aio, exactly_once
from penstock.sdk.aio import AsyncProducer
from penstock.sdk.errors import Fenced, TimedOut, TransactionTimedOut
from penstock.sdk.exactly_once import Transaction, TransformRun
from tests.unit.sdk.fake_cluster import Clock

TIMEOUT_S = 9.0


class FakeConsumer:
    """Ten messages; `rewind` goes back to the last commit."""

    auto_commits = False
    client = SimpleNamespace(consumer_group_metadata=lambda: None)

    def __init__(self, messages: int = 10) -> None:
        self.messages = messages
        self.position = self.committed = 0
        self.rewound = self.doubts = 0

    @property
    def is_stopped(self) -> bool:
        return self.committed == self.messages

    def refuse_parts(self) -> None:
        pass

    def take_more(self) -> Any:
        if self.position == self.messages:
            return None
        self.position += 1
        return SimpleNamespace(offset=self.position - 1, raw_key=None)

    def poll(self, _: float) -> Any:
        return self.take_more()

    def handed_out(self) -> list[Any]:
        return [self.position]

    def committed_elsewhere(self) -> None:
        self.committed = self.position

    def rewind(self) -> None:
        self.rewound += 1
        self.position = self.committed

    def rewind_in_doubt(self) -> None:
        self.doubts += 1
        self.rewind()


class FakeProducer:
    """A broker fences it when its transaction is open for too long."""

    transactional_id = "id"
    transaction_timeout_s = TIMEOUT_S

    def __init__(self, clock: Clock, failure: BaseException | None = None) -> None:
        self.clock = clock
        self.failure = failure
        self.client = self
        self.sent: list[int] = []
        self.committed: list[list[int]] = []
        self.aborted = 0
        self.closed: list[float | None] = []
        self.is_open = False

    def ensure_transactions(self, _: float) -> None:
        pass

    def begin_transaction(self) -> None:
        assert not self.is_open, "the last one is not ended"
        self.is_open = True
        self.begun_s = self.clock.now_s
        self.sent = []

    def exclusively(self, call: Callable[[], object], _: str) -> None:
        call()

    def transaction(self, consumer: Any = None) -> Transaction:
        return Transaction(self, consumer)  # type: ignore[arg-type]  # as far as it is needed

    def send(self, _: str, value: int, __: object) -> None:
        self.sent.append(value)

    def send_offsets_to_transaction(self, *_: object) -> None:
        pass

    def commit_transaction(self, _: float) -> None:
        if self.failure is not None:
            raise self.failure
        if self.clock.now_s - self.begun_s >= TIMEOUT_S:
            raise Fenced("the broker's epoch is newer")
        self.is_open = False
        self.committed.append(self.sent)

    def abort_transaction(self, _: float) -> None:
        if self.failure is not None:
            raise LookupError("too late for an abort")
        self.is_open = False
        self.aborted += 1

    def close(self, timeout_s: float | None = None) -> None:
        self.closed.append(timeout_s)


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    with mock.patch.object(exactly_once, "time", clock):
        yield clock


def run_of(
    clock: Clock, consumer: FakeConsumer, seconds: Callable[[int], float]
) -> tuple[TransformRun, list[FakeProducer]]:
    made: list[FakeProducer] = []

    def make() -> Any:
        made.append(FakeProducer(clock))
        return made[-1]

    def fn(message: Any) -> int:
        clock.now_s += seconds(len(made))
        return int(message.offset)

    chosen: Any = consumer
    return TransformRun(chosen, make, fn, "to"), made


def test_a_slow_function_makes_smaller_transactions(clock: Clock) -> None:
    consumer = FakeConsumer()
    run, made = run_of(clock, consumer, lambda _: 1.0)
    assert run.run(batch=500) == 10
    (producer,) = made
    assert producer.committed == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_an_overdue_transaction_is_repeated_with_a_new_producer(clock: Clock) -> None:
    consumer = FakeConsumer()
    run, made = run_of(clock, consumer, lambda producers: 20.0 if producers == 1 else 0.0)
    assert run.run(batch=4) == 10
    first, second = made
    assert (first.committed, first.closed[0]) == ([], 0.0)
    assert second.committed == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_function_that_is_always_too_slow_ends_the_run_with_the_numbers(clock: Clock) -> None:
    consumer = FakeConsumer()
    run, made = run_of(clock, consumer, lambda _: 20.0)
    with pytest.raises(
        TransactionTimedOut, match=r"open for 20\.0 s; transaction_timeout_ms is 9000"
    ):
        run.run(batch=4)
    assert len(made) == 3
    assert consumer.position == 0


def commit_with(clock: Clock, consumer: FakeConsumer, failure: BaseException) -> None:
    reader: Any = consumer
    consumer.take_more()
    with FakeProducer(clock, failure).transaction(reader):
        pass


def test_a_newer_instance_is_not_taken_for_a_time_out(clock: Clock) -> None:
    consumer = FakeConsumer()
    with pytest.raises(Fenced):
        commit_with(clock, consumer, Fenced("newer"))
    assert consumer.position == 0


def test_a_commit_without_an_outcome_asks_the_group_also_when_the_abort_fails(clock: Clock) -> None:
    consumer = FakeConsumer()
    with pytest.raises(LookupError):
        commit_with(clock, consumer, TimedOut("commit"))
    assert (consumer.position, consumer.doubts) == (0, 1)


def test_a_transaction_that_is_cancelled_while_it_begins_is_aborted(clock: Clock) -> None:
    async def main() -> None:
        producer = FakeProducer(clock)
        with mock.patch.object(aio, "Producer", return_value=producer):
            producer.metrics = producer.client_id = None  # type: ignore[attr-defined]
            twin = AsyncProducer("b:1")
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()
        begin = producer.begin_transaction
        go_on = loop.create_future()

        def slowly() -> None:
            loop.call_soon_threadsafe(entered.set)
            asyncio.run_coroutine_threadsafe(asyncio.wait_for(go_on, 30), loop).result()
            begin()

        producer.begin_transaction = slowly  # type: ignore[method-assign]

        async def use() -> None:
            async with twin.transaction():
                raise AssertionError("it is cancelled before")

        async with asyncio.TaskGroup() as tasks:
            using = tasks.create_task(use())
            await entered.wait()
            using.cancel()
            await asyncio.wait({using})
            go_on.set_result(None)
        producer.begin_transaction = begin  # type: ignore[method-assign]
        async with twin.transaction():
            pass
        assert (producer.aborted, producer.committed) == (1, [[]])
        await twin.close()

    asyncio.run(main())
