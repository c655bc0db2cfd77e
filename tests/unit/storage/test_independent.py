"""Segments and indexes as strangers read them: kafka-python's reader, and the rules of Kafka's dump tool."""

from pathlib import Path
from struct import iter_unpack

import pytest
from kafka.record import MemoryRecords

from penstock.model.configs import TopicConfig
from penstock.records.compression import Codec
from penstock.storage.log import Log
from tests.unit.storage.logs import NOW_MS, headers, new_log, paths, put, raw

CONFIG = TopicConfig(segment_bytes=3000, index_interval_bytes=200)


def filled(path: Path, codec: Codec = Codec.NONE) -> Log:
    """Times go up and down, so that the time index has to skip some."""
    log = new_log(path, CONFIG)
    for number in range(60):
        times = [NOW_MS + number * 10 + step for step in (0, 7 - number % 9, 2)]
        put(log, *[b"%d.%d" % (number, n) * 5 for n in range(3)], times=times, codec=codec, epoch=4)
    return log


@pytest.mark.parametrize("codec", list(Codec))
def test_kafka_python_reads_our_segments(tmp_path: Path, codec: Codec) -> None:
    log = filled(tmp_path, codec)
    log.close()
    found = []
    for path in paths(log):
        batches = MemoryRecords(path.read_bytes())
        while batches.has_next():
            batch = batches.next_batch()
            assert batch.validate_crc()
            found += [(record.offset, record.timestamp, record.value) for record in batch]

    assert [offset for offset, _, _ in found] == list(range(180))
    assert [value for _, _, value in found[:4]] == [b"0.0" * 5, b"0.1" * 5, b"0.2" * 5, b"1.0" * 5]
    assert found[1][1] == NOW_MS + 7


def test_every_index_entry_is_what_kafkas_dump_tool_expects(tmp_path: Path) -> None:
    """An offset entry names a batch's last offset, a time entry the batch that first had that time."""
    log = filled(tmp_path)
    log.close()
    offset_entries = time_entries = 0
    for path in paths(log):
        base = int(path.name[:20])
        data = path.read_bytes()
        found = headers(data)
        positions = {}
        position = 0
        for header in found:
            positions[position] = header
            position += header.size_bytes
        by_last = {header.last_offset: header for header in found}
        last = -1
        for relative, position in iter_unpack(">ii", path.with_suffix(".index").read_bytes()):
            assert positions[position].last_offset == base + relative > last
            last, offset_entries = base + relative, offset_entries + 1
        latest = -1
        for time, relative in iter_unpack(">qi", path.with_suffix(".timeindex").read_bytes()):
            assert by_last[base + relative].max_timestamp_ms == time > latest
            latest, time_entries = time, time_entries + 1
        assert latest == max(header.max_timestamp_ms for header in found)
    assert offset_entries > 10 < time_entries


def test_the_file_is_what_was_read_byte_for_byte(tmp_path: Path) -> None:
    log = filled(tmp_path)
    assert b"".join(path.read_bytes() for path in paths(log)) == raw(log)
