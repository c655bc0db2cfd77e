"""What a batch from a client must be before it may enter a log, and who is told what when it is not.

A header field that fails is only believed once the checksum holds: damage on the way is
CORRUPT_MESSAGE, which clients retry; INVALID_RECORD they do not.
"""

from struct import error as StructError
from typing import Final, NamedTuple, NoReturn

from penstock.model.errors import (
    BrokerError,
    CorruptBatch,
    ErrorCode,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
)
from penstock.model.steps import Steps, finish
from penstock.records.batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    parse_header,
    renew_checksum,
)
from penstock.records.compression import DECOMPRESSED_LIMIT_BYTES, Codec, compress
from penstock.records.crc32c import crc32c
from penstock.records.opening import open_batch, records_without_key
from penstock.records.record import MIN_RECORD_BYTES

UNBOUNDED_MS: Final = (1 << 63) - 1
MAX_RECORD_ERRORS: Final = 100  # named one by one in a reply; the message counts them all
_MAGIC_POSITION: Final = 16
_MIN_LENGTH: Final = 14  # of any batch of any format; less is damage

# the attributes a client may set: a codec, and the transactional bit if it named a transactional id
_KNOWN_BITS: Final = 0x7F
_PLAIN: Final = frozenset((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))
_ALLOWED: Final = tuple(
    frozenset(codec | bit for codec in codecs for bit in bits)
    for bits in ((0,), (0, TRANSACTIONAL_BIT))
    for codecs in (_PLAIN, _PLAIN | {Codec.ZSTD})
)

_new_tuple = tuple.__new__
_unpack_from = HEADER.unpack_from


class RecordError(NamedTuple):
    batch_index: int
    message: str


class InvalidRecords(InvalidRecord):
    """Some records of a batch are refused, each for its own reason (Produce v8+ tells the client)."""

    def __init__(self, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(message)
        self.record_errors = record_errors


def check_client_batch(
    records: memoryview,
    *,
    max_batch_bytes: int,
    now_ms: int,
    before_max_ms: int = UNBOUNDED_MS,
    after_max_ms: int = UNBOUNDED_MS,
    transactional: bool = False,
    zstd: bool = True,
) -> BatchHeader:
    """The header of the one batch that a producer may send for a partition, checksum included.

    `transactional`: the request names a transactional id. `zstd`: it is Produce v7 or later. A topic
    of LogAppendTime leaves the two timestamp bounds out. Hot: benchmarks/batches.py.
    """
    try:
        header = _new_tuple(BatchHeader, _unpack_from(records))
    except StructError:
        _refuse_size(records)
    (base, length, _, magic, crc, attributes, last_delta, first, last, pid, epoch, sequence, count) = header  # fmt: skip
    if (
        length + LENGTH_PREFIX != len(records)
        or magic != MAGIC
        or length + LENGTH_PREFIX > max_batch_bytes
        or base != 0
        or count != last_delta + 1
        or count <= 0
        or attributes & _KNOWN_BITS not in _ALLOWED[2 * transactional + zstd]
        or (pid >= 0 and (epoch < 0 or sequence < 0))
        or (pid < 0 and attributes & TRANSACTIONAL_BIT)
        or first < NO_TIMESTAMP
        or last < NO_TIMESTAMP
        or (now_ms - first > before_max_ms and first != NO_TIMESTAMP)
        or last - now_ms > after_max_ms
        or (attributes & CODEC_MASK == 0 and HEADER_SIZE + MIN_RECORD_BYTES * count > len(records))
    ):
        bounds = (before_max_ms, after_max_ms)
        _refuse(records, header, max_batch_bytes, now_ms, bounds, transactional, zstd)
    if crc32c(records[CRC_START:]) != crc:
        _refuse_checksum(records, header)
    return header


def _refuse(
    records: memoryview,
    header: BatchHeader,
    max_batch_bytes: int,
    now_ms: int,
    bounds_ms: tuple[int, int],
    transactional: bool,
    zstd: bool,
) -> NoReturn:
    """Finds the reason, in Kafka's order."""
    if header.magic != MAGIC or header.size_bytes != len(records):
        _refuse_size(records)
    if header.size_bytes > max_batch_bytes:
        raise MessageTooLarge(
            f"batch of {header.size_bytes} bytes; max.message.bytes is {max_batch_bytes}"
        )
    if crc32c(records[CRC_START:]) != header.crc:
        _refuse_checksum(records, header)
    _refuse_codec(header, zstd)
    _refuse_fields(header, transactional)
    _refuse_timestamps(header, now_ms, *bounds_ms)
    raise InvalidRecord(
        f"{header.record_count} records cannot fit into a batch of {len(records)} bytes"
    )


def _refuse_size(records: memoryview) -> NoReturn:
    size = len(records)
    if size > _MAGIC_POSITION and (magic := records[_MAGIC_POSITION]) != MAGIC:
        raise InvalidRecord(f"record format v{magic} is not taken; Produce v3 and later send v2")
    if size < HEADER_SIZE:
        raise InvalidRecord(
            f"{size} bytes of records; one batch, of {HEADER_SIZE} or more, is needed"
        )
    header = parse_header(records)
    if header.length < _MIN_LENGTH:
        raise CorruptBatch(f"batch length {header.length}; the least is {_MIN_LENGTH}")
    raise InvalidRecord(
        f"exactly one batch per partition is taken: the first of {size} bytes has {header.size_bytes}"
    )


def _refuse_checksum(records: memoryview, header: BatchHeader) -> NoReturn:
    actual = crc32c(records[CRC_START:])
    raise CorruptBatch(
        f"batch of {len(records)} bytes has checksum {actual:#010x}; its header says {header.crc:#010x}"
    )


def _refuse_codec(header: BatchHeader, zstd: bool) -> None:
    if header.codec > Codec.ZSTD:
        raise BrokerError(
            f"codec {header.codec} is not known; 0 to {Codec.ZSTD:d} are",
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        )
    if header.codec == Codec.ZSTD and not zstd:
        raise BrokerError(
            "zstd batches need Produce v7 or later", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        )


def _refuse_fields(header: BatchHeader, transactional: bool) -> None:
    if header.base_offset != 0:
        raise InvalidRecord(f"a producer's batch starts at offset 0, not {header.base_offset}")
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        raise InvalidRecord(
            f"batch says {header.record_count} records and last offset delta {header.last_offset_delta}"
        )
    if header.attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        raise InvalidRecord(
            f"attributes {header.attributes:#x}: control batches and delete horizons are the broker's"
        )
    if header.is_transactional and not transactional:
        raise BrokerError(
            "a transactional batch in a request without a transactional id",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        )
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    if min(producer) < 0 and (header.is_transactional or header.has_producer_id):
        raise InvalidRecord("producer id {}, epoch {}, sequence {}".format(*producer))


def _refuse_timestamps(
    header: BatchHeader, now_ms: int, before_max_ms: int, after_max_ms: int
) -> None:
    first, last = header.first_timestamp_ms, header.max_timestamp_ms
    if header.attributes & APPEND_TIME_BIT:
        raise InvalidTimestamp("timestamp type LogAppendTime is the broker's to set")
    if first < NO_TIMESTAMP or last < NO_TIMESTAMP:
        raise InvalidTimestamp(f"negative timestamp: first {first}, max {last}")
    if first != NO_TIMESTAMP and now_ms - first > before_max_ms:
        raise InvalidTimestamp(
            f"first timestamp {first} is {now_ms - first} ms before the broker's {now_ms}; "
            f"message.timestamp.before.max.ms is {before_max_ms}"
        )
    if last - now_ms > after_max_ms:
        raise InvalidTimestamp(
            f"max timestamp {last} is {last - now_ms} ms after the broker's {now_ms}; "
            f"message.timestamp.after.max.ms is {after_max_ms}"
        )


def check_keys(batch: Bytes, header: BatchHeader, limit: int = DECOMPRESSED_LIMIT_BYTES) -> None:
    """A compacted topic takes no record without a key."""
    finish(check_keys_of(open_batch(batch, header, limit), header))


def check_keys_of(data: Bytes, header: BatchHeader) -> Steps[None]:
    """The same for decompressed records, in steps."""
    without = yield from records_without_key(data, header)
    if without:
        raise InvalidRecords(
            f"{len(without)} of {header.record_count} records have no key, which a compacted topic needs",
            tuple(RecordError(i, "compacted topic: no key") for i in without[:MAX_RECORD_ERRORS]),
        )


def recompress(
    batch: Bytes,
    codec: Codec,
    level: int | None = None,
    limit: int = DECOMPRESSED_LIMIT_BYTES,
) -> bytearray:
    """The same batch with its records under another codec; all else, offsets too, stays."""
    header = parse_header(batch)
    data = compress(codec, open_batch(batch, header, limit), level)
    output = bytearray(HEADER_SIZE) + data
    renewed = header._replace(
        length=len(output) - LENGTH_PREFIX,
        attributes=header.attributes & ~CODEC_MASK | codec,
    )
    HEADER.pack_into(output, 0, *renewed)
    renew_checksum(memoryview(output))
    return output
