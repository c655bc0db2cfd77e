"""Codecs, against the libraries that clients use, and against bombs."""

import gzip
import io
import struct
from collections.abc import Callable

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import CorruptBatch
from penstock.records.compression import Codec, compress, decompress
from tests.unit.records.peers import kafka_codec, lz4_frame, snappy, zstandard

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SAMPLES = [b"", b"x", b"text " * 30_000, bytes(range(256)) * 5, bytes(200_000)]
READERS: dict[Codec, Callable[[bytes], bytes]] = {
    Codec.GZIP: gzip.decompress,
    Codec.SNAPPY: kafka_codec.snappy_decode,
    Codec.LZ4: lz4_frame.decompress,
    Codec.ZSTD: kafka_codec.zstd_decode,
}
WRITERS: list[tuple[Codec, Callable[[bytes], bytes]]] = [
    (Codec.GZIP, gzip.compress),
    (Codec.GZIP, lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    (Codec.SNAPPY, kafka_codec.snappy_encode),
    (Codec.SNAPPY, snappy.compress),
    (Codec.LZ4, kafka_codec.lz4_encode),
    (Codec.LZ4, lambda data: lz4_frame.compress(data, block_linked=True, store_size=False)),
    (Codec.LZ4, lambda data: lz4_frame.compress(data, content_checksum=True, block_checksum=True)),
    (Codec.ZSTD, kafka_codec.zstd_encode),
    (Codec.ZSTD, lambda data: _zstd_stream(data)),
]


def _zstd_stream(data: bytes) -> bytes:
    """As Java writes it: no content size in the frame."""
    output = io.BytesIO()
    with zstandard.ZstdCompressor(level=3).stream_writer(output, closefd=False) as writer:
        writer.write(data)
    return output.getvalue()


@given(st.binary(max_size=3_000), st.sampled_from(Codec), st.integers(1, 200))
def test_every_codec_gives_back_what_it_took(data: bytes, codec: Codec, times: int) -> None:
    assert decompress(codec, memoryview(compress(codec, data * times))) == data * times


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", SAMPLES[1:], ids=len)
def test_the_libraries_of_clients_read_what_we_write(codec: Codec, data: bytes) -> None:
    assert READERS[codec](compress(codec, data)) == data


@pytest.mark.parametrize(("codec", "write"), WRITERS)
@pytest.mark.parametrize("data", SAMPLES, ids=len)
def test_we_read_what_the_libraries_of_clients_write(
    codec: Codec, write: Callable[[bytes], bytes], data: bytes
) -> None:
    assert decompress(codec, memoryview(write(data))) == data


@pytest.mark.parametrize("level", [1, 3, 9])
@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_level_changes_the_size_and_not_the_data(codec: Codec, level: int) -> None:
    data = b"".join(b"%d, " % (i * i) for i in range(9_000))
    packed = compress(codec, data, level)
    assert READERS[codec](packed) == data
    assert decompress(codec, memoryview(packed)) == data


def test_lz4_frames_are_of_independent_blocks_because_java_reads_no_others() -> None:
    info = lz4_frame.get_frame_info(compress(Codec.LZ4, b"x" * 100_000))
    assert not info["block_linked"]
    assert info["block_size"] == 64 << 10
    assert not info["content_checksum"]


def test_snappy_streams_have_the_header_that_java_looks_for() -> None:
    packed = compress(Codec.SNAPPY, b"x" * 40_000)
    assert packed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    assert packed == kafka_codec.snappy_encode(b"x" * 40_000)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_at_the_limit_and_data_at_the_limit_is_not(codec: Codec) -> None:
    packed = memoryview(compress(codec, bytes(3_000_000)))
    assert len(decompress(codec, packed, limit=3_000_000)) == 3_000_000
    with pytest.raises(CorruptBatch, match=r"2999999 bytes|are allowed"):
        decompress(codec, packed, limit=2_999_999)


def test_a_snappy_block_that_promises_too_much_takes_no_memory() -> None:
    for bomb in (
        b"\xff\xff\xff\xff\x0f",
        b"\x82SNAPPY\0" + bytes(8) + b"\0\0\0\x05\xff\xff\xff\xff\x0f",
    ):
        with pytest.raises(CorruptBatch, match="are allowed"):
            decompress(Codec.SNAPPY, memoryview(bomb), limit=1_000)


def test_uncompressed_records_are_bounded_too() -> None:
    with pytest.raises(CorruptBatch, match="11 bytes of records; the limit is 10"):
        decompress(Codec.NONE, memoryview(bytes(11)), limit=10)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_corrupt(codec: int) -> None:
    with pytest.raises(CorruptBatch, match=f"codec {codec}"):
        decompress(codec, memoryview(b""))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_stream_cut_anywhere_is_corrupt(codec: Codec) -> None:
    packed = compress(codec, b"some bytes, " * 40)
    for size in range(1, len(packed)):
        try:
            data = decompress(codec, memoryview(packed)[:size])
        except CorruptBatch:
            continue
        # a snappy stream has no end mark: a cut between blocks is for the records to notice
        assert codec is Codec.SNAPPY
        assert bytes(data) == b""


@pytest.mark.parametrize("tail", [b"\0", b"\0\0\0", b"\0\0\0\x09ab", b"\xff\xff\xff\xff"])
def test_a_snappy_block_that_does_not_fit_is_corrupt(tail: bytes) -> None:
    packed = compress(Codec.SNAPPY, b"some bytes")
    with pytest.raises(CorruptBatch, match="snappy block"):
        decompress(Codec.SNAPPY, memoryview(packed + tail))


def test_the_decoder_says_that_the_output_is_full_in_the_words_we_look_for() -> None:
    for module in (cramjam.gzip, cramjam.lz4, cramjam.zstd):
        with pytest.raises(cramjam.DecompressionError, match="failed to write whole buffer"):
            module.decompress_into(bytes(module.compress(bytes(1_000))), bytearray(999))
