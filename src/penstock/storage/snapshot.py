"""The file `producers.snapshot`: what is known of a log's producers at one or two offsets."""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.records.control import Promotion
from penstock.records.crc32c import crc32c
from penstock.storage.checksummed_json import Damaged
from penstock.storage.producers import KnownBatch, Producer, Producers
from penstock.storage.txn_index import Digest

_MAGIC: Final = b"PSNP"
_VERSION: Final = 2
_FIRST_VERSION: Final = 1  # knows no promotions
_HEAD: Final = Struct(
    ">4sHIH"
)  # magic, version, checksum of all that follows it and the version, sections
# offset, epoch and checksum of the batch before it, producers, segments with aborted transactions
_SECTION: Final = Struct(">qiIII")
_PROMOTION: Final = Struct(">16sq")  # topic id, number; 0: there was none
# id, epoch, coordinator epoch, time, next sequence, first offset of its transaction, batches
_PRODUCER: Final = Struct(">qhiqiqB")
_BATCH: Final = Struct(">iiqqq")  # sequences, offsets, timestamp
_DIGEST: Final = Struct(">qII")  # base offset, entries, their checksum
_CHECKED_FROM: Final = 10
_PROMOTION_END: Final = _SECTION.size + _PROMOTION.size


class Mark(NamedTuple):
    """What tells a log up to an offset from any other: of the batch that ends there. See I2: the same
    epoch and offset mean the same batch, and so the same batches before it."""

    leader_epoch: int
    crc: int


NO_MARK: Final = Mark(-1, 0)  # nothing lies before it
_NO_PROMOTION: Final = Promotion(bytes(16), 0)


class Section(NamedTuple):
    """The state once all batches below `offset` are applied."""

    offset: int
    mark: Mark
    producers: list[tuple[int, Producer]]
    promotion: Promotion | None
    aborted: dict[int, Digest]  # by base offset: the entries of each segment below `offset`


def section_of(
    offset: int,
    mark: Mark,
    producers: Producers,
    aborted: Mapping[int, Digest],
    written_ms: int,
) -> bytes:
    """Times are told as if the log, last written to at `written_ms`, had known one clock: see `_count_idle`."""
    parts = [
        _SECTION.pack(offset, *mark, len(producers), len(aborted)),
        _PROMOTION.pack(*(producers.promotion or _NO_PROMOTION)),
    ]
    for producer_id, producer in producers:
        parts.append(
            _PRODUCER.pack(
                producer_id,
                producer.epoch,
                producer.coordinator_epoch,
                written_ms - max(producer.idle_ms, 0),
                producer.next_sequence,
                producer.txn_first_offset,
                len(producer.batches),
            )
        )
        parts += [_BATCH.pack(*batch) for batch in producer.batches]
    parts += [_DIGEST.pack(base_offset, *digest) for base_offset, digest in aborted.items()]
    return b"".join(parts)


def encode(sections: Iterable[bytes]) -> bytes:
    """In the first version where that has room, for those who go back to an older broker."""
    sections = list(sections)
    version = _VERSION if any(map(_has_promotion, sections)) else _FIRST_VERSION
    if version == _FIRST_VERSION:
        sections = [raw[: _SECTION.size] + raw[_PROMOTION_END:] for raw in sections]
    body = b"".join(sections)
    crc = _checksum(version, len(sections).to_bytes(2, "big") + body)
    return _HEAD.pack(_MAGIC, version, crc, len(sections)) + body


def _has_promotion(section: bytes) -> bool:
    return section[_SECTION.size : _PROMOTION_END] != _PROMOTION.pack(*_NO_PROMOTION)


def decode(data: bytes) -> list[tuple[Section, bytes]]:
    """Each section, and its own bytes; raises Damaged."""
    try:
        magic, version, crc, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or not _FIRST_VERSION <= version <= _VERSION:
            raise Damaged(f"producers.snapshot: {magic!r} version {version}; not {_VERSION}")
        if _checksum(version, data[_CHECKED_FROM:]) != crc:
            raise Damaged("producers.snapshot: checksum mismatch")
        sections, position = [], _HEAD.size
        for _ in range(count):
            if version == _FIRST_VERSION:
                data = _with_promotion(data, position + _SECTION.size)
            section, end = _read_section(data, position)
            sections.append((section, data[position:end]))
            position = end
    except StructError as error:
        raise Damaged(f"producers.snapshot: cut off after {len(data)} bytes") from error
    return sections


def _checksum(version: int, checked: bytes) -> int:
    """It also tells the versions apart: one cannot be taken for the other."""
    return crc32c(checked if version == _FIRST_VERSION else checked + bytes((version,)))


def _with_promotion(data: bytes, position: int) -> bytes:
    """A state of the first version as the present one has it."""
    return data[:position] + _PROMOTION.pack(*_NO_PROMOTION) + data[position:]


def _read_section(data: bytes, position: int) -> tuple[Section, int]:
    offset, epoch, crc, producer_count, digest_count = _SECTION.unpack_from(data, position)
    position += _SECTION.size
    promotion = Promotion(*_PROMOTION.unpack_from(data, position))
    position += _PROMOTION.size
    producers, aborted = [], {}
    for _ in range(producer_count):
        producer_id, producer, position = _read_producer(data, position)
        producers.append((producer_id, producer))
    for _ in range(digest_count):
        base_offset, *fields = _DIGEST.unpack_from(data, position)
        aborted[base_offset] = Digest(*fields)
        position += _DIGEST.size
    known = promotion if promotion.number else None
    _count_idle([producer for _, producer in producers])
    return Section(offset, Mark(epoch, crc), producers, known, aborted), position


def _count_idle(producers: Sequence[Producer]) -> None:
    """Each has been idle for as long as it is older than the newest. What has passed since only a clock could tell."""
    newest_ms = max((producer.last_timestamp_ms for producer in producers), default=0)
    for producer in producers:
        producer.idle_ms = newest_ms - producer.last_timestamp_ms


def _read_producer(data: bytes, position: int) -> tuple[int, Producer, int]:
    fields = _PRODUCER.unpack_from(data, position)
    position += _PRODUCER.size
    producer = Producer(fields[1])
    producer.coordinator_epoch, producer.last_timestamp_ms = fields[2], fields[3]
    producer.next_sequence, producer.txn_first_offset = fields[4], fields[5]
    for _ in range(fields[6]):
        producer.batches.append(KnownBatch(*_BATCH.unpack_from(data, position)))
        position += _BATCH.size
    return fields[0], producer, position
