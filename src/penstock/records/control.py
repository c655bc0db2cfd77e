"""Control batches: the markers that end a producer's transaction in a partition, and the one that ends a mirror."""

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records.batch import BatchHeader, Bytes
from penstock.records.builder import build_batch
from penstock.records.record import Record, decode_records

_KEY: Final = Struct(">hh")  # version, type
_VALUE: Final = Struct(">hi")  # version, coordinator epoch
_PROMOTION: Final = Struct(">h16sq")  # version, topic id, number
_VERSION: Final = 0
_PROMOTION_TYPE: Final = 10_000  # far from Kafka's; clients skip control records they do not know


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1


class EndMarker(NamedTuple):
    """A transaction ended here: the producer is in the batch header."""

    type: ControlType
    coordinator_epoch: int


class Promotion(NamedTuple):
    """A mirror became a topic of its own here: all producers before it were another cluster's."""

    topic_id: bytes
    number: int  # later ones of the topic have higher numbers


def build_marker(
    marker: EndMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    key = _KEY.pack(_VERSION, marker.type)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def decode_marker(batch: Bytes, header: BatchHeader) -> EndMarker | None:
    """The marker of a control batch; None if it is another kind, or compaction has emptied it.

    Later versions may add fields at the end of key and value; these stay readable.
    """
    records = decode_records(batch, header)
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch(f"control record at offset {records[0].offset} has no type")
    version, kind = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptBatch(f"control record at offset {records[0].offset} has version {version}")
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if value is None or len(value) < _VALUE.size:
        raise CorruptBatch(f"marker at offset {records[0].offset} has no coordinator epoch")
    return EndMarker(ControlType(kind), _VALUE.unpack_from(value)[1])


def build_promotion(
    promotion: Promotion, *, timestamp_ms: int, base_offset: int, leader_epoch: int
) -> bytearray:
    key = _KEY.pack(_VERSION, _PROMOTION_TYPE)
    value = _PROMOTION.pack(_VERSION, *promotion)
    return build_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        control=True,
    )


def decode_promotion(batch: Bytes, header: BatchHeader) -> Promotion | None:
    """None if the control batch is another kind."""
    records = decode_records(batch, header)
    key, value = (records[0].key, records[0].value) if records else (None, None)
    if key is None or value is None or len(key) < _KEY.size or len(value) < _PROMOTION.size:
        return None
    version, kind = _KEY.unpack_from(key)
    if version < 0 or kind != _PROMOTION_TYPE:
        return None
    _, topic_id, number = _PROMOTION.unpack_from(value)
    return Promotion(topic_id, number)
