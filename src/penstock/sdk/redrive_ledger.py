"""The ledger of redriven letters: a compacted topic with one record for each letter that went back.

`penstock dlq redrive` and `penstock pipeline dlq` use the same ledger, and write to it in the transactions that send the
letters. Unlike offsets of a group it does not expire. A run takes over the ledger's transactional id before it reads
the ledger, so no other run can send a letter after that.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.sdk.dead_letters import Letter
from penstock.sdk.errors import ConfigurationError, TimedOut
from penstock.sdk.librdkafka import connect, errors_of
from penstock.sdk.message import Message

DEFAULT_LEDGER: Final = "penstock-dlq-ledger"
_COMPACT: Final = "compact"
_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.2
_AT_ONCE: Final = 10_000


def transactional_id(ledger: str) -> str:
    return f"penstock-dlq.{ledger}"


def entry(topic: str, partition: int, offset: int, target: str) -> str:
    """Return the key of a letter that went to `target`; Spark makes the same of its columns.

    >>> entry("orders", 0, 17, "orders")
    'orders/0/17/orders'
    """
    return f"{topic}/{partition}/{offset}/{target}"


def entry_of(message: Message, letter: Letter, target: str) -> str:
    """Name the letter by where it was first, or by its own place if it does not say."""
    if letter.topic is None or letter.partition < 0 or letter.offset < 0:
        return entry(message.topic, message.partition, message.offset, target)
    return entry(letter.topic, letter.partition, letter.offset, target)


def entry_value(now_ms: int) -> bytes:
    return json.dumps({"sent_at_ms": now_ms}).encode()


def check_policy(ledger: str, policy: str) -> None:
    """Raise ConfigurationError for a topic that forgets its records."""
    if policy.strip() != _COMPACT:
        raise ConfigurationError(
            f"topic {ledger!r} cannot be the ledger: its cleanup.policy is {policy!r}, so it forgets which letters went "
            "back",
            remedy="set cleanup.policy=compact, or give another --ledger",
        )


class Entries:
    """What a ledger says: which letters went to which topics."""

    def __init__(self) -> None:
        self._keys: set[str] = set()
        self._targets: set[str] = set()

    def add(self, key: str) -> None:
        self._keys.add(key)
        self._targets.add(key.rpartition("/")[2])

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def has_any(self, message: Message, letter: Letter) -> bool:
        """Return whether the letter went to any topic."""
        return any(entry_of(message, letter, target) in self._keys for target in self._targets)


def ensure_ledger(properties: Mapping[str, Any], ledger: str) -> None:
    """Create the topic if it does not exist. ConfigurationError: it exists, and is not only compacted."""
    import confluent_kafka.admin
    from confluent_kafka import KafkaError, KafkaException

    rd: Any = confluent_kafka.admin  # its stubs hide half of its names
    admin = connect(rd.AdminClient, {**properties, "log_level": 0})
    new = rd.NewTopic(ledger, num_partitions=1, config={"cleanup.policy": _COMPACT})
    with errors_of(f"create topic {ledger!r}"):
        try:
            admin.create_topics([new])[ledger].result(_TIMEOUT_S)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
    resource = rd.ConfigResource(rd.ResourceType.TOPIC, ledger)
    with errors_of(f"settings of topic {ledger!r}"):
        found = admin.describe_configs([resource])[resource].result(_TIMEOUT_S)
    check_policy(ledger, str(found["cleanup.policy"].value))


def read_entries(properties: Mapping[str, Any], ledger: str) -> Entries:
    """Read all committed entries; none if there is no such topic."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    found = Entries()
    client = connect(
        Consumer,
        {
            **properties,
            "group.id": "penstock-dlq",  # librdkafka wants one; it is not used
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        },
    )
    try:
        with errors_of(f"ledger {ledger!r}"):
            topic = client.list_topics(ledger, _TIMEOUT_S).topics[ledger]
            if topic.error is not None and topic.error.code() in (
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError._UNKNOWN_TOPIC,
            ):
                return found
            starts, ends = [], {}
            for index in topic.partitions:
                low, high = client.get_watermark_offsets(TopicPartition(ledger, index), _TIMEOUT_S)
                if low < high:
                    starts.append(TopicPartition(ledger, index, low))
                    ends[index] = high
            client.assign(starts)
            _read(client, ledger, ends, found)
    finally:
        client.close()
    return found


def _read(client: Any, ledger: str, ends: dict[int, int], found: Entries) -> None:
    """Read up to `ends`. A leader that was elected just now may say too early that a partition ends."""
    from confluent_kafka import KafkaError, KafkaException

    deadline_s = time.monotonic() + _TIMEOUT_S
    while ends:
        fetched = client.consume(_AT_ONCE, _POLL_S)
        if fetched:
            deadline_s = time.monotonic() + _TIMEOUT_S
        elif time.monotonic() > deadline_s:
            places = ", ".join(f"{ledger}-{index} up to {end}" for index, end in ends.items())
            raise TimedOut(f"the ledger of redriven letters could not be read: {places}")
        for raw in fetched:
            error = raw.error()
            if error is None:
                if raw.key() is not None and raw.value() is not None:
                    found.add(raw.key().decode(errors="replace"))
                reached = raw.offset() + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                reached = raw.offset()
            elif error.retriable() or error.code() == KafkaError._TRANSPORT:
                continue
            else:
                raise KafkaException(error)
            if reached >= ends.get(raw.partition(), reached + 1):
                del ends[raw.partition()]
