"""Whole request frames, built beforehand: a load generator must cost less than the broker it loads."""

from random import Random
from struct import Struct
from typing import Final

from penstock.records.batch import renew_checksum
from penstock.records.builder import build_batch
from penstock.records.compression import Codec
from penstock.records.record import Record
from penstock.wire.header import RequestHeader, encode_request_header
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from penstock.wire.schema import Message

PRODUCE_VERSION: Final = 9
FETCH_VERSION: Final = 11
_SIZE: Final = Struct(">i")
_SEQUENCE: Final = Struct(">i")
_SEQUENCE_AT: Final = 53  # in a batch
_OFFSET_MARK: Final = 0x1122334455667788  # found again in the frame, and written over
_OFFSET: Final = Struct(">q")


def frame(message: Message, version: int, correlation_id: int = 1) -> bytes:
    header = encode_request_header(
        RequestHeader(type(message).api_key, version, correlation_id, "raw")
    )
    body = message.encode(version)
    return _SIZE.pack(len(header) + len(body)) + header + body


def batch_of(
    message_bytes: int,
    count: int,
    now_ms: int,
    *,
    producer_id: int = -1,
    base_sequence: int = -1,
    codec: Codec = Codec.NONE,
) -> bytes:
    """A batch of `count` messages. With a producer id it is idempotent. What is compressed halves: it is hex of chance."""
    value = bytes(33 + i * 7 % 90 for i in range(message_bytes))
    values = [value] * count if codec is Codec.NONE else _texts(count, message_bytes)
    records = [Record(i, now_ms, None, each, ()) for i, each in enumerate(values)]
    epoch = 0 if producer_id >= 0 else -1
    return bytes(
        build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=base_sequence,
        )
    )


def _texts(count: int, size_bytes: int) -> list[bytes]:
    """The same ones each time."""
    chance = Random(1)
    return [chance.randbytes(size_bytes // 2 + 1).hex().encode()[:size_bytes] for _ in range(count)]


def messages_in(batch_bytes: int, message_bytes: int) -> int:
    """How many messages make a batch of about `batch_bytes`."""
    return max(1, batch_bytes // (message_bytes + 8))


def produce_frame(topic: str, partition: int, batch: bytes, acks: int = -1) -> bytes:
    data = PartitionProduceData(index=partition, records=memoryview(batch))
    request = ProduceRequest(
        acks=acks,
        timeout_ms=30_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    return frame(request, PRODUCE_VERSION)


def fetch_request(topic: str, offsets: dict[int, int], max_bytes: int) -> FetchRequest:
    """A long poll for all of these partitions."""
    partitions = [
        FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
        for partition, offset in offsets.items()
    ]
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=topic, partitions=partitions)],
    )


class FetchFrame:
    """A fetch of one partition, with an offset that can be set in place."""

    def __init__(self, topic: str, partition: int, max_bytes: int) -> None:
        request = fetch_request(topic, {partition: _OFFSET_MARK}, max_bytes)
        self._data = bytearray(frame(request, FETCH_VERSION))
        self._offset_at = self._data.index(_OFFSET.pack(_OFFSET_MARK))

    def at(self, offset: int) -> bytearray:
        _OFFSET.pack_into(self._data, self._offset_at, offset)
        return self._data


class Block:
    """Some produce requests in a row, sent as one. Idempotent ones get their next sequences each time."""

    def __init__(self, request: bytes, batch: bytes, repeat: int, messages: int) -> None:
        self.data = bytearray(request * repeat)
        self.requests = repeat
        self.batch_bytes = len(batch)
        self.messages = messages  # of one request
        at = request.index(batch)
        self._batches_at = range(at, len(self.data), len(request))
        self._next_sequence = _SEQUENCE.unpack_from(batch, _SEQUENCE_AT)[0]

    def renew(self) -> memoryview:
        """The bytes to send next. Not before the last ones have left."""
        view = memoryview(self.data)
        if self._next_sequence >= 0:
            for at in self._batches_at:
                _SEQUENCE.pack_into(self.data, at + _SEQUENCE_AT, self._next_sequence)
                renew_checksum(view[at : at + self.batch_bytes])
                self._next_sequence = (self._next_sequence + self.messages) & 0x7FFFFFFF
        return view
