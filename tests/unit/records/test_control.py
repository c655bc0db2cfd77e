"""Transaction markers."""

import struct

import pytest

from penstock.model.errors import CorruptBatch
from penstock.records.batch import parse_header, verify
from penstock.records.builder import build_batch
from penstock.records.control import ControlType, EndMarker, build_marker, decode_marker
from penstock.records.record import Record
from tests.unit.records.peers import ControlRecord, DefaultRecordBatch


@pytest.mark.parametrize("kind", ControlType)
def test_a_marker_is_read_back_by_us_and_by_kafka_python(kind: ControlType) -> None:
    marker = EndMarker(kind, coordinator_epoch=9)
    batch = build_marker(
        marker, producer_id=4, producer_epoch=2, timestamp_ms=77, base_offset=40, leader_epoch=3
    )
    header = verify(memoryview(batch))
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 2, -1)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (40, 41, 3)
    assert decode_marker(batch, header) == marker
    peer = DefaultRecordBatch(batch)
    assert peer.validate_crc()
    assert peer.is_control_batch
    (record,) = list(peer)
    assert isinstance(record, ControlRecord)
    assert record.commit == (kind is ControlType.COMMIT)
    assert record.abort == (kind is ControlType.ABORT)
    assert (record.offset, record.timestamp, record.version) == (40, 77, 0)


def _control(key: bytes | None, value: bytes | None) -> EndMarker | None:
    batch = build_batch([Record(0, 0, key, value)], control=True)
    return decode_marker(batch, parse_header(batch))


def test_other_control_records_are_no_markers() -> None:
    assert _control(struct.pack(">hh", 0, 2), b"leader change") is None
    empty = build_batch([], control=True, last_offset_delta=0)
    assert decode_marker(empty, parse_header(empty)) is None


def test_a_later_version_with_more_fields_is_read() -> None:
    key, value = struct.pack(">hhi", 1, 1, 5), struct.pack(">hiq", 1, 8, 5)
    assert _control(key, value) == EndMarker(ControlType.COMMIT, 8)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0\0\0", b""),
        (struct.pack(">hh", -1, 0), bytes(6)),
        (struct.pack(">hh", 0, 0), None),
        (struct.pack(">hh", 0, 1), bytes(5)),
    ],
)
def test_a_marker_that_is_cut_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptBatch):
        _control(key, value)
