"""Transactions, transforms and databases against a broker: all or nothing, and never twice."""

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Consumer, Producer
from penstock.sdk.database import Moved, OffsetTable, bind
from penstock.sdk.errors import ConfigurationError, Fenced
from penstock.sdk.exactly_once import Output
from penstock.sdk.message import Message
from penstock.testing import Broker
from tests.support import postgres
from tests.support.failures import DataError

pytestmark = pytest.mark.cluster
PATIENCE_S = 30.0


@pytest.fixture
def topic(broker: Broker) -> str:
    """Twenty messages."""
    name = broker.create_topic()
    with Producer(broker.bootstrap) as producer:
        for n in range(20):
            producer.send(name, str(n), f"k{n}")
    return name


def committed_values(broker: Broker, topic: str, count: int) -> list[bytes]:
    """All that a read_committed consumer sees: `count` messages, and no more behind them."""
    with Consumer(broker.bootstrap, topic, group_id=f"read-{topic}") as consumer:
        values: list[bytes] = []
        while len(values) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            values.append(message.value)
        assert consumer.poll(0.3) is None
        return values


def fail_inside(producer: Producer, topic: str, consumer: Consumer | None = None) -> None:
    with producer.transaction(consumer):
        producer.send(topic, b"never")
        raise RuntimeError("the application's")


def test_a_transaction_is_seen_whole_or_not_at_all(broker: Broker) -> None:
    topic = broker.create_topic()
    with Producer(broker.bootstrap, transactional_id=topic) as producer:
        with producer.transaction():
            producer.send(topic, b"a")
            producer.send(topic, b"b")
        with pytest.raises(RuntimeError, match="the application's"):
            fail_inside(producer, topic)
        with producer.transaction():
            producer.send(topic, b"c")
    assert committed_values(broker, topic, 3) == [b"a", b"b", b"c"]


def test_offsets_are_committed_with_the_transaction_and_read_again_after_an_abort(
    broker: Broker, topic: str
) -> None:
    out = broker.create_topic()
    with (
        Producer(broker.bootstrap, transactional_id=topic) as producer,
        Consumer(broker.bootstrap, topic, group_id=topic, enable_auto_commit=False) as consumer,
    ):
        first = consumer.poll_many(5, PATIENCE_S)
        with pytest.raises(RuntimeError):
            fail_inside(producer, out, consumer)
        again = consumer.poll_many(5, PATIENCE_S)
        assert [one.offset for one in again] == [one.offset for one in first]
        with producer.transaction() as transaction:
            producer.send(out, b"done")
            transaction.send_offsets(consumer)
        with pytest.raises(RuntimeError):
            fail_inside(producer, out, consumer)
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.offset == len(again)
    assert committed_values(broker, out, 1) == [b"done"]


def test_an_older_instance_is_fenced(broker: Broker) -> None:
    topic = broker.create_topic()
    old = Producer(broker.bootstrap, transactional_id=topic)
    with old.transaction():
        old.send(topic, b"old")
    with Producer(broker.bootstrap, transactional_id=topic) as new:
        with new.transaction():
            new.send(topic, b"new")

        def go_on() -> None:
            with old.transaction():
                old.send(topic, b"zombie")

        with pytest.raises(Fenced):
            go_on()
    old.close(0.0)
    assert committed_values(broker, topic, 2) == [b"old", b"new"]


def test_what_cannot_work_is_refused_with_the_remedy(broker: Broker, topic: str) -> None:
    with (
        Producer(broker.bootstrap) as plain,
        pytest.raises(ConfigurationError, match="no transactional_id"),
    ):
        plain.transaction()
    with (
        Producer(broker.bootstrap, transactional_id="refused") as producer,
        Consumer(broker.bootstrap, topic, group_id="refused") as consumer,
    ):
        with pytest.raises(ConfigurationError, match="enable_auto_commit=False"):
            producer.transaction(consumer)
        with pytest.raises(ConfigurationError, match="enable_auto_commit=False"):
            consumer.run_in_database(sqlite3.connect(":memory:"), print)


def test_a_transform_writes_each_result_once(broker: Broker, topic: str) -> None:
    out, other = broker.create_topic(), broker.create_topic()
    with Consumer(broker.bootstrap, topic, group_id=topic, enable_auto_commit=False) as consumer:

        def fn(message: Message) -> Any:
            number = int(message.value)
            if number == 19:
                consumer.stop()
            match number % 4:
                case 0:
                    return None
                case 1:
                    return f"{number}"
                case 2:
                    return [f"{number}", Output("aside", key="k", topic=other)]
                case _:
                    return Output(f"{number}", headers={"a": b"b"})

        assert consumer.transform(fn, to=out, batch=6) == 20
    assert committed_values(broker, out, 15) == [str(n).encode() for n in range(20) if n % 4]
    assert committed_values(broker, other, 5) == [b"aside"] * 5


def test_exactly_once_refuses_parts_of_split_messages(broker: Broker) -> None:
    topic = broker.create_topic()
    with Producer(broker.bootstrap, split_large=True, max_request_size=2000) as producer:
        producer.send(topic, bytes(5000))
    with (
        Consumer(broker.bootstrap, topic, group_id=topic, enable_auto_commit=False) as consumer,
        pytest.raises(ConfigurationError, match="is a part of a split message"),
    ):
        consumer.transform(lambda message: message.value, to="nowhere")


@pytest.fixture(params=["sqlite", "postgresql"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        yield lambda: sqlite3.connect(tmp_path / "results.sqlite", timeout=PATIENCE_S)
        return
    reason = postgres.missing()
    if reason is not None:
        pytest.skip(reason)
    import psycopg

    with postgres.running() as address:
        yield lambda: psycopg.connect(address)


def test_results_and_offsets_are_in_the_database_together(
    broker: Broker, topic: str, connect: Any
) -> None:
    connection = connect()
    connection.cursor().execute("CREATE TABLE results (number INTEGER)")
    connection.commit()
    crash_at = [7]

    def run() -> int:
        with Consumer(
            broker.bootstrap, topic, group_id=topic, enable_auto_commit=False
        ) as consumer:

            def handler(cursor: Any, message: Message) -> None:
                number = int(message.value)
                cursor.execute(f"INSERT INTO results VALUES ({number})")
                if number in crash_at:
                    crash_at.clear()
                    raise RuntimeError("the handler's")
                if number == 19:
                    consumer.stop()

            return consumer.run_in_database(connection, handler, batch=5)

    with pytest.raises(RuntimeError, match="the handler's"):
        run()
    assert run() > 0
    cursor = connection.cursor()
    cursor.execute("SELECT number FROM results ORDER BY number")
    assert [row[0] for row in cursor.fetchall()] == list(range(20))
    cursor.execute("SELECT next_offset FROM penstock_offsets")
    assert cursor.fetchall() == [(20,)]
    connection.close()


def test_a_first_batch_that_fails_is_repeated_and_a_new_database_begins_anew(
    broker: Broker, topic: str
) -> None:
    def run(fails: bool) -> list[int]:
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE results (number INTEGER)")
        numbers = [3] if fails else []
        with Consumer(
            broker.bootstrap, topic, group_id=topic, enable_auto_commit=False
        ) as consumer:

            def handler(cursor: Any, message: Message) -> None:
                number = int(message.value)
                if number in numbers:
                    raise RuntimeError(numbers.pop())
                cursor.execute("INSERT INTO results VALUES (?)", (number,))
                if number == 19:
                    consumer.stop()

            if fails:
                with pytest.raises(RuntimeError):
                    consumer.run_in_database(connection, handler, batch=5)
            consumer.run_in_database(connection, handler, batch=5)
        found = [row[0] for row in connection.execute("SELECT number FROM results")]
        connection.close()
        return found

    for fails in (True, False):  # the second run has a new database, and the group's old offsets
        if (found := run(fails)) != list(range(20)):
            raise DataError(f"not each message once: {found}")


def test_of_two_who_believe_they_own_a_partition_one_is_rolled_back(connect: Any) -> None:
    one, two = connect(), connect()
    table = OffsetTable(one)
    cursor = one.cursor()
    table.create(cursor)
    place = ("t", 0)
    assert table.load(cursor, "g", [place]) == {place: -1}
    one.commit()
    assert table.load(two.cursor(), "g", [place]) == {place: -1}
    two.commit()
    table.move(cursor, "g", place, -1, 10)
    outcome: list[BaseException] = []

    def zombie() -> None:
        try:
            OffsetTable(two).move(two.cursor(), "g", place, -1, 5)
        except Moved as moved:
            outcome.append(moved)
        two.rollback()

    connection_thread = threading.Thread(target=zombie)
    if "sqlite" in type(one).__module__:  # whose connections stay on their thread
        one.commit()
        zombie()
    else:
        connection_thread.start()
        one.commit()
        connection_thread.join()
    assert [type(error) for error in outcome] == [Moved]
    assert table.load(one.cursor(), "g", [place]) == {place: 10}
    one.close()
    two.close()


def test_a_partition_that_was_read_before_goes_on_where_the_database_says(
    broker: Broker, topic: str
) -> None:
    connection = sqlite3.connect(":memory:")
    table = OffsetTable(connection)
    cursor = connection.cursor()
    table.create(cursor)
    table.load(cursor, topic, [(topic, 0)])
    table.move(cursor, topic, (topic, 0), -1, 15)
    connection.commit()
    seen: list[int] = []
    with Consumer(broker.bootstrap, topic, group_id=topic, enable_auto_commit=False) as consumer:
        assert consumer.poll(PATIENCE_S)  # it has its partition before it is told of the database

        def handler(_: Any, message: Message) -> None:
            seen.append(message.offset)
            if message.offset == 19:
                consumer.stop()

        consumer.run_in_database(connection, handler)
    connection.close()
    assert seen == [15, 16, 17, 18, 19]


@pytest.mark.parametrize(
    ("style", "text"),
    [("qmark", "?, ?"), ("format", "%s, %s"), ("numeric", ":1, :2"), ("named", ":p1, :p2")],
)
def test_every_paramstyle_of_db_api_is_spoken(style: str, text: str) -> None:
    assert bind(style, "{}, {}", (1, 2))[0] == text


def test_a_driver_that_does_not_tell_its_paramstyle_is_asked_for_it() -> None:
    with pytest.raises(ConfigurationError, match="give paramstyle="):
        OffsetTable(object())
    with pytest.raises(ConfigurationError, match="is no name for a table"):
        OffsetTable(sqlite3, "offsets; drop", "qmark")
