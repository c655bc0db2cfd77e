"""Whatever lies under a right checksum, the compiled loops give CorruptBatch or the plain decoder's rows."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BrokerError, CorruptBatch, ErrorCode
from penstock.records import column_kernels
from penstock.records.batch import HEADER_SIZE, renew_checksum
from penstock.records.builder import assemble, build_batch, varint
from penstock.records.compression import Codec, compress
from penstock.records.record import Record
from tests.unit.records.batches import codecs, record_lists
from tests.unit.records.test_columns import Row, decoded, plainly

RECORD = b"\x0c\x00\x00\x00\x01\x01\x00"  # six bytes: null key, null value, no headers


def _around(data: bytes, count: int, last_delta: int = 9, codec: Codec = Codec.NONE) -> bytearray:
    data = compress(codec, data)
    return assemble((0, 0), (codec, last_delta, 0, 0), (-1, -1, -1), count, data)


def _wrapped(time_ms: int) -> int:
    return (time_ms + (1 << 63)) % (1 << 64) - (1 << 63)


def _replaced(row: Row) -> Row:
    """As columns have it: timestamps of 64 bits, and header keys that are UTF-8."""
    record = row.record
    headers = tuple(
        (key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value)
        for key, value in record.headers
    )
    time_ms = _wrapped(record.timestamp_ms)
    return Row(record._replace(timestamp_ms=time_ms, headers=headers), row.timestamp_type)


def _agree(batch: bytearray) -> None:
    """Both decoders refuse it, or both read the same. The bytes after it are poison."""
    poisoned = batch + b"\x02" * 40
    try:
        expected = [_replaced(row) for row in plainly(batch)]
    except CorruptBatch:
        with pytest.raises(CorruptBatch):
            decoded(poisoned[: len(batch) + 16])
        return
    assert decoded(poisoned[: len(batch) + 16])[0] == expected


@given(st.binary(max_size=300), st.integers(-1, 60), codecs)
def test_garbage_is_corrupt_or_read_as_the_plain_decoder_reads_it(
    data: bytes, count: int, codec: Codec
) -> None:
    _agree(_around(data, count, 400, codec))


_numbers = st.integers(-3, 12) | st.sampled_from((1 << 31, -(1 << 31), 1 << 62, (1 << 64) - 1, 300))
_pieces = st.binary(max_size=3) | _numbers.map(varint) | st.just(b"\xff" * 9) | st.just(RECORD)


@given(st.lists(_pieces, max_size=30), st.integers(0, 5))
def test_numbers_where_numbers_belong_are_corrupt_or_read_alike(
    pieces: list[bytes], count: int
) -> None:
    _agree(_around(b"".join(pieces), count))


@given(st.lists(_pieces, max_size=12), st.integers(0, 2), st.integers(0, 3))
def test_bodies_of_the_right_length_are_corrupt_or_read_alike(
    pieces: list[bytes], before: int, wrong: int
) -> None:
    body = b"".join(pieces)
    record = varint(len(body) + (wrong == 3)) + body
    _agree(_around(RECORD * (before > 0) + record, 1 + (before > 0)))


@given(record_lists(max_size=4), codecs, st.data())
def test_a_changed_byte_is_corrupt_or_read_alike(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    plain = build_batch(records)[HEADER_SIZE:]
    for _ in range(data.draw(st.integers(1, 3))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    batch = _around(bytes(plain[: len(plain) - cut]), len(records), len(records) - 1, codec)
    _agree(batch)


@given(record_lists(max_size=3), st.data())
def test_a_changed_batch_header_is_corrupt_or_read_alike(
    records: list[Record], data: st.DataObject
) -> None:
    batch = build_batch(records)
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(21, HEADER_SIZE - 1))] = data.draw(st.integers(0, 255))
    renew_checksum(memoryview(batch))
    _agree_unless_impossible(batch)


def _agree_unless_impossible(batch: bytearray) -> None:
    """A negative last delta, which the plain decoder takes for an empty batch, is refused here."""
    (last_delta,) = struct.unpack_from(">i", batch, 23)
    if last_delta >= 0:
        _agree(batch)
    else:
        with pytest.raises(CorruptBatch, match="batch at offset 0: it says it ends at -"):
            decoded(batch)


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (RECORD, 2),
        (RECORD, -1),
        (RECORD + b"\x00" * 7, 1),
        (RECORD * 2, 2),
        (b"\x0c\x00\x00\x14\x01\x01\x00", 1),
        (b"\x0c\x00\x00\x01\x01\x01\x00", 1),
        (b"\x0e\x00\x00\x00\x01\x01\x00", 1),
        (b"\x0b\x00\x00\x00\x01\x01\x00", 1),
        (b"\x0a\x00\x00\x00\x01\x01\x00", 1),
        (b"\x0c\x00\x00\x00\x64\x01\x00", 1),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1),
        (b"\x0c\x00\x00\x00\x01\x01\x7e", 1),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1),
        (b"\x0c\x00\x00\x80\x80\x80\x80\x80\x00", 1),
        (b"\x0c\x00\x00\xff\xff\xff\xff\x7f\x00", 1),
        (b"\x80" * 20, 1),
        (b"", 1),
        (b"\x02\x00", 1),
    ],
)
def test_a_malformed_record_is_corrupt(data: bytes, count: int) -> None:
    _agree(_around(data, count))
    with pytest.raises(CorruptBatch, match="batch at offset 0: "):
        decoded(_around(data, count))


@pytest.mark.parametrize(
    "number",
    [
        varint((1 << 31) - 1),  # far outside
        varint(1 << 30),
        varint(-(1 << 40)),  # null, if it were not too long
        b"\xff\xff\xff\xff\x7f",  # likewise, in five bytes
        b"\xff\xff\xff\xff\x1f",
        b"\xff" * 9 + b"\x03",
    ],
)
@pytest.mark.parametrize("place", range(5))
def test_a_length_that_cannot_be_is_corrupt_wherever_it_stands(place: int, number: bytes) -> None:
    lengths = [
        b"\x01",
        b"\x01",
        b"\x02",
        b"\x00",
        b"\x01",
    ]  # key, value, headers; key and value of one
    lengths[place] = number
    body = b"\x00\x00\x00" + b"".join(lengths)
    for data in (varint(len(body)) + body, number + body):
        _agree(_around(data, 1))
        with pytest.raises(CorruptBatch):
            decoded(_around(data, 1))


def test_a_time_delta_of_65_bits_is_corrupt() -> None:
    body = b"\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00"
    with pytest.raises(CorruptBatch):
        decoded(_around(varint(len(body)) + body, 1))


@pytest.mark.parametrize("time_ms", [(1 << 63) - 1, -(1 << 63), -1, 63, 64, 8191, 8192])
def test_a_time_delta_may_have_all_its_64_bits(time_ms: int) -> None:
    body = b"\x00" + varint(time_ms) + b"\x00\x01\x01\x00"
    _agree(_around(varint(len(body)) + body, 1))
    assert decoded(_around(varint(len(body)) + body, 1))[0][0].record.timestamp_ms == time_ms


def test_sums_beyond_64_bits_wrap_around_as_they_do_in_kafka() -> None:
    body = b"\x00" + varint(2) + b"\x00\x01\x01\x00"
    extent = (0, 0, (1 << 63) - 1, 0)
    batch = assemble((0, 0), extent, (-1, -1, -1), 1, varint(len(body)) + body)
    assert decoded(batch)[0][0].record.timestamp_ms == -(1 << 63) + 1


def test_batches_do_not_go_back() -> None:
    data = build_batch([Record(5, 1, None, b"a")], base_offset=5)
    with pytest.raises(CorruptBatch, match="and the one before it at 6"):
        decoded(data + data)


@pytest.mark.parametrize(("base_offset", "last_delta"), [(-1, 1), ((1 << 63) - 9, 8)])
def test_offsets_end_before_64_bits_do(base_offset: int, last_delta: int) -> None:
    batch = assemble((base_offset, 0), (0, last_delta, 0, 0), (-1, -1, -1), 0, b"")
    with pytest.raises(CorruptBatch, match="says it ends at"):
        decoded(batch)


def test_bytes_that_are_no_batch_are_corrupt() -> None:
    with pytest.raises(CorruptBatch, match=r"no batch header at byte 0 \(magic 255\)"):
        decoded(b"\xff" * 17)
    batch = build_batch([Record(0, 1, None, b"a")])
    struct.pack_into(">i", batch, 8, 40)
    with pytest.raises(CorruptBatch, match="batch at offset 0 says 52 bytes"):
        decoded(batch)


@pytest.mark.parametrize("magic", [0, 1])
def test_formats_of_before_kafka_0_11_are_refused_by_name(magic: int) -> None:
    message = struct.pack(">qiIbb", 0, 22, 0, magic, 0) + bytes(16)
    with pytest.raises(BrokerError, match=f"message format {magic}") as refused:
        decoded(message)
    assert refused.value.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    batch = _around(bytes(129 << 20), 1, codec=Codec.ZSTD)
    with pytest.raises(CorruptBatch, match=r"batch at offset 0: .* do not decompress within"):
        decoded(batch)


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(-9, 60), st.integers(-3, 9)), max_size=6),
    st.integers(0, 30),
)
def test_gathering_never_leaves_its_buffers(
    data: bytes, places: list[tuple[int, int]], room: int
) -> None:
    starts = np.array([start for start, _ in places], np.int64)
    ends = np.cumsum([0, *(size for _, size in places)]).astype(np.int32)
    around = np.zeros(room + 200, np.uint8)
    source = np.frombuffer(b"\x07" * 100 + data + b"\x07" * 100, np.uint8)[100 : 100 + len(data)]
    code = column_kernels.gather(source, starts, ends, around[100 : 100 + room])
    within = all(
        size <= 0 or (0 <= start <= len(data) - size and 0 <= at <= room - size)
        for (start, size), at in zip(places, ends.tolist(), strict=False)
    )
    assert code == (column_kernels.DONE if within else column_kernels.CORRUPT)
    assert not around[:100].any()
    assert not around[100 + room :].any()


@given(st.binary(max_size=30), st.lists(st.integers(-5, 40), max_size=4), st.integers(1, 3))
def test_headers_that_changed_since_they_were_found_are_corrupt_or_within_bounds(
    data: bytes, starts: list[int], each: int
) -> None:
    count = each * len(starts)
    source = np.frombuffer(b"\x02" * 50 + data + b"\x02" * 50, np.uint8)[50 : 50 + len(data)]
    keys, values = np.zeros(count, np.int64), np.zeros(count, np.int64)
    key_ends, value_ends = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
    code = column_kernels.index_headers(
        source,
        np.array(starts, np.int64),
        np.arange(0, count + 1, each, dtype=np.int32),
        *(keys, key_ends, values, value_ends),
        np.zeros(count, np.bool_),
    )
    if code == column_kernels.DONE:
        for begin, end in ((keys, key_ends), (values, value_ends)):
            assert (begin >= 0).all()
            assert (begin + np.diff(end) <= len(data)).all()
