"""What real clients write, real clients read: every pair of them, every codec, whole and in order."""

import shutil
import urllib.request
import uuid
from typing import Any

import confluent_kafka
import kafka
import pytest

from penstock.testing import Broker
from tests.support.clients import CLIENTS, CONFLUENT, KAFKA_PYTHON, Client, Sent, kcat

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
MESSAGES = [
    Sent(None, b"no key"),
    Sent(b"key", b"value", (("h1", b"one"), ("h1", b"again"), ("h2", b""))),
    Sent(b"tombstone", None),
    Sent(b"", b"", timestamp_ms=1),
    *(Sent(b"k%d" % n, b"v%d" % n * 20, timestamp_ms=1_700_000_000_000 + n) for n in range(500)),
]


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    broker.create_topic(name, partitions=1)
    return name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", CLIENTS, ids=str)
def test_every_client_reads_what_any_client_wrote(
    broker: Broker, topic: str, writer: Client, codec: str
) -> None:
    writer.produce(broker.bootstrap, topic, MESSAGES, codec)

    for reader in CLIENTS:
        received = reader.consume(broker.bootstrap, topic, len(MESSAGES))
        assert [message.offset for message in received] == list(range(len(MESSAGES)))
        assert [Sent(m.key, m.value, m.headers, m.timestamp_ms) for m in received] == MESSAGES


@pytest.mark.parametrize("client", CLIENTS, ids=str)
def test_a_message_of_10_mb_passes_where_the_topic_allows_it(
    broker: Broker, client: Client
) -> None:
    topic = f"large-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=1, settings={"max.message.bytes": "12000000"})
    large = bytes(range(256)) * 40_960

    client.produce(broker.bootstrap, topic, [Sent(b"k", large), Sent(b"k", b"after")], "none")

    received = client.consume(broker.bootstrap, topic, 2)
    assert [m.value for m in received] == [large, b"after"]


def test_a_message_beyond_the_topics_limit_is_refused_with_its_code(
    broker: Broker, topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "message.max.bytes": 5_000_000}
    )
    errors: list[Any] = []
    producer.produce(topic, b"x" * 2_000_000, on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)

    assert [error.code() for error in errors] == [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE]


def test_offsets_for_times_are_exact_inside_a_batch(broker: Broker, topic: str) -> None:
    start_ms = 1_700_000_000_000
    messages = [Sent(None, b"%d" % n, timestamp_ms=start_ms + n * 10) for n in range(1000)]
    CONFLUENT.produce(broker.bootstrap, topic, messages, "lz4")

    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    for wanted_ms, offset in ((start_ms, 0), (start_ms + 5005, 501), (start_ms + 9990, 999)):
        found = consumer.offsets_for_times({partition: wanted_ms})[partition]
        assert (found.offset, found.timestamp) == (offset, start_ms + offset * 10)
    assert consumer.offsets_for_times({partition: start_ms + 9991})[partition] is None
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 1000}
    consumer.close()


def test_a_consumer_can_seek_anywhere_and_read_on(broker: Broker, topic: str) -> None:
    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"%d" % n) for n in range(1000)], "none")
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, consumer_timeout_ms=60_000)
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    for offset in (999, 0, 500, 7, 998):
        consumer.seek(partition, offset)
        record = next(consumer)
        assert (record.offset, record.value) == (offset, b"%d" % offset)
    consumer.close()


def test_one_producer_reads_its_own_writes_at_once(broker: Broker, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap)
    partition = kafka.TopicPartition(topic, 0)
    for n in range(50):
        written = producer.send(topic, b"%d" % n, partition=0).get(60)
        assert consumer.end_offsets([partition])[partition] == written.offset + 1
    producer.close()
    consumer.close()


def test_order_within_a_partition_survives_many_batches_in_flight(
    broker: Broker, topic: str
) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "linger.ms": 0,
        }
    )
    for n in range(20_000):
        producer.produce(topic, b"%d" % n, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0

    received = CONFLUENT.consume(broker.bootstrap, topic, 20_000)
    assert [m.value for m in received] == [b"%d" % n for n in range(20_000)]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement_delivers(broker: Broker, topic: str, acks: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "acks": acks})
    for n in range(1000):
        producer.produce(topic, b"%d" % n, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0

    assert len(CONFLUENT.consume(broker.bootstrap, topic, 1000)) == 1000


def test_a_batch_of_ten_thousand_messages_is_taken_whole(broker: Broker) -> None:
    topic = f"batch-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=1)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "batch.num.messages": 10_000,
            "batch.size": 1_000_000,
            "linger.ms": 1000,
            "queue.buffering.max.messages": 100_000,
        }
    )
    for n in range(10_000):
        producer.produce(topic, b"%05d" % n, partition=0)
    assert producer.flush(60) == 0

    received = KAFKA_PYTHON.consume(broker.bootstrap, topic, 10_000)
    assert [m.value for m in received] == [b"%05d" % n for n in range(10_000)]


@pytest.mark.skipif(
    not (shutil.which("kcat") or shutil.which("kafkacat")), reason="kcat is not installed"
)
@pytest.mark.parametrize("codec", CODECS)
def test_kcat_writes_compressed_and_reads_back(broker: Broker, topic: str, codec: str) -> None:
    lines = b"".join(b"key%d:line %d\n" % (n, n) for n in range(1000))
    kcat("-P", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-K:", "-z", codec, stdin=lines)

    read = kcat(
        "-C", "-b", broker.bootstrap, "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-K:"
    )
    assert read == lines
    assert topic.encode() in kcat("-L", "-b", broker.bootstrap)


def test_compressed_batches_are_stored_compressed(broker: Broker, topic: str) -> None:
    before = broker_bytes_in(broker, topic)
    CONFLUENT.produce(
        broker.bootstrap, topic, [Sent(None, b"a" * 1000) for _ in range(1000)], "zstd"
    )

    assert broker_bytes_in(broker, topic) - before < 100_000


def broker_bytes_in(broker: Broker, topic: str) -> float:
    """As the broker's own metrics say."""
    with urllib.request.urlopen(f"http://{broker.http}/metrics") as page:
        metrics = page.read().decode()
    for line in metrics.splitlines():
        if line.startswith(f'kafka_server_brokertopicmetrics_bytesin_total{{topic="{topic}"}}'):
            return float(line.rsplit(" ", 1)[1])
    return 0.0


def test_an_unknown_topic_is_created_at_first_use(broker: Broker) -> None:
    topic = f"auto-{uuid.uuid4().hex[:8]}"

    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"hello")], "none")

    assert [m.value for m in CONFLUENT.consume(broker.bootstrap, topic, 1)] == [b"hello"]


def test_an_invalid_topic_name_is_refused_with_its_code(broker: Broker) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "message.timeout.ms": 20_000}
    )
    errors: list[Any] = []
    producer.produce("no spaces allowed", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)

    assert [error.code() for error in errors] == [confluent_kafka.KafkaError.TOPIC_EXCEPTION]


def test_a_topic_with_append_time_stamps_what_it_takes(broker: Broker) -> None:
    topic = f"stamped-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=1, settings={"message.timestamp.type": "LogAppendTime"})

    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"x", timestamp_ms=1)], "lz4")

    for reader in CLIENTS:
        (message,) = reader.consume(broker.bootstrap, topic, 1)
        assert message.timestamp_ms > 1_700_000_000_000


def test_a_null_key_is_refused_by_a_compacted_topic(broker: Broker) -> None:
    topic = f"compacted-{uuid.uuid4().hex[:8]}"
    broker.create_topic(topic, partitions=1, settings={"cleanup.policy": "compact"})
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    errors: list[confluent_kafka.KafkaError | None] = []
    producer.produce(topic, b"no key", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    producer.produce(topic, b"v", key=b"k", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)

    assert errors[0] is not None
    assert errors[0].code() == confluent_kafka.KafkaError.INVALID_RECORD
    assert errors[1] is None


def test_a_topic_recompresses_to_its_own_codec(broker: Broker) -> None:
    for codec in CODECS[1:]:
        topic = f"recompressed-{codec}-{uuid.uuid4().hex[:8]}"
        broker.create_topic(topic, partitions=1, settings={"compression.type": codec})
        CONFLUENT.produce(broker.bootstrap, topic, MESSAGES, "none")

        received = KAFKA_PYTHON.consume(broker.bootstrap, topic, len(MESSAGES))
        assert [m.value for m in received] == [m.value for m in MESSAGES]
