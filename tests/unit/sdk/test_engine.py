"""The engine of `run` without a broker: what waits for its time is neither forgotten nor handled twice."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.sdk import dead_letters, processing
from penstock.sdk.message import Message, Place
from penstock.sdk.processing import Engine, Options
from penstock.sdk.workers import Job

PLACE = ("orders.retry.1", 0)


class Raw:
    """As librdkafka's message."""

    def __init__(self, offset: int, due_ms: int | None, place: Place = PLACE) -> None:
        self.offset = lambda: offset
        self.topic = lambda: place[0]
        self.partition = lambda: place[1]
        self.key = lambda: None
        due = [] if due_ms is None else [(dead_letters.RETRY_AT, str(due_ms).encode())]
        self.headers = lambda: due


class Pool:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        self.offsets += [job.message.offset for _, job in jobs]

    def close(self) -> None:
        pass


class Paused:
    """A consumer whose partitions are paused and resumed. It keeps the messages of paused ones."""

    def __init__(self, *raws: Raw) -> None:
        self.calls: list[str] = []
        self.commit_interval_s = 5.0
        self.paused: set[Place] = set()
        self.messages = [Message(raw, (None, None)) for raw in raws]

    def pause(self, places: Sequence[Place]) -> None:
        self.calls.append(f"pause {places}")
        self.paused.update(places)

    def resume(self, places: Sequence[Place]) -> None:
        self.calls.append(f"resume {places}")
        self.paused.difference_update(places)

    def poll(self, timeout_s: float) -> Message | None:  # noqa: ARG002 - as Consumer has it
        return self.take_more()

    def take_more(self) -> Message | None:
        for index, message in enumerate(self.messages):
            if message.place not in self.paused:
                return self.messages.pop(index)
        return None


def engine_of(consumer: Any, *, max_in_flight: int = 10) -> tuple[Engine, Pool]:
    options = Options.of(
        ["orders"],
        workers=1,
        order="none",
        retries=0,
        backoff=0,
        dead_letter=None,
        retry_topics=(0.02,),
        max_in_flight=max_in_flight,
        drain_timeout_s=1,
    )
    engine = Engine(consumer, options)
    engine._pool = pool = Pool()
    return engine, pool


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now_ms=100)
    monkeypatch.setattr(processing, "now_ms", lambda: clock.now_ms)
    return clock


def test_a_retry_partition_waits_for_its_first_message_and_no_longer_than_the_delay(
    clock: SimpleNamespace,
) -> None:
    consumer = Paused(Raw(0, 110), Raw(1, 105), Raw(2, 10_000))
    engine, pool = engine_of(consumer)
    for clock.now_ms, handled in (
        (100, []),
        (109, []),
        (110, [0, 1]),
        (129, [0, 1]),
        (130, [0, 1, 2]),
    ):
        engine._dispatch_due()
        engine._take_in(10, 0.0)
        assert pool.offsets == handled
    assert consumer.calls == [f"pause {[PLACE]}", f"resume {[PLACE]}"] * 2


def test_messages_that_wait_in_retry_topics_take_no_room_from_others(
    clock: SimpleNamespace,
) -> None:
    clock.now_ms = 100
    waiting = [Raw(n, 120, (f"orders.retry.{n % 3}", 0)) for n in range(30)]
    ready = [Raw(100 + n, None, ("orders", 0)) for n in range(5)]
    engine, pool = engine_of(Paused(*waiting, *ready), max_in_flight=5)
    engine._step()
    assert pool.offsets == [100, 101, 102, 103, 104]
    assert len(engine._later) == 3
