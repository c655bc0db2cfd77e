"""Producer against a broker: futures, options, refusals, the full buffer, large messages."""

import threading
from types import SimpleNamespace

import confluent_kafka
import pytest

from penstock import Consumer, Producer
from penstock.sdk.errors import (
    BufferExhausted,
    Closed,
    ConfigurationError,
    MessageTooLarge,
    PenstockError,
    SerializationError,
    TimedOut,
)
from penstock.sdk.partitioners import partition_of
from penstock.testing import Broker
from tests.support.server import until

pytestmark = pytest.mark.cluster
NOWHERE = "127.0.0.1:1"
PATIENCE_S = 30.0


def read(broker: Broker, topic: str, count: int) -> list[confluent_kafka.Message]:
    """With a client that is not ours."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"read-{topic}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    messages: list[confluent_kafka.Message] = []
    while len(messages) < count:
        messages += [message for message in consumer.consume(count, 0.2) if not message.error()]
    consumer.close()
    return messages


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=4)


def test_a_future_says_where_the_message_is(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:
        sent = producer.send(topic, b"v", b"k", {"a": b"1"}, timestamp=1234, partition=2)
        delivered = sent.result(PATIENCE_S)
        assert (delivered.topic, delivered.partition, delivered.offset) == (topic, 2, 0)
        assert delivered.timestamp_ms == 1234
        assert sent.done
        assert sent.exception() is None
    (message,) = read(broker, topic, 1)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"v", [("a", b"1")])


def test_callbacks_run_whether_they_come_before_or_after_the_answer(
    broker: Broker, topic: str
) -> None:
    came: list[int] = []
    ran = threading.Event()
    with Producer(broker.bootstrap) as producer:
        sent = producer.send(topic, b"v", partition=0)
        sent.add_callback(lambda delivered: came.append(delivered.offset)).add_errback(
            lambda _: came.append(-1)
        )
        sent.add_callback(lambda _: ran.set())
        assert ran.wait(PATIENCE_S)
        sent.add_callback(lambda delivered: came.append(delivered.offset))
    assert came == [0, 0]


def test_a_callback_that_fails_stops_nobody_else(
    broker: Broker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(broker.bootstrap) as producer:
        producer.send(topic, b"1").add_callback(lambda _: 1 / 0).result(PATIENCE_S)
        producer.send(topic, b"2").result(PATIENCE_S)
        producer.flush()
    assert "a callback of a delivery failed" in caplog.text


def test_serializers_turn_values_into_bytes(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap, key_serializer="str", value_serializer="json") as producer:
        producer.send(topic, {"n": 1}, key="k")
        producer.send(topic, None, key="k")
        with pytest.raises(SerializationError, match="key of type int"):
            producer.send(topic, 1, key=1)
    assert [message.value() for message in read(broker, topic, 2)] == [b'{"n":1}', None]


def test_a_value_that_needs_a_serializer_is_refused_with_the_remedy(broker: Broker) -> None:
    with (
        Producer(broker.bootstrap) as producer,
        pytest.raises(SerializationError, match="value_serializer such as 'json'"),
    ):
        producer.send("t", {"n": 1})


def test_keys_go_where_java_puts_them(broker: Broker, topic: str) -> None:
    keys = [f"key-{n}".encode() for n in range(50)]
    with Producer(broker.bootstrap) as producer:
        places = [producer.send(topic, b"", key) for key in keys]
        assert [place.result(PATIENCE_S).partition for place in places] == [
            partition_of(key, 4) for key in keys
        ]


def test_messages_without_a_key_take_turns_when_told_to(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap, partitioner="round_robin") as producer:
        places = [producer.send(topic, b"").result(PATIENCE_S).partition for _ in range(8)]
    assert places == [0, 1, 2, 3] * 2


def test_any_function_can_choose_the_partition(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap, partitioner=lambda _, count: count - 1) as producer:
        assert producer.send(topic, b"").result(PATIENCE_S).partition == 3
    with (
        Producer(broker.bootstrap, partitioner=lambda _, count: count) as producer,
        pytest.raises(ConfigurationError, match=r"partition 4 of topic .* which has 0 to 3"),
    ):
        producer.send(topic, b"")


def test_a_message_that_is_too_large_is_refused_with_the_limit(broker: Broker, topic: str) -> None:
    with (
        Producer(broker.bootstrap, max_request_size=2000) as producer,
        pytest.raises(MessageTooLarge, match="of 3000 bytes; max_request_size is 2000"),
    ):
        producer.send(topic, bytes(3000))


@pytest.mark.parametrize("key", [None, b"k"])
def test_a_large_message_is_split_and_comes_back_whole(
    broker: Broker, topic: str, key: bytes | None
) -> None:
    value = bytes(range(256)) * 40
    with Producer(broker.bootstrap, max_request_size=2048, split_large=True) as producer:
        producer.send(topic, b"before", b"k")
        sent = producer.send(topic, value, key, {"own": b"h"})
        producer.send(topic, b"after", b"k")
        assert sent.result(PATIENCE_S).topic == topic
    came = {}
    with Consumer(broker.bootstrap, topic, group_id=f"large-{topic}") as consumer:
        for message in consumer:
            came[message.raw_value] = message
            if len(came) == 3:
                break
    assert came.keys() == {b"before", value, b"after"}
    assert came[value].headers == [("own", b"h")]
    assert came[value].key == key
    with Consumer(broker.bootstrap, topic, group_id=f"large-{topic}") as consumer:
        consumer.await_assignment()
        assert sum(consumer.lag().values()) == 0


def test_a_full_buffer_blocks_and_then_says_so() -> None:
    producer = Producer(NOWHERE, buffer_messages=1, max_block_ms=50)
    producer.send("t", b"1")
    with pytest.raises(BufferExhausted, match=r"full for 0\.05 s") as full:
        producer.send("t", b"2")
    assert full.value.retriable
    with pytest.raises(TimedOut, match="1 message is not acknowledged"):
        producer.close(0.0)


def test_a_full_buffer_drops_when_told_to() -> None:
    producer = Producer(NOWHERE, buffer_messages=1, on_full="drop")
    kept, dropped = producer.send("t", b"1"), producer.send("t", b"2")
    assert isinstance(dropped.exception(), BufferExhausted)
    assert not kept.done
    assert producer.metrics.dropped == 1
    with pytest.raises(TimedOut):
        producer.close(0.0)
    assert kept.done  # purged: nobody waits for ever


def test_a_message_nobody_takes_fails_with_a_retriable_error() -> None:
    errors: list[PenstockError] = []
    producer = Producer(NOWHERE, delivery_timeout_ms=300)
    sent = producer.send("t", b"1").add_errback(errors.append)
    with pytest.raises(TimedOut) as failed:
        sent.result(PATIENCE_S)
    assert failed.value.retriable
    producer.close()
    assert errors == [failed.value]
    assert producer.metrics.errors == 1


def test_a_closed_producer_refuses(broker: Broker) -> None:
    producer = Producer(broker.bootstrap)
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send("t", b"1")


def test_what_librdkafka_refuses_is_a_configuration_error(broker: Broker) -> None:
    with pytest.raises(ConfigurationError, match="Invalid value"):
        Producer(broker.bootstrap, linger_ms="soon")
    with pytest.raises(ConfigurationError, match="did you mean 'acks'"):
        Producer(broker.bootstrap, ack=1)
    with pytest.raises(ConfigurationError, match="did you mean 'on_full'"):
        Producer(broker.bootstrap, onfull="drop")


def test_a_rate_limit_spaces_messages_out(broker: Broker, topic: str) -> None:
    pauses: list[float] = []
    standing = SimpleNamespace(monotonic=lambda: 1000.0, sleep=pauses.append)  # no time passes
    with (
        pytest.MonkeyPatch.context() as patch,
        Producer(broker.bootstrap, rate_limit=10) as producer,
    ):
        patch.setattr("penstock.sdk.producer.time", standing)
        for _ in range(5):
            producer.send(topic, b"")
        patch.undo()
    assert pauses == pytest.approx([0.1, 0.2, 0.3, 0.4])  # a burst of one, then one each tenth


def test_metrics_count_what_was_delivered(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap, client_id="counted") as producer:
        for _ in range(1000):
            producer.send(topic, b"v")
        producer.flush()
        assert (producer.metrics.sent, producer.metrics.delivered, producer.metrics.errors) == (
            1000,
            1000,
            0,
        )
        assert producer.metrics.send_rate > 0
        until(  # librdkafka's last report may be of a moment when some were still in it
            lambda: producer.metrics.buffer_available_bytes == 32 * 2**20, "the buffer is empty"
        )
        assert 'penstock_producer_delivered_total{client_id="counted"} 1000' in (
            producer.metrics.prometheus()
        )


def test_many_threads_may_send_at_once(broker: Broker, topic: str) -> None:
    with Producer(broker.bootstrap) as producer:

        def send() -> None:
            for _ in range(2000):
                producer.send(topic, b"v")

        threads = [threading.Thread(target=send) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.metrics.delivered == 8000


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_is_taken(broker: Broker, topic: str, acks: object) -> None:
    with Producer(broker.bootstrap, acks=acks) as producer:
        producer.send(topic, b"v").result(PATIENCE_S)
