"""`dlq --send` is killed at its steps, and every letter goes back exactly once."""

import signal
from collections import Counter
from typing import Any

import confluent_kafka
import pytest

from penstock.spark.steps import VARIABLE
from tests.spark.topics import Create, Sent, produce
from tests.support.command import start_penstock
from tests.support.server import PATIENCE_S, Server

pytestmark = [pytest.mark.spark, pytest.mark.long]

LETTERS = 700  # more than one transaction


@pytest.mark.timeout(900)  # three sessions, one after the other
def test_a_run_that_is_killed_sends_nothing_twice_and_forgets_nothing(
    broker: Server, topic: Create
) -> None:
    name, dead = topic("orders", retention_ms=-1), topic("orders.dlq", retention_ms=-1)
    produce(broker, dead, [_letter(name, offset) for offset in range(LETTERS)])
    for step in ("dlq:sent", "dlq:committed"):
        assert _send(broker, dead, name, **{VARIABLE: step}) == -signal.SIGKILL
    assert _send(broker, dead, name) == 0
    assert _read(broker, name) == Counter(b"value %d" % n for n in range(LETTERS))


def _letter(name: str, offset: int) -> Sent:
    coordinates = {"topic": name, "partition": "0", "offset": str(offset)}
    headers = tuple((f"penstock-origin-{key}", v.encode()) for key, v in coordinates.items())
    return Sent(b"k", b"value %d" % offset, headers=headers)


def _send(broker: Server, dead: str, name: str, **variables: str) -> int:
    with start_penstock(
        *("pipeline", "dlq", "--topic", dead, "--send", "--ledger", f"{name}-ledger"),
        *("--bootstrap", broker.bootstrap, "--master", "local[2]"),
        *("--conf", "spark.driver.memory=512m", "--conf", "spark.sql.shuffle.partitions=2"),
        **variables,
    ) as process:
        _, err = process.communicate(timeout=5 * PATIENCE_S)
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode


def _read(broker: Server, name: str) -> Counter[bytes]:
    """What a reader of committed records gets, up to the end."""
    consumer: Any = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"readers of {name}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(name, 0, 0)])
    found: Counter[bytes] = Counter()
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found[message.value()] += 1
    finally:
        consumer.close()
