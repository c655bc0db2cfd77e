"""Opens the segments of a log after any kind of end: the longest valid prefix is kept, and damage
where nothing can have been torn is never dropped, but raised with file, byte and offset."""

import os
from collections.abc import Iterator
from enum import Enum
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.model.errors import StorageFault
from penstock.records.batch import CRC_START, HEADER_SIZE, MAGIC, BatchHeader, parse_header
from penstock.records.crc32c import crc32c
from penstock.storage.files import OpenFiles, SegmentFile
from penstock.storage.segment import LOG_SUFFIX, Segment

_CHUNK_BYTES: Final = 1 << 20


class Ending(Enum):
    """How the last run with this directory ended."""

    CLEAN = "clean"
    PROCESS_CRASH = "process-crash"  # the machine stayed up: what was written is there
    POWER_LOSS = "power-loss"  # what was not synced may be gone, in any part


class Damage(NamedTuple):
    """The first byte of a segment that cannot be a valid batch, and the offset expected there."""

    position: int
    offset: int
    reason: str


class Recovery(NamedTuple):
    """What opening a log found, and had to give up."""

    scanned_bytes: int = 0
    dropped_bytes: int = 0
    dropped_from_offset: int = -1


def valid_batches(
    file: SegmentFile, position: int, next_offset: int
) -> Iterator[tuple[int, BatchHeader] | Damage]:
    """Each batch that is whole and right, then, if the file does not end with the last one, the damage."""
    chunk, start = memoryview(b""), position
    while position < file.size:
        header, reason = None, ""
        available = len(chunk) - (position - start)
        if available < HEADER_SIZE:
            chunk, start = _chunk(file, position, _CHUNK_BYTES), position
        header, reason = _plausible(chunk, position - start, file.size - position, next_offset)
        if header is None:
            yield Damage(position, next_offset, reason)
            return
        if position - start + header.size_bytes > len(chunk):
            chunk = _chunk(file, position, max(_CHUNK_BYTES, header.size_bytes))
            start = position
        batch = chunk[position - start : position - start + header.size_bytes]
        if len(batch) != header.size_bytes or crc32c(batch[CRC_START:]) != header.crc:
            yield Damage(position, next_offset, "checksum mismatch")
            return
        yield position, header
        position += header.size_bytes
        next_offset = header.next_offset


def _chunk(file: SegmentFile, position: int, size: int) -> memoryview:
    return memoryview(file.read(position, size))


def _plausible(
    chunk: memoryview, at: int, left: int, next_offset: int
) -> tuple[BatchHeader | None, str]:
    try:
        header = parse_header(chunk, at)
    except StructError:
        return None, f"{left} bytes cannot be a batch"
    if header.magic != MAGIC or header.size_bytes < HEADER_SIZE or header.last_offset_delta < 0:
        return None, f"no batch header (magic {header.magic}, length {header.length})"
    if header.base_offset < next_offset:
        return None, f"offset {header.base_offset} after {next_offset - 1}"
    if header.size_bytes > left:
        return None, f"a batch of {header.size_bytes} bytes, of which {left} are there"
    return header, ""


def log_files(directory: str) -> list[tuple[int, int]]:
    """Base offset and size of each segment file, in order."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                stem, dot, suffix = entry.name.partition(".")
                if dot + suffix == LOG_SUFFIX and len(stem) == 20 and stem.isdigit():
                    found.append((int(stem), entry.stat().st_size))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageFault(f"{directory}: cannot be listed: {error.strerror}") from error
    return sorted(found)


def open_segments(
    files: OpenFiles,
    directory: str,
    interval_bytes: int,
    *,
    ending: Ending,
    recovery_point: int | None,
) -> tuple[list[Segment], Recovery]:
    """The segments in order, the last one ready to grow. `recovery_point` None: it was lost."""
    found = log_files(directory)
    segments = [
        Segment(
            SegmentFile(files, directory, base_offset, LOG_SUFFIX, size),
            interval_bytes,
            found[number + 1][0] if number + 1 < len(found) else base_offset,
        )
        for number, (base_offset, size) in enumerate(found)
    ]
    if not segments:
        return [], Recovery()
    if ending is Ending.CLEAN:
        segments[-1].reopen()
        return segments, Recovery()
    return _recover(segments, recovery_point, ending)


def _recover(
    segments: list[Segment], recovery_point: int | None, ending: Ending
) -> tuple[list[Segment], Recovery]:
    point = recovery_point or 0
    number = max((n for n, s in enumerate(segments) if s.base_offset <= point), default=0)
    kept, scanned_bytes = segments[:number], 0
    for number, segment in enumerate(segments[number:], start=number):
        damage, scanned = _recover_segment(segment, point, ending)
        scanned_bytes += scanned
        kept.append(segment)
        if damage is not None:
            return kept, _give_up(segments, number, damage, recovery_point, scanned_bytes)
    if segments[-1].next_offset < point:
        raise StorageFault(
            f"{segments[-1].file.path}: ends at offset {segments[-1].next_offset} (byte "
            f"{segments[-1].size_bytes}), though synced to offset {point}"
        )
    return kept, Recovery(scanned_bytes)


def _recover_segment(segment: Segment, point: int, ending: Ending) -> tuple[Damage | None, int]:
    """Scan what may be torn; note what is right."""
    start = 0
    if ending is Ending.PROCESS_CRASH and segment.base_offset < point < segment.next_offset:
        start = 0
    segment.start_over()
    file = segment.file
    for found in valid_batches(file, start, segment.base_offset):
        if isinstance(found, Damage):
            return found, file.size - start
        segment.note_header(*found)
    return None, file.size - start


def _give_up(
    segments: list[Segment],
    number: int,
    damage: Damage,
    recovery_point: int | None,
    scanned_bytes: int,
) -> Recovery:
    """Drop the damage and all after it, if it may be what a crash tore."""
    segment = segments[number]
    where = f"{segment.file.path}: damaged at byte {damage.position} (offset {damage.offset}): {damage.reason}"
    if recovery_point is not None and damage.offset < recovery_point:
        raise StorageFault(f"{where}, though synced to offset {recovery_point}")
    dropped_bytes = segment.size_bytes - damage.position
    segment.truncate(damage.position)
    for later in segments[number + 1 :]:
        dropped_bytes += later.size_bytes
        later.unlink()
    return Recovery(scanned_bytes, dropped_bytes, damage.offset)
