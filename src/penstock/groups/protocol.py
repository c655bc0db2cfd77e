"""What consumers put into the opaque bytes of classic groups. Groups read it only where they must."""

from collections.abc import Iterable
from struct import Struct
from typing import Final

from penstock.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import decode_for

CONSUMER_PROTOCOL: Final = "consumer"
_VERSION: Final = Struct(">h")
_NEWEST: Final = ConsumerProtocolSubscription.versions[-1]


def subscription_version(metadata: bytes) -> int:
    """The version that a consumer speaks, at most the newest that is known here."""
    if len(metadata) < _VERSION.size:
        raise MalformedMessage(f"a subscription of {len(metadata)} bytes")
    version: int = _VERSION.unpack_from(metadata)[0]
    if version < 0:
        raise MalformedMessage(f"a subscription of version {version}")
    return min(version, _NEWEST)


def decode_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    """A newer version begins like the newest that is known here; what follows is left unread."""
    version = subscription_version(metadata)
    decode = decode_for(ConsumerProtocolSubscription, version)
    return decode(memoryview(metadata), _VERSION.size)[0]


def decode_assignment(assignment: bytes) -> dict[str, list[int]]:
    """Partitions by topic; none for the empty bytes of a member that was left out."""
    if not assignment:
        return {}
    version = subscription_version(assignment)
    decode = decode_for(ConsumerProtocolAssignment, version)
    found = decode(memoryview(assignment), _VERSION.size)[0]
    return {topic.topic: topic.partitions for topic in found.assigned_partitions}


def encode_assignment(partitions: dict[str, list[int]], version: int) -> bytes:
    assigned = [
        TopicPartition(topic=topic, partitions=sorted(numbers))
        for topic, numbers in sorted(partitions.items())
    ]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned)
    return _VERSION.pack(version) + message.encode(version)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics in these subscriptions; None if one of them cannot be read."""
    topics: set[str] = set()
    try:
        for metadata in subscriptions:
            subscription_version(metadata)
            decode = decode_for(ConsumerProtocolSubscription, 0)  # the front of every version
            topics.update(decode(memoryview(metadata), _VERSION.size)[0].topics)
    except MalformedMessage:
        return None
    return frozenset(topics)
