"""One round of compaction over files: closed segments in, `<base>.log.cleaned` beside them out.

Runs in the worker process. Changes nothing that a log reads: only a swap does (swap.py).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, Final, NamedTuple

from penstock.model.errors import CorruptBatch, StorageFault
from penstock.records.batch import HEADER_SIZE, BatchHeader, iter_headers, parse_header
from penstock.records.compaction import (
    KEY_BYTES,
    AbortedRange,
    OffsetMap,
    ProducerTail,
    Rules,
    Statistics,
    Transactions,
    compact,
)
from penstock.storage.segment import LOG_SUFFIX, MAX_RELATIVE_OFFSET
from penstock.storage.swap import CLEANED, Swap

_CHUNK_BYTES: Final = 1 << 20


class Source(NamedTuple):
    """A closed segment."""

    base_offset: int
    next_offset: int
    size_bytes: int


class Job(NamedTuple):
    """All that the worker is told: it looks at no file but the segments."""

    directory: str
    sources: tuple[Source, ...]  # from the first of the log up to the last that may be cleaned
    first_dirty_offset: int
    upto_offset: int  # where the last source ends
    aborted: tuple[AbortedRange, ...]
    producers: tuple[tuple[int, int, int | None], ...]  # id, epoch, last data offset
    epoch_ends: tuple[int, ...]  # one past the last offset of each leader epoch but the present one
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    map_bytes: int  # log.cleaner.dedupe.buffer.size
    io_bytes_per_second: float

    @classmethod
    def decode(cls, fields: list[Any]) -> "Job":
        """Back from JSON, which knows no tuples."""
        job = cls(*fields)
        return job._replace(
            sources=tuple(Source(*source) for source in job.sources),
            aborted=tuple(AbortedRange(*aborted) for aborted in job.aborted),
            epoch_ends=tuple(job.epoch_ends),
        )


class Outcome(NamedTuple):
    """Cleaned files lie ready for these swaps, and below `clean_upto_offset` no key is there twice."""

    swaps: tuple[Swap, ...]
    clean_upto_offset: int
    read_bytes: int
    written_bytes: int
    unreadable_batches: int
    keyless_records: int

    @classmethod
    def decode(cls, fields: list[Any]) -> "Outcome":
        outcome = cls(*fields)
        return outcome._replace(
            swaps=tuple(Swap(tuple(old), tuple(new)) for old, new in outcome.swaps)
        )


class Pace:
    """Keeps reading and writing below a rate, by sleeping."""

    def __init__(
        self,
        bytes_per_second: float,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._pause = pause
        self._free_at = clock()

    def spend(self, size_bytes: int) -> None:
        now = self._clock()
        self._free_at = max(self._free_at, now) + size_bytes / self._rate
        if self._free_at > now:
            self._pause(self._free_at - now)


def clean(job: Job) -> Outcome:
    """Leaves the cleaned files of every group, or, when it raises, none."""
    pace = Pace(job.io_bytes_per_second)
    producers = {pid: ProducerTail(epoch, last) for pid, epoch, last in job.producers}
    rules = Rules(job.now_ms, job.delete_retention_ms, job.upto_offset, producers, ends=())
    latest = OffsetMap(job.map_bytes // KEY_BYTES)
    dirty = [source for source in job.sources if source.next_offset > job.first_dirty_offset]
    latest.fill(
        _batches(job.directory, dirty, pace),
        Transactions(job.aborted),
        job.first_dirty_offset,
        rules,
    )
    statistics, transactions = Statistics(), Transactions(job.aborted)
    grouped = list(groups(job, latest.upto_offset))
    ends = {group[-1].next_offset for group in grouped}
    rules = rules._replace(ends=ends.union(job.epoch_ends))
    swaps: list[Swap] = []
    try:
        for group in grouped:
            left = compact(
                _batches(job.directory, group, pace), latest, transactions, rules, statistics
            )
            swap = Swap(tuple(source.base_offset for source in group), (group[0].base_offset,))
            swaps.append(swap)
            if not _write(job.directory, group, left, pace):
                _remove(job.directory, swaps.pop())
    except BaseException:
        for swap in swaps:
            _remove(job.directory, swap)
        raise
    return Outcome(
        tuple(swaps),
        latest.upto_offset,
        statistics.read_bytes,
        statistics.written_bytes,
        statistics.unreadable_batches,
        statistics.keyless_records,
    )


def groups(job: Job, upto_offset: int) -> Iterator[list[Source]]:
    """Neighbours that fit into one segment together, so that compaction leaves no crumbs."""
    group: list[Source] = []
    for source in job.sources:
        if source.base_offset >= upto_offset:
            break
        size_bytes = sum(member.size_bytes for member in group) + source.size_bytes
        if group and (
            size_bytes > job.segment_bytes
            or source.next_offset - 1 - group[0].base_offset > MAX_RELATIVE_OFFSET
        ):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _batches(
    directory: str, sources: list[Source], pace: Pace
) -> Iterator[tuple[BatchHeader, memoryview]]:
    for source in sources:
        path = f"{directory}/{source.base_offset:020d}{LOG_SUFFIX}"
        fd = os.open(path, os.O_RDONLY)
        try:
            yield from _read(fd, path, source.size_bytes, pace)
        finally:
            os.close(fd)


def _read(
    fd: int, path: str, size_bytes: int, pace: Pace
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of one file, checksums unseen. Where no batch can be, the walk cannot go on."""
    position, wanted = 0, _CHUNK_BYTES
    while position < size_bytes:
        wanted = min(wanted, size_bytes - position)
        chunk = memoryview(os.pread(fd, wanted, position))
        if len(chunk) < wanted:
            raise StorageFault(f"{path}: ends at byte {position + len(chunk)}, not {size_bytes}")
        pace.spend(wanted)
        end, wanted = 0, _CHUNK_BYTES
        try:
            for at, header in iter_headers(chunk):
                end = at + header.size_bytes
                yield header, chunk[at:end]
        except CorruptBatch as error:
            raise StorageFault(f"{path}: damaged after byte {position + end}: {error}") from error
        if end == 0:
            wanted = _size_of_next(chunk, path, position, size_bytes)
        position += end


def _size_of_next(chunk: memoryview, path: str, position: int, size_bytes: int) -> int:
    """How much to read for a batch that is larger than the chunk."""
    wanted = parse_header(chunk).size_bytes if len(chunk) >= HEADER_SIZE else HEADER_SIZE
    if position + wanted > size_bytes or wanted <= len(chunk):
        raise StorageFault(f"{path}: no whole batch at byte {position} of {size_bytes}")
    return wanted


def _write(
    directory: str,
    group: list[Source],
    left: Iterator[tuple[BatchHeader, bytes | bytearray | memoryview]],
    pace: Pace,
) -> bool:
    """Write and sync what is left of a group; whether anything is different from before."""
    size_bytes, is_changed = 0, len(group) > 1
    with open(_cleaned_path(directory, group[0].base_offset), "xb", _CHUNK_BYTES) as file:
        for _, batch in left:
            file.write(batch)
            pace.spend(len(batch))
            size_bytes += len(batch)
            is_changed = is_changed or not isinstance(batch, memoryview)  # one that was built anew
        file.flush()
        os.fsync(file.fileno())
    return is_changed or size_bytes != group[0].size_bytes


def _remove(directory: str, swap: Swap) -> None:
    for base_offset in swap.new:
        with suppress(FileNotFoundError):
            os.unlink(_cleaned_path(directory, base_offset))


def _cleaned_path(directory: str, base_offset: int) -> str:
    return f"{directory}/{base_offset:020d}{LOG_SUFFIX}{CLEANED}"
