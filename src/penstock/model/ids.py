"""Names for things: identifiers have types, so that two of them cannot be swapped in silence."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
TopicName = NewType("TopicName", str)
TopicId = NewType("TopicId", bytes)  # the 16 bytes of a UUID, as they travel
PartitionIndex = NewType("PartitionIndex", int)
ProducerId = NewType("ProducerId", int)
GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)

NO_TOPIC_ID: Final = TopicId(bytes(16))


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def format_topic_id(topic_id: bytes) -> str:
    """A topic id as Kafka's tools print it: URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def parse_topic_id(text: str) -> TopicId:
    topic_id = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(topic_id) != 16:
        raise ValueError(f"a topic id has 16 bytes; {text!r} has {len(topic_id)}")
    return TopicId(topic_id)
