"""The codecs of record batches, in the framings that Kafka clients read and write.

Output is bounded before memory is taken: what would grow past `limit` bytes is a CorruptBatch.
"""

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

import cramjam

from penstock.model.errors import CorruptBatch
from penstock.records.batch import Bytes

DECOMPRESSED_LIMIT_BYTES: Final = 128 << 20  # for callers that have no better limit
_FIRST_GUESS_BYTES: Final = 64 << 10
_OUTPUT_FULL: Final = "failed to write whole buffer"  # cramjam has no type for it; a test pins it

# snappy-java's stream: a header of 16 bytes, then blocks, each after its length
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = (
    _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
)  # version, oldest reader
_XERIAL_LENGTH: Final = Struct(">i")
_XERIAL_BLOCK_BYTES: Final = 32 << 10

# Kafka reads LZ4 frames of independent blocks only: version 1, blocks of 64 KiB, no checksums but
# the header's own, which is therefore constant
_LZ4_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_LENGTH: Final = Struct("<I")
_LZ4_BLOCK_BYTES: Final = 64 << 10
_LZ4_UNCOMPRESSED_BIT: Final = 1 << 31
_LZ4_END: Final = bytes(4)

_Into: TypeAlias = Callable[[Bytes, bytearray], int]


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_LEVEL: Final = 6  # Kafka's defaults
_ZSTD_LEVEL: Final = 3


def compress(codec: Codec, data: Bytes, level: int | None = None) -> bytes:
    """Levels are those of Kafka's `compression.<codec>.level`; for lz4 any asks for high compression."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return bytes(
                cramjam.gzip.compress(data, level=_GZIP_LEVEL if level in (None, -1) else level)
            )
        case Codec.SNAPPY:
            return _xerial_compress(memoryview(data))
        case Codec.LZ4:
            return _lz4_compress(memoryview(data), level)
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


class DecompressedTooLarge(CorruptBatch):
    """The data may be sound; there is more of it than the caller allows."""


def decompress(codec: int, data: memoryview, limit: int = DECOMPRESSED_LIMIT_BYTES) -> memoryview:
    """The records' bytes. Raises CorruptBatch for a codec, a stream or a size that is not right."""
    if codec == Codec.NONE:
        if len(data) > limit:
            raise DecompressedTooLarge(f"{len(data)} bytes of records; the limit is {limit}")
        return data
    if codec == Codec.SNAPPY:
        return _snappy_decompress(data, limit)
    into = _STREAM_DECODERS.get(codec)
    if into is None:
        raise CorruptBatch(f"codec {codec} of a batch is not one of 0 to 4")
    return _decompress_growing(into, Codec(codec), data, limit)


_STREAM_DECODERS: Final[dict[int, _Into]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}


def _decompress_growing(into: _Into, codec: Codec, data: memoryview, limit: int) -> memoryview:
    """Streams rarely say their size: decodes into a buffer, and into a larger one if it was too small."""
    size = min(limit, max(_FIRST_GUESS_BYTES, 8 * len(data)))
    while True:
        output = bytearray(size)
        try:
            return memoryview(output)[: into(data, output)]
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error) or size >= limit:
                kind = DecompressedTooLarge if _OUTPUT_FULL in str(error) else CorruptBatch
                raise kind(
                    f"{len(data)} bytes of {codec.name.lower()} do not decompress within {limit} bytes: {error}"
                ) from error
        size = min(limit, 8 * size)


def _snappy_decompress(data: memoryview, limit: int) -> memoryview:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return memoryview(_snappy_block(data, limit))
    output = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        if len(data) - position < _XERIAL_LENGTH.size:
            raise CorruptBatch(f"snappy block length cut off at byte {position} of {len(data)}")
        (length,) = _XERIAL_LENGTH.unpack_from(data, position)
        position += _XERIAL_LENGTH.size
        if not 0 <= length <= len(data) - position:
            raise CorruptBatch(f"snappy block of {length} bytes at byte {position} of {len(data)}")
        output += _snappy_block(data[position : position + length], limit - len(output))
        position += length
    return memoryview(output)


def _snappy_block(block: memoryview, limit: int) -> bytearray:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > limit:
            raise DecompressedTooLarge(f"snappy block says {size} bytes; {limit} are allowed")
        output = bytearray(size)
        written = cramjam.snappy.decompress_raw_into(block, output)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(f"{len(block)} bytes of snappy do not decompress: {error}") from error
    if written != size:
        raise CorruptBatch(f"snappy block says {size} bytes and has {written}")
    return output


def _xerial_compress(data: memoryview) -> bytes:
    chunks = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        chunks += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(chunks)


def _lz4_compress(data: memoryview, level: int | None) -> bytes:
    chunks = [_LZ4_HEADER]
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = _lz4_block(plain, level)
        if len(block) < len(plain):
            chunks += (_LZ4_LENGTH.pack(len(block)), block)
        else:
            chunks += (_LZ4_LENGTH.pack(len(plain) | _LZ4_UNCOMPRESSED_BIT), bytes(plain))
    chunks.append(_LZ4_END)
    return b"".join(chunks)


def _lz4_block(data: memoryview, level: int | None) -> bytes:
    if level is None:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    return bytes(
        cramjam.lz4.compress_block(
            data, mode="high_compression", compression=level, store_size=False
        )
    )
