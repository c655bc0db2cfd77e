"""Opens the segments of a log after any kind of end: the longest valid prefix is kept, and damage
where nothing can have been torn is never dropped, but raised with file, byte and offset."""

from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from struct import error as StructError
from typing import Final, NamedTuple, Protocol

from penstock.model.errors import DiskFull
from penstock.records.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from penstock.records.crc32c import crc32c
from penstock.storage.segment import DamagedLog, Segment

_CHUNK_BYTES: Final = 1 << 20
REMEDY: Final = "restore the file from a copy, or give up what it held by deleting the topic"


class Ending(Enum):
    """How the last run with this directory ended."""

    CLEAN = "clean"
    PROCESS_CRASH = "process-crash"  # the machine stayed up: what was written is there
    POWER_LOSS = "power-loss"  # what was not synced may be gone, in any part


class Past(NamedTuple):
    """What the last run wrote down about a log."""

    ending: Ending = Ending.CLEAN
    recovery_point: int | None = 0  # all below it is durable; None: that was lost
    start_offset: int | None = None  # None: never written down
    has_gaps: bool = False  # offsets may be missing between batches
    size_bytes: int | None = None  # of all segments, if it ended well; None: never written down
    has_copies: bool = False  # other replicas may have what this one lacks


class Recovery(NamedTuple):
    """What opening a log took, and what it had to give up."""

    scanned_bytes: int = 0
    dropped_bytes: int = 0
    dropped_from_offset: int = -1


class Damage(NamedTuple):
    """The first byte of a segment that is not a valid batch, and the offset expected there."""

    position: int
    offset: int
    lowest_offset: int  # of what is lost if all from there on is dropped
    reason: str
    at_end: bool  # the file ends within the batch: what a write leaves that was cut short


def open_segments(segments: list[Segment], past: Past) -> tuple[list[Segment], Recovery]:
    """The segments that are kept, the last one ready to grow."""
    if past.ending is Ending.CLEAN and past.recovery_point is not None:
        _check_size(segments, past.size_bytes)
        segments[-1].reopen()
        _check_reaches(segments[-1], past.recovery_point)
        return segments, Recovery()
    scan_from = 0 if past.recovery_point is None else past.recovery_point
    number = max((n for n, s in enumerate(segments) if s.base_offset <= scan_from), default=0)
    for closed in range(number):
        check_closed(segments[closed], segments[closed + 1].base_offset)
    return _scan(segments, number, past)


def check_closed(segment: Segment, next_base_offset: int) -> None:
    """A segment that was synced long ago must end where the next one begins."""
    end = segment.last_batch_end()
    if end != next_base_offset:
        raise DamagedLog(
            f"{segment.file.path}: ends at offset {end} (byte {segment.size_bytes}), but the next "
            f"segment begins at {next_base_offset}. {REMEDY}"
        )


def _check_size(segments: list[Segment], size_bytes: int | None) -> None:
    """After a run that ended well nothing may have changed. A segment that is gone or truncated changes the sum."""
    found_bytes = sum(segment.size_bytes for segment in segments)
    if size_bytes is not None and found_bytes != size_bytes:
        raise DamagedLog(
            f"{segments[0].file.directory}: its segments have {found_bytes} bytes, not the {size_bytes} of"
            f" when the last run ended: one is missing, or was cut. {REMEDY}"
        )


def _check_reaches(segment: Segment, recovery_point: int) -> None:
    if segment.next_offset < recovery_point:
        raise DamagedLog(
            f"{segment.file.path}: ends at offset {segment.next_offset} (byte {segment.size_bytes}), "
            f"though synced to offset {recovery_point}. {REMEDY}"
        )


def _scan(segments: list[Segment], number: int, past: Past) -> tuple[list[Segment], Recovery]:
    """Check every batch that may not have been synced; keep those up to the first that is damaged."""
    scanned_bytes = 0
    next_offset = segments[number].base_offset
    for current in range(number, len(segments)):
        segment = segments[current]
        is_last = current + 1 == len(segments)
        damage = _misplaced(segment, next_offset)
        if damage is None:
            start = _start_of_scan(segment, past)
            scanned_bytes += segment.size_bytes - start
            damage = note_valid(segment, start, past.has_gaps)
        if damage is not None:
            _refuse_loss(segment, damage, past, is_last)
            dropped = _drop(segments, current, damage)
            return segments, Recovery(scanned_bytes, dropped, damage.offset)
        next_offset = segment.next_offset
        if not is_last:
            with suppress(DiskFull):  # then the next flush does it
                segment.seal()
    _check_reaches(segments[-1], past.recovery_point or 0)
    return segments, Recovery(scanned_bytes)


def _misplaced(segment: Segment, next_offset: int) -> Damage | None:
    """Whether a segment does not follow what came before it."""
    if segment.base_offset == next_offset:
        return None
    reason = f"begins at offset {segment.base_offset}, not at {next_offset}"
    return Damage(0, next_offset, next_offset, reason, at_end=False)


def _start_of_scan(segment: Segment, past: Past) -> int:
    """The position to check batches from, with those before it noted.

    After a process crash the index files are what was written; after power loss they may be anything.
    """
    point = past.recovery_point
    if past.ending is Ending.PROCESS_CRASH and point is not None and point > segment.base_offset:
        return segment.resume_before(point)
    segment.start_over()
    return 0


def _refuse_loss(segment: Segment, damage: Damage, past: Past, is_last: bool) -> None:
    """Raises unless the damage may be what a crash tore."""
    point = past.recovery_point
    if point is None:
        if is_last and damage.at_end:
            return
        known = "how far it was synced is not known"
    elif damage.lowest_offset >= point:
        if _is_torn(damage, past, is_last):
            return
        known = "and a crash of the process leaves no more than a short last batch"
    else:
        known = f"it was synced to offset {point}"
    raise DamagedLog(
        f"{segment.file.path}: damaged at byte {damage.position} (offset {damage.offset}): "
        f"{damage.reason}; {known}. {REMEDY}"
    )


def _is_torn(damage: Damage, past: Past, is_last: bool) -> bool:
    """Whether the end of the last run explains it. What it does not may have been acknowledged, and is not to be
    dropped where it can be had elsewhere (L3)."""
    if past.ending is not Ending.PROCESS_CRASH or not past.has_copies:
        return True
    return is_last and damage.at_end


def _drop(segments: list[Segment], number: int, damage: Damage) -> int:
    """Cut the log off at the damage; the bytes that go. Newest first, so that a crash leaves no hole."""
    dropped_bytes = 0
    keep_this = damage.position > 0 or number == 0
    for segment in reversed(segments[number + keep_this :]):
        dropped_bytes += segment.size_bytes
        segment.unlink()
    del segments[number + keep_this :]
    last = segments[-1]
    if keep_this:
        dropped_bytes += last.size_bytes - damage.position
        last.truncate(damage.position, damage.offset)
    else:
        last.reopen()
    return dropped_bytes


def note_valid(segment: Segment, position: int, has_gaps: bool) -> Damage | None:
    """Note the valid batches from `position` on; the damage that ends them, if it is not the end."""
    end = segment.file.size
    for found in valid_batches(segment.file, position, end, segment.next_offset, has_gaps):
        if isinstance(found, Damage):
            return found
        segment.note(*found)
    return None


class Readable(Protocol):
    def read_at(self, position: int, size: int) -> bytes: ...


def valid_batches(
    file: Readable, position: int, end: int, next_offset: int, has_gaps: bool
) -> Iterator[tuple[int, BatchHeader] | Damage]:
    """Each batch that is whole and right, then the damage, unless they fill the file up to `end`.

    No checksum covers the base offset: without gaps it must be the next one, with them at least that.
    """
    chunk, start = memoryview(b""), position
    while position < end:
        if position - start + HEADER_SIZE > len(chunk):
            chunk, start = memoryview(file.read_at(position, _CHUNK_BYTES)), position
        header = _plausible(chunk, position, position - start, end, next_offset)
        if isinstance(header, Damage):
            yield header
            return
        size = header.size_bytes
        if position - start + size > len(chunk):
            chunk, start = memoryview(file.read_at(position, max(_CHUNK_BYTES, size))), position
        batch = chunk[position - start : position - start + size]
        if len(batch) < size or crc32c(batch[CRC_START:]) != header.crc:
            yield Damage(position, next_offset, next_offset, "checksum mismatch", at_end=False)
            return
        base_offset = header.base_offset
        if base_offset < next_offset or (base_offset > next_offset and not has_gaps):
            lowest = min(base_offset, next_offset) if has_gaps else next_offset
            reason = f"a batch of offset {base_offset} where {next_offset} is next"
            yield Damage(position, next_offset, lowest, reason, at_end=False)
            return
        yield position, header
        position += size
        next_offset = header.next_offset


def _plausible(
    chunk: memoryview, position: int, at: int, end: int, next_offset: int
) -> BatchHeader | Damage:
    left = end - position
    try:
        header = parse_header(chunk, at)
    except StructError:
        reason = f"{left} bytes are no batch"
        return Damage(position, next_offset, next_offset, reason, at_end=True)
    if header.magic != MAGIC or header.size_bytes < HEADER_SIZE or header.last_offset_delta < 0:
        reason = f"no batch header (magic {header.magic}, length {header.length})"
        return Damage(position, next_offset, next_offset, reason, at_end=False)
    if header.size_bytes > left:
        reason = f"a batch of {header.size_bytes} bytes, of which {left} are there"
        return Damage(position, next_offset, next_offset, reason, at_end=True)
    return header
