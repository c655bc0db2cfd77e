"""librdkafka has five requests under way: if the first is refused and the others are not, nothing may be lost, doubled or reordered."""

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from penstock.kafka.handlers import produce
from penstock.model.errors import BrokerError, ErrorCode, NotLeader, UnknownTopicOrPartition
from penstock.testing import Broker

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TOPIC = "orders"
COUNT = 20
PATIENCE_S = 120.0


def refusing(original: Callable[..., Any], error: BrokerError, at: int) -> Callable[..., Any]:
    """As the original, but for one call."""
    calls = iter(range(1 << 31))

    def instead(*arguments: Any) -> Any:
        if next(calls) == at:
            raise error
        return original(*arguments)

    return instead


@pytest.mark.parametrize("at", [0, 3], ids=["a new producer", "a known one"])
@pytest.mark.parametrize(
    ("step", "error"),
    [
        ("_ready", NotLeader("orders-0 is led by broker 2")),
        ("_ready", BrokerError("1 in sync", ErrorCode.NOT_ENOUGH_REPLICAS)),
        ("_writable", UnknownTopicOrPartition("topic 'orders' does not exist")),
    ],
    ids=["not the leader", "too few in sync", "unknown topic"],
)
def test_every_message_is_there_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, step: str, error: BrokerError, at: int
) -> None:
    with Broker() as broker:
        broker.create_topic(TOPIC)
        monkeypatch.setattr(produce, "_may_have_twins", lambda *_: False)  # one step for each
        monkeypatch.setattr(produce, step, refusing(getattr(produce, step), error, at))
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "enable.idempotence": True,
                "batch.num.messages": 1,
                "linger.ms": 50,  # so that all of them are sent at once
            }
        )
        failures: list[object] = []
        for number in range(COUNT):
            producer.produce(
                TOPIC,
                str(number),
                on_delivery=lambda failure, _: failures.append(failure) if failure else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert failures == []
        assert read(broker) == [str(number).encode() for number in range(COUNT)]


def read(broker: Broker) -> list[bytes | None]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.partition.eof": True}
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[bytes | None] = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"{len(found)} messages, and no end"
            if (error := message.error()) is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append(message.value())
    finally:
        consumer.close()
