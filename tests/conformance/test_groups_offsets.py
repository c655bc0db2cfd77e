"""Where real clients begin, stop and go on: commits by hand and by themselves, reset policies, seeks and pauses."""

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import aiokafka
import confluent_kafka
import kafka
import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from penstock.testing import Broker

pytestmark = [
    pytest.mark.cluster,
    # client libraries leave sockets behind when a broker dies under them
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNT = 10
START_MS = 1_700_000_000_000
PATIENCE_S = 60.0


@pytest.fixture
def topic(broker: Broker) -> str:
    """One partition of ten messages, a second apart."""
    name = broker.create_topic()
    fill(broker, name, range(COUNT))
    return name


def fill(broker: Broker, topic: str, numbers: range) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=0, timestamp=START_MS + number * 1000)
    assert producer.flush(30) == 0


def fresh() -> str:
    return f"group-{uuid4().hex[:8]}"


# One client, in a few words ----------------------------------------------------------------------


class Reader:
    """A consumer of one of the libraries, subscribed to a topic as a member of a group."""

    def read(self, count: int) -> list[int]:
        """The numbers in the next messages."""
        raise NotImplementedError

    def nothing_comes(self) -> bool:
        raise NotImplementedError

    def commit(self) -> None:
        raise NotImplementedError

    def commit_at(self, offset: int, text: str) -> None:
        raise NotImplementedError

    def committed(self) -> tuple[int, str] | None:
        raise NotImplementedError

    def seek(self, offset: int) -> None:
        raise NotImplementedError

    def seek_to_time(self, timestamp_ms: int) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Confluent(Reader):
    reset_error = confluent_kafka.KafkaException

    def __init__(
        self, broker: Broker, topic: str, group: str, reset: str, *, auto: bool, **more: Any
    ) -> None:
        self._partition = confluent_kafka.TopicPartition(topic, 0)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": {"none": "error"}.get(reset, reset),
                "enable.auto.commit": auto,
                "auto.commit.interval.ms": 200,
                "log_level": 0,
                **more,
            }
        )
        self._consumer.subscribe([topic])

    def read(self, count: int) -> list[int]:
        numbers: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(numbers) < count:
            assert time.monotonic() < deadline, f"only {numbers}"
            message = self._consumer.poll(1)
            if message is None:
                continue
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            numbers.append(int(message.value() or b"-1"))
        return numbers

    def nothing_comes(self) -> bool:
        return self._consumer.poll(0.5) is None

    def commit(self) -> None:
        self._consumer.commit(asynchronous=False)

    def commit_at(self, offset: int, text: str) -> None:
        place = confluent_kafka.TopicPartition(self._partition.topic, 0, offset, metadata=text)
        self._consumer.commit(offsets=[place], asynchronous=False)

    def committed(self) -> tuple[int, str] | None:
        (found,) = self._consumer.committed([self._partition], timeout=30)
        return None if found.offset < 0 else (found.offset, found.metadata or "")

    def seek(self, offset: int) -> None:
        self._consumer.seek(confluent_kafka.TopicPartition(self._partition.topic, 0, offset))

    def seek_to_time(self, timestamp_ms: int) -> None:
        asked = confluent_kafka.TopicPartition(self._partition.topic, 0, timestamp_ms)
        (found,) = self._consumer.offsets_for_times([asked], timeout=30)
        self.seek(found.offset)

    def pause(self) -> None:
        self._consumer.pause([self._partition])

    def resume(self) -> None:
        self._consumer.resume([self._partition])

    def close(self) -> None:
        self._consumer.close()


class KafkaPython(Reader):
    reset_error = kafka.errors.NoOffsetForPartitionError

    def __init__(
        self, broker: Broker, topic: str, group: str, reset: str, *, auto: bool, **more: Any
    ) -> None:
        self._partition = kafka.TopicPartition(topic, 0)
        self._rest: list[int] = []
        self._consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset=reset,
            enable_auto_commit=auto,
            auto_commit_interval_ms=200,
            **more,
        )

    def read(self, count: int) -> list[int]:
        numbers: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(numbers) < count:
            assert time.monotonic() < deadline, f"only {numbers}"
            polled = self._consumer.poll(2000, max_records=count - len(numbers))
            numbers += [int(m.value) for part in polled.values() for m in part]
        return numbers

    def nothing_comes(self) -> bool:
        # long enough to join: what a poll that ends amid a rebalance leaves behind, it never mends
        return not self._consumer.poll(500 if self._consumer.assignment() else 3000)

    def commit(self) -> None:
        self._consumer.commit()

    def commit_at(self, offset: int, text: str) -> None:
        self._consumer.commit({self._partition: kafka.structs.OffsetAndMetadata(offset, text, -1)})

    def committed(self) -> tuple[int, str] | None:
        found = self._consumer.committed(self._partition, metadata=True)
        return None if found is None else (found.offset, found.metadata)

    def seek(self, offset: int) -> None:
        self._consumer.seek(self._partition, offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        found = self._consumer.offsets_for_times({self._partition: timestamp_ms})
        self.seek(found[self._partition].offset)

    def pause(self) -> None:
        self._consumer.pause(self._partition)

    def resume(self) -> None:
        self._consumer.resume(self._partition)

    def close(self) -> None:
        self._consumer.close()


class Aio(Reader):
    reset_error = aiokafka.errors.NoOffsetForPartitionError

    def __init__(
        self, broker: Broker, topic: str, group: str, reset: str, *, auto: bool, **more: Any
    ) -> None:
        self._partition = aiokafka.TopicPartition(topic, 0)
        self._runner = asyncio.Runner()

        async def start() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(
                topic,
                bootstrap_servers=broker.bootstrap,
                group_id=group,
                auto_offset_reset=reset,
                enable_auto_commit=auto,
                auto_commit_interval_ms=200,
                **more,
            )
            await consumer.start()
            return consumer

        self._consumer = self._runner.run(start())

    def _run(self, work: Any) -> Any:
        return self._runner.run(asyncio.wait_for(work, PATIENCE_S))

    def read(self, count: int) -> list[int]:
        async def read() -> list[int]:
            return [int((await self._consumer.getone()).value) for _ in range(count)]

        numbers: list[int] = self._run(read())
        return numbers

    def nothing_comes(self) -> bool:
        return not self._run(self._consumer.getmany(timeout_ms=500))

    def commit(self) -> None:
        self._run(self._consumer.commit())

    def commit_at(self, offset: int, text: str) -> None:
        self._run(self._consumer.commit({self._partition: (offset, text)}))

    def committed(self) -> tuple[int, str] | None:
        found = self._run(self._consumer.committed(self._partition))
        return None if found is None else (found, "")

    def _call(self, function: Callable[..., Any], *arguments: Any) -> None:
        async def called() -> None:
            function(*arguments)

        self._run(called())

    def seek(self, offset: int) -> None:
        self._call(self._consumer.seek, self._partition, offset)

    def seek_to_time(self, timestamp_ms: int) -> None:
        found = self._run(self._consumer.offsets_for_times({self._partition: timestamp_ms}))
        self.seek(found[self._partition].offset)

    def pause(self) -> None:
        self._call(self._consumer.pause, self._partition)

    def resume(self) -> None:
        self._call(self._consumer.resume, self._partition)

    def close(self) -> None:
        self._run(self._consumer.stop())
        self._runner.close()


LIBRARIES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "confluent": (Confluent, {}),
    "confluent-consumer": (Confluent, {"group.protocol": "consumer"}),
    "kafka-python": (KafkaPython, {}),
    "aiokafka": (Aio, {}),
}


class Connect:
    """Makes members of the test's topic; those that are still there at its end are closed."""

    def __init__(self, broker: Broker, topic: str, library: str) -> None:
        self._broker, self._topic = broker, topic
        self._kind, self._settings = LIBRARIES[library]
        self.reset_error: type[Exception] = self._kind.reset_error
        self._opened: list[Reader] = []

    def __call__(self, group: str, reset: str = "earliest", *, auto: bool = False) -> Any:
        reader = self._kind(self._broker, self._topic, group, reset, auto=auto, **self._settings)
        self._opened.append(reader)
        return reader

    def close(self, *readers: Reader) -> None:
        for reader in readers or list(self._opened):
            self._opened.remove(reader)
            reader.close()


@pytest.fixture(params=LIBRARIES)
def connect(broker: Broker, topic: str, request: pytest.FixtureRequest) -> Iterator[Connect]:
    made = Connect(broker, topic, request.param)
    yield made
    made.close()
    gc.collect()  # what clients left behind is found here, and not in another test


def test_a_member_goes_on_where_the_last_commit_was(connect: Connect) -> None:
    group = fresh()
    first = connect(group)
    assert first.read(4) == [0, 1, 2, 3]
    first.commit_at(3, "three")
    assert first.committed() is not None
    connect.close(first)
    second = connect(group)

    offset, text = second.committed()
    assert offset == 3
    assert text in ("three", "")  # one of the libraries does not tell it
    assert second.read(3) == [3, 4, 5]


def test_what_was_not_committed_is_read_again(connect: Connect) -> None:
    group = fresh()
    first = connect(group)
    assert first.read(3) == [0, 1, 2]
    assert first.committed() is None
    connect.close(first)

    assert connect(group).read(2) == [0, 1]


def test_a_client_that_commits_by_itself_goes_on_after_what_it_has_read(connect: Connect) -> None:
    group = fresh()
    first = connect(group, auto=True)
    assert first.read(COUNT) == list(range(COUNT))
    assert first.nothing_comes()
    connect.close(first)  # commits what it has read
    second = connect(group)

    assert second.committed()[0] == COUNT
    assert second.nothing_comes()


def test_without_a_commit_the_policy_says_where_to_begin(
    broker: Broker, topic: str, connect: Connect
) -> None:
    assert connect(fresh(), "earliest").read(1) == [0]
    latest = connect(fresh(), "latest")
    assert latest.nothing_comes()
    deadline = time.monotonic() + PATIENCE_S
    numbers: list[int] = []
    while not numbers:  # it may have to find its place first
        assert time.monotonic() < deadline
        fill(broker, topic, range(77, 78))
        if not latest.nothing_comes():
            numbers.append(77)


def test_a_policy_of_none_is_an_error_for_who_has_no_place(connect: Connect) -> None:
    reader = connect(fresh(), "none")

    with pytest.raises(connect.reset_error):
        reader.read(1)


def test_a_place_that_is_no_longer_there_is_reset_by_the_policy(
    broker: Broker, topic: str, connect: Connect
) -> None:
    group = fresh()
    first = connect(group)
    first.read(3)
    first.commit_at(2, "")
    connect.close(first)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    cut = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 5)])
    next(iter(cut.values())).result(30)

    assert connect(group, "earliest").read(1) == [5]


def test_a_member_seeks_by_offset_and_by_time(connect: Connect) -> None:
    reader = connect(fresh())
    assert reader.read(2) == [0, 1]
    reader.seek(7)
    assert reader.read(2) == [7, 8]
    reader.seek_to_time(START_MS + 3500)
    assert reader.read(2) == [4, 5]


def test_a_member_that_pauses_gets_nothing_and_stays_in_its_group(
    broker: Broker, topic: str, connect: Connect
) -> None:
    reader = connect(fresh())
    assert reader.read(COUNT) == list(range(COUNT))
    reader.pause()
    fill(broker, topic, range(COUNT, COUNT + 1))
    assert reader.nothing_comes()
    reader.resume()

    assert reader.read(1) == [COUNT]


# Admin clients -----------------------------------------------------------------------------------


def test_an_admin_client_lists_describes_moves_and_deletes_groups(
    broker: Broker, topic: str
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    group = fresh()
    reader = Confluent(broker, topic, group, "earliest", auto=False)
    reader.read(1)
    described = admin.describe_consumer_groups([group])[group].result()
    assert described.state is ConsumerGroupState.STABLE
    assert [len(m.assignment.topic_partitions) for m in described.members] == [1]
    reader.close()
    place = confluent_kafka.TopicPartition(topic, 0, 7)
    wanted = confluent_kafka.ConsumerGroupTopicPartitions(group, [place])
    admin.alter_consumer_group_offsets([wanted])[group].result()
    asked = confluent_kafka.ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result()
    assert [p.offset for p in found.topic_partitions] == [7]
    listed = admin.list_consumer_groups().result()
    states = {g.group_id: g.state for g in listed.valid}
    assert states[group] is ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([group])[group].result()
    assert group not in {g.group_id for g in admin.list_consumer_groups().result().valid}


def test_committed_offsets_are_those_that_were_committed_before_on_the_connection(
    broker: Broker, topic: str
) -> None:
    """librdkafka sends both requests at once: the answer must not be older than the commit."""
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": fresh(), "enable.auto.commit": False}
    )
    place = confluent_kafka.TopicPartition(topic, 0)
    consumer.assign([place])
    try:
        for offset in range(100):
            wanted = confluent_kafka.TopicPartition(topic, 0, offset)
            consumer.commit(
                offsets=[wanted], asynchronous=offset > 0
            )  # the first finds the coordinator
            assert consumer.committed([place], PATIENCE_S)[0].offset == offset
    finally:
        consumer.close()
