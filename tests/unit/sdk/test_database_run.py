"""`run_in_database` without a broker: whatever fails, each message is in the database once, and the database decides."""

import sqlite3
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from penstock import Consumer
from penstock.sdk import reading
from penstock.sdk.errors import NoOffset
from penstock.sdk.message import Message
from tests.unit.sdk.fake_cluster import TOPIC, Cluster, FakeClient

PLACE = (TOPIC, 0)


class Scene:
    """One partition with messages, one database, and consumers of one group that come and go."""

    def __init__(self, messages: int) -> None:
        self.cluster = Cluster(1)
        self.cluster.ends[PLACE] = messages
        self.cluster.finished[PLACE].update(range(1000))  # the database says what is finished
        self.connection = sqlite3.connect(":memory:")
        self.connection.execute("CREATE TABLE results (number INTEGER)")

    def consumer(self, **settings: Any) -> Consumer:
        def connect(_: object, properties: dict[str, Any]) -> FakeClient:
            self.client = FakeClient(self.cluster, properties)
            return self.client

        with mock.patch.object(reading, "connect", connect):
            made = Consumer(
                "b:1",
                TOPIC,
                group_id="g",
                group_protocol="consumer",
                enable_auto_commit=False,
                **settings,
            )
        self.client.give([PLACE])
        return made

    def run(self, consumer: Consumer, *, fails_at: int | None = None, last: int) -> None:
        def insert(cursor: Any, message: Message) -> None:
            if message.offset == fails_at:
                raise LookupError
            cursor.execute("INSERT INTO results VALUES (?)", (message.offset,))
            if message.offset == last:
                consumer.interrupt(True)

        try:
            consumer.run_in_database(self.connection, insert, batch=3)
        finally:
            consumer.interrupt(False)

    @property
    def numbers(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT number FROM results")]


@pytest.fixture(autouse=True)
def clock() -> Iterator[None]:
    with mock.patch.object(reading, "time", Cluster(0).clock):
        yield


@limits(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 19), max_size=5), st.booleans())
def test_each_message_is_in_the_database_once_whatever_fails(
    failures: list[int], starts_anew: bool
) -> None:
    scene = Scene(20)
    consumer = scene.consumer()
    for number in failures:
        if number >= len(scene.numbers):
            with pytest.raises(LookupError):
                scene.run(consumer, fails_at=number, last=19)
        if starts_anew:
            consumer.close()
            consumer = scene.consumer()
    if len(scene.numbers) < 20:
        scene.run(consumer, last=19)
    assert scene.numbers == list(range(20))


def test_after_a_failed_first_batch_poll_gets_it_again() -> None:
    scene = Scene(5)
    consumer = scene.consumer()
    with pytest.raises(LookupError):
        scene.run(consumer, fails_at=1, last=4)
    message = consumer.poll(0)
    assert message is not None
    assert message.offset == 0


def test_an_empty_database_begins_by_auto_offset_reset_and_not_at_the_groups_offset() -> None:
    scene = Scene(8)
    scene.cluster.committed[PLACE] = 6
    scene.run(scene.consumer(), last=7)
    assert scene.numbers == list(range(8))


def test_latest_is_decided_once_also_when_the_first_batch_fails() -> None:
    scene = Scene(8)
    consumer = scene.consumer(auto_offset_reset="latest")
    scene.client.on_poll.append(lambda: scene.cluster.ends.update({PLACE: 12}))
    with pytest.raises(LookupError):
        scene.run(consumer, fails_at=9, last=11)
    consumer.close()
    scene.run(scene.consumer(auto_offset_reset="latest"), last=11)
    assert scene.numbers == [8, 9, 10, 11]


def test_without_a_reset_an_empty_database_is_an_error() -> None:
    scene = Scene(1)
    with pytest.raises(NoOffset, match="t-0 has no offset"):
        scene.run(scene.consumer(auto_offset_reset="none"), last=0)
