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

    def __init__(self, offset: int, due_ms: int) -> None:
        self.offset = lambda: offset
        self.topic = lambda: PLACE[0]
        self.partition = lambda: PLACE[1]
        self.key = lambda: None
        self.headers = lambda: [(dead_letters.RETRY_AT, str(due_ms).encode())]


class Pool:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    def submit(self, jobs: Sequence[tuple[int, Job]]) -> None:
        self.offsets += [job.message.offset for _, job in jobs]

    def close(self) -> None:
        pass


class Paused:
    """A consumer whose partitions are paused and resumed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.commit_interval_s = 5.0

    def pause(self, places: Sequence[Place]) -> None:
        self.calls.append(f"pause {places}")

    def resume(self, places: Sequence[Place]) -> None:
        self.calls.append(f"resume {places}")


def test_messages_become_due_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_ms=100)
    monkeypatch.setattr(processing, "now_ms", lambda: clock.now_ms)
    consumer: Any = Paused()
    options = Options.of(
        ["orders"],
        workers=1,
        order="none",
        retries=0,
        backoff=0,
        dead_letter=None,
        retry_topics=(1,),
        max_in_flight=10,
        drain_timeout_s=1,
    )
    engine = Engine(consumer, options)
    engine._pool = pool = Pool()
    engine._dispatch([Message(Raw(n, due), (None, None)) for n, due in enumerate((120, 110, 115))])
    assert pool.offsets == []
    for clock.now_ms, handled in ((110, [1]), (114, [1]), (119, [1, 2]), (120, [1, 2, 0])):
        engine._dispatch_due()
        assert pool.offsets == handled
    assert consumer.calls == [f"pause {[PLACE]}", f"resume {[PLACE]}"]
