"""A consumed message. Key and value are deserialized when they are first looked at, so a bad one is its reader's error."""

from contextlib import AbstractContextManager
from typing import Any

from penstock.sdk.large import Whole
from penstock.sdk.serializers import Deserializer, deserialize
from penstock.sdk.tracing import continued, installed_tracer

Place = tuple[str, int]  # topic and partition
Readers = tuple[Deserializer | None, Deserializer | None]


class Message:
    """One message of a topic.

    `value` and `key` raise DeserializationError when their bytes cannot be read; `raw_value` and `raw_key` never do.
    """

    __slots__ = ("_key", "_raw", "_readers", "_value")

    def __init__(self, raw: Any, readers: Readers) -> None:
        self._raw = raw  # `_key` and `_value` are set by their first reader
        self._readers = readers

    @property
    def topic(self) -> str:
        return str(self._raw.topic())

    @property
    def partition(self) -> int:
        return int(self._raw.partition())

    @property
    def offset(self) -> int:
        return int(self._raw.offset())

    @property
    def first_offset(self) -> int:
        """Of its first part, where it was split; else its offset."""
        return int(getattr(self._raw, "first_offset", self._raw.offset)())

    @property
    def place(self) -> Place:
        return (self._raw.topic(), self._raw.partition())

    @property
    def coordinates(self) -> str:
        """For people: "orders-0@17"."""
        return f"{self.topic}-{self.partition}@{self.offset}"

    @property
    def timestamp_ms(self) -> int:
        """Milliseconds since 1970; -1 where the message has none."""
        return int(self._raw.timestamp()[1])

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._raw.headers() or []

    def header(self, name: str) -> bytes | None:
        """The newest header of that name, or None."""
        return next((value for key, value in reversed(self.headers) if key == name), None)

    @property
    def raw_key(self) -> bytes | None:
        key: bytes | None = self._raw.key()
        return key

    @property
    def raw_value(self) -> bytes | None:
        value: bytes | None = self._raw.value()
        return value

    @property
    def key(self) -> Any:
        read = self._readers[0]
        if read is None:
            return self._raw.key()
        if not hasattr(self, "_key"):
            self._key = deserialize(read, self._raw.key(), "key", self.coordinates)
        return self._key

    @property
    def value(self) -> Any:
        read = self._readers[1]
        if read is None:
            return self._raw.value()
        if not hasattr(self, "_value"):
            self._value = deserialize(read, self._raw.value(), "value", self.coordinates)
        return self._value

    def trace(self) -> AbstractContextManager[object]:
        """`with message.trace(): …` goes on with its producer's trace. Without OpenTelemetry it does nothing."""
        tracer = installed_tracer()
        return continued(tracer, dict(self.headers) if tracer else {})

    def __repr__(self) -> str:
        size = len(self.raw_value or b"")
        return f"<Message {self.coordinates} {size} bytes>"


class Reassembled:
    """librdkafka's message, as if it had come in one piece; its coordinates are those of its last part."""

    def __init__(self, last: Any, whole: Whole, headers: list[tuple[str, bytes | None]]) -> None:
        self._whole = whole
        self._headers = headers
        self.topic = last.topic
        self.partition = last.partition
        self.offset = last.offset
        self.timestamp = last.timestamp
        self.key = last.key

    def value(self) -> bytes:
        return self._whole.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return self._headers

    def first_offset(self) -> int:
        return min(self._whole.offsets)
