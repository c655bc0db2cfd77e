"""Consumer against a broker: what is committed when, places and times, groups and broadcast."""

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from penstock import Consumer, Producer
from penstock.sdk.errors import Closed, ConfigurationError, DeserializationError, NoOffset
from penstock.sdk.message import Place
from penstock.testing import Broker

pytestmark = pytest.mark.cluster
PATIENCE_S = 30.0

Fill = Callable[..., str]


@pytest.fixture
def fill(broker: Broker) -> Fill:
    """A topic with these values, a second apart from 1000 s after 1970."""

    def make(*values: str, partitions: int = 1) -> str:
        topic = broker.create_topic(partitions=partitions)
        with Producer(broker.bootstrap) as producer:
            for n, value in enumerate(values):
                producer.send(topic, value, partition=n % partitions, timestamp=(1000 + n) * 1000)
        return topic

    return make


def committed(broker: Broker, topic: str, group: str, partition: int = 0) -> int:
    """As a client that is not ours sees it."""
    reader = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    (found,) = reader.committed([confluent_kafka.TopicPartition(topic, partition)], PATIENCE_S)
    reader.close()
    return int(found.offset)


def await_opened(consumer: Consumer, topic: str) -> None:
    """Until the first answer to a fetch has come: "latest" is the end as it was a moment before."""
    place = confluent_kafka.TopicPartition(topic, 0)
    deadline_s = time.monotonic() + PATIENCE_S
    while consumer.client.get_watermark_offsets(place, cached=True)[1] < 0:
        assert time.monotonic() < deadline_s, "it does not fetch"
        assert consumer.poll(0.05) is None


def test_messages_come_in_order_and_are_committed_on_the_way_out(
    broker: Broker, fill: Fill
) -> None:
    topic = fill("a", "b", "c")
    came = []
    with Consumer(broker.bootstrap, topic, group_id=topic, value_deserializer="str") as consumer:
        for message in consumer:
            came.append((message.partition, message.offset, message.value, message.timestamp_ms))
            if len(came) == 3:
                consumer.stop()
    assert came == [(0, 0, "a", 1_000_000), (0, 1, "b", 1_001_000), (0, 2, "c", 1_002_000)]
    assert committed(broker, topic, topic) == 3


def test_a_loop_that_is_left_by_break_has_finished_its_message(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c")
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        for message in consumer:
            if message.value == b"b":
                break
    assert committed(broker, topic, topic) == 2


def test_a_crash_in_the_loop_repeats_the_message_and_never_skips_it(
    broker: Broker, fill: Fill
) -> None:
    topic = fill("a", "b", "c")

    def crash(*, close_by_hand: bool) -> bytes:
        consumer = Consumer(broker.bootstrap, topic, group_id=topic)
        try:
            for message in consumer:
                if message.value == b"b":
                    raise RuntimeError("the handler's")
        finally:
            if close_by_hand:
                consumer.close()
            else:
                consumer.__exit__(RuntimeError, RuntimeError(), None)
        raise AssertionError("the loop ends by its error")

    for by_hand in (True, False):
        with pytest.raises(RuntimeError, match="the handler's"):
            crash(close_by_hand=by_hand)
        assert committed(broker, topic, topic) == 1


def test_auto_commit_covers_finished_messages_only(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c")
    consumer = Consumer(broker.bootstrap, topic, group_id=topic, auto_commit_interval_ms=0)
    messages = iter(consumer)
    for _ in range(2):
        next(messages)
    while committed(broker, topic, topic) != 1:  # the commit is asynchronous
        pass
    consumer.close()


def test_without_auto_commit_only_commit_commits(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c")
    with Consumer(broker.bootstrap, topic, group_id=topic, enable_auto_commit=False) as consumer:
        assert consumer.poll(PATIENCE_S)
        assert consumer.poll(PATIENCE_S)
        consumer.commit()
        assert consumer.poll(PATIENCE_S)
    assert committed(broker, topic, topic) == 2
    assert consumer.metrics.commits == 1
    assert consumer.metrics.commit_latency_ms > 0


def test_poll_gives_up_in_time_and_after_stop(broker: Broker, fill: Fill) -> None:
    consumer = Consumer(broker.bootstrap, fill(), group_id="empty")
    assert consumer.poll(0.1) is None
    consumer.stop()
    assert consumer.poll() is None
    consumer.close()
    consumer.close()


def test_a_closed_consumer_refuses(broker: Broker, fill: Fill) -> None:
    consumer = Consumer(broker.bootstrap, fill(), group_id="closed")
    consumer.close()
    with pytest.raises(Closed):
        consumer.poll(0)


def test_seek_goes_back_and_forth(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c", "d")
    with Consumer(broker.bootstrap, topic, group_id=topic, value_deserializer="str") as consumer:
        seen = [consumer.poll(PATIENCE_S), consumer.poll(PATIENCE_S)]
        consumer.seek(topic, 0, 0)
        seen.append(consumer.poll(PATIENCE_S))
        consumer.seek(topic, 0, 3)
        seen.append(consumer.poll(PATIENCE_S))
    assert [message.value for message in seen if message] == ["a", "b", "a", "d"]
    assert committed(broker, topic, topic) == 4


def test_replay_begins_with_the_first_message_of_a_time(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c", "d")
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        consumer.seek_to_time(datetime.fromtimestamp(1001.5, UTC))
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value == b"c"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    ("reset", "first"), [("earliest", b"a"), (1_001_000, b"b"), ("latest", b"new")]
)
def test_a_new_group_begins_where_it_is_told_to(
    broker: Broker, fill: Fill, reset: str | int, first: bytes, protocol: str
) -> None:
    topic = fill("a", "b", "c")
    with Consumer(
        broker.bootstrap, topic, group_id=topic, auto_offset_reset=reset, group_protocol=protocol
    ) as consumer:
        consumer.await_assignment()
        if reset == "latest":
            await_opened(consumer, topic)
            with Producer(broker.bootstrap) as producer:
                producer.send(topic, b"new")
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.value == first


def test_a_group_goes_on_where_it_was_whatever_the_reset_says(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c")
    for reset, expected in (("earliest", b"a"), (0, b"b"), ("latest", b"c")):
        with Consumer(broker.bootstrap, topic, group_id=topic, auto_offset_reset=reset) as consumer:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            assert message.value == expected


def test_without_an_offset_and_a_reset_it_says_so(broker: Broker, fill: Fill) -> None:
    with (
        Consumer(
            broker.bootstrap, fill("a"), group_id="none", auto_offset_reset="none"
        ) as consumer,
        pytest.raises(NoOffset, match="auto_offset_reset"),
    ):
        consumer.poll(PATIENCE_S)


def test_wrong_arguments_are_refused_by_name(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="auto_offset_reset='begin'"):
        Consumer(broker.bootstrap, "t", auto_offset_reset="begin")
    with pytest.raises(ConfigurationError, match="did you mean 'session_timeout_ms'"):
        Consumer(broker.bootstrap, "t", session_timeout=1)


def test_a_paused_partition_is_silent_and_then_complete(broker: Broker, fill: Fill) -> None:
    topic = fill(*"aAbBcC", partitions=2)
    came: list[tuple[int, bytes]] = []
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        first = consumer.poll(PATIENCE_S)
        assert first is not None
        quiet = first.partition
        consumer.pause([(topic, quiet)])
        for message in consumer:
            assert message.partition != quiet
            came.append((message.partition, message.value))
            if len(came) == 3:
                break
        consumer.resume([(topic, quiet)])
        for message in consumer:
            came.append((message.partition, message.value))
            if len(came) == 5:
                break
    assert [value for partition, value in came if partition == quiet] == [
        value.encode() for value in "aAbBcC"[quiet::2]
    ][1:]


def test_lag_is_what_was_not_handed_out(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b", "c")
    with Consumer(broker.bootstrap, topic, group_id=topic) as consumer:
        consumer.await_assignment()
        assert consumer.lag() == {(topic, 0): 3}
        consumer.poll(PATIENCE_S)
        assert consumer.lag() == {(topic, 0): 2}
        assert consumer.metrics.lag == 2
        assert consumer.assignment() == [(topic, 0)]


def test_a_value_that_cannot_be_read_is_its_readers_error(broker: Broker, fill: Fill) -> None:
    topic = fill("{}", "{")
    with Consumer(broker.bootstrap, topic, group_id=topic, value_deserializer="json") as consumer:
        good, bad = consumer.poll(PATIENCE_S), consumer.poll(PATIENCE_S)
        assert good is not None
        assert bad is not None
        assert good.value == good.value == {}
        with pytest.raises(DeserializationError, match="value of 1 bytes"):
            _ = bad.value
        assert bad.raw_value == b"{"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_move_with_what_is_finished_committed_first(
    broker: Broker, fill: Fill, protocol: str
) -> None:
    topic = fill(*"abcdefgh", partitions=2)
    moves: list[tuple[str, list[Place]]] = []
    first = Consumer(
        broker.bootstrap,
        topic,
        group_id=topic,
        group_protocol=protocol,
        on_assign=lambda places: moves.append(("assign", places)),
        on_revoke=lambda places: moves.append(("revoke", places)),
    )
    handed_out = 0
    while handed_out < 8:
        handed_out += first.poll(PATIENCE_S) is not None
    second = Consumer(broker.bootstrap, topic, group_id=topic, group_protocol=protocol)
    taken: list[bytes] = []

    def join() -> None:
        second.await_assignment()
        message = second.poll(1.0)
        taken.extend([] if message is None else [message.value])

    other = threading.Thread(target=join)
    other.start()
    while other.is_alive():
        assert first.poll(0.1) is None
    other.join()
    assert taken == []  # all was finished, so nothing came twice
    assert {kind for kind, _ in moves} == {"assign", "revoke"}
    assert first.metrics.rebalances >= 1
    first.close()
    second.close()


def test_broadcast_gives_every_instance_everything_from_now_on(broker: Broker, fill: Fill) -> None:
    topic = fill("before")
    instances = [Consumer(broker.bootstrap, topic) for _ in range(2)]
    for instance in instances:
        instance.await_assignment()
        await_opened(instance, topic)
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"news")
    for instance in instances:
        message = instance.poll(PATIENCE_S)
        assert message is not None
        assert message.value == b"news"
        instance.close()


def test_a_running_consumer_gets_what_was_written_into_added_partitions(
    broker: Broker, fill: Fill
) -> None:
    topic = fill("before")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    with Consumer(broker.bootstrap, topic, metadata_max_age_ms=300) as consumer:
        consumer.await_assignment()
        await_opened(consumer, topic)
        (grown,) = admin.create_partitions([NewPartitions(topic, 2)]).values()
        grown.result(PATIENCE_S)
        with Producer(broker.bootstrap) as producer:
            producer.send(topic, b"news", partition=1)
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert (message.partition, message.value) == (1, b"news")


def test_metrics_are_text_for_prometheus(broker: Broker, fill: Fill) -> None:
    topic = fill("a", "b")
    with Consumer(broker.bootstrap, topic, group_id=topic, client_id="me") as consumer:
        for _ in range(2):
            consumer.poll(PATIENCE_S)
        consumer.commit()
        consumer.poll(0)
        assert 'penstock_consumer_received_total{client_id="me"} 2' in consumer.metrics.prometheus()
        assert consumer.metrics.receive_rate > 0
