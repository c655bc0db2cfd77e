"""I13: what a log knows agrees with its files, whenever it is opened or cut. I14: what it takes for durable is.

The files are read as they are, without the product's own reading.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from penstock.broker.partitions.partition import Partition
from penstock.model.errors import CorruptBatch
from penstock.records.batch import BatchHeader, iter_headers, verify
from penstock.storage.directory import DataDirectory
from penstock.storage.log import Log
from penstock.storage.segment import DamagedLog, Segment
from tests.simulation.disk import PAGE_BYTES, File, Folder, SimDisk
from tests.simulation.machine import Machine

_open = open  # later, calls of it are simulated


class LogFiles:
    def __init__(self, machines: Iterable[Machine], fail: Callable[[str], None]) -> None:
        self._machines = list(machines)
        self._fail = fail

    # I13 -------------------------------------------------------------------------------------------

    def check_opened(self, log: Log) -> None:
        """After it was opened, or cut."""
        try:
            headers = list(_headers(log))
        except CorruptBatch as error:
            self._fail(f"I13: {log.path}: {error}")
            return
        found = [*_misplaced(log, headers), *_wrong_epochs(log, headers)]
        found += _wrong_producers(log, headers)
        if log.recovery_point > log.next_offset:
            found.append(f"recovery point {log.recovery_point}, log end {log.next_offset}")
        if found:
            self._fail(f"I13: {log.path}: {found[0]}")

    # I14 -------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        flush_end, synced, log_for = Log.flush_end, Partition.synced, DataDirectory.log_for

        def opened(directory: DataDirectory, *arguments: Any, **more: Any) -> Log:
            try:
                return log_for(directory, *arguments, **more)
            except DamagedLog as damage:
                disk = self._disk_of(f"{directory.path}/")
                if disk is not None and not disk.faults.has_failed:
                    self._fail(f"I13: no disk has failed: {damage}")
                raise

        def flushed(log: Log, ticket: Any) -> None:
            before = log.recovery_point
            flush_end(log, ticket)
            if log.recovery_point > before:
                self._check_durable(log, before, log.recovery_point)

        def counted(partition: Partition, next_offset: int, size_bytes: int) -> None:
            before = partition._durable_offset
            synced(partition, next_offset, size_bytes)
            if partition._durable_offset > before:
                self._check_durable(partition.log, before, partition._durable_offset)

        with (
            mock.patch.object(Log, "flush_end", flushed),
            mock.patch.object(Partition, "synced", counted),
            mock.patch.object(DataDirectory, "log_for", opened),
        ):
            yield

    def _check_durable(self, log: Log, before: int, upto: int) -> None:
        """Of segments that reach past `before` all that is below `upto`, also the names."""
        disk = self._disk_of(log.path)
        if disk is None:
            return
        if upto > log.next_offset:
            self._fail(f"I14: {log.path}: {upto} is durable, and the log ends at {log.next_offset}")
        folder = disk.node(log.path)
        if not isinstance(folder, Folder) or not _is_named(disk, log.path):
            self._fail(f"I14: {log.path}: the directory is not durable")
            return
        for segment in log.segments:
            if segment.next_offset > before and segment.base_offset < upto:
                self._check_segment(folder, segment, upto, has_gaps=log.has_gaps)

    def _check_segment(
        self, folder: Folder, segment: Segment, upto: int, *, has_gaps: bool
    ) -> None:
        path = segment.file.path
        name = path.rpartition("/")[2]
        file = folder.names.get(name)
        durable = folder.durable.get(name)
        if not isinstance(file, File):
            self._fail(f"I14: {path} is not there")
        elif has_gaps and durable is not file and isinstance(durable, File):
            return  # a compacted segment has just come in its place: a flush that began before is of the old one
        elif durable is not file:
            self._fail(f"I14: the name of {path} is not durable")
        elif file.is_clean and not file.dropped:
            return
        elif (page := _first_lost_page(file, path, _size_upto(path, upto))) is not None:
            self._fail(
                f"I14: {path}: page {page} is not durable, the log up to {upto} is said to be"
            )

    def _disk_of(self, path: str) -> SimDisk | None:
        for machine in self._machines:
            if path.startswith(f"{machine.directory}/"):
                return machine.disk
        return None


# Files ---------------------------------------------------------------------------------------------


def _content(path: str) -> bytes:
    with _open(path, "rb") as file:
        return file.read()


def _headers(log: Log) -> Iterator[BatchHeader]:
    """Of all batches. Raises CorruptBatch at the first that is not whole."""
    for segment in log.segments:
        data = memoryview(_content(segment.file.path))
        if len(data) != segment.file.size:
            raise CorruptBatch(
                f"{segment.file.path} has {len(data)} bytes, not {segment.file.size}"
            )
        end = 0
        for start, header in iter_headers(data):
            end = start + header.size_bytes
            verify(data[start:end], header)
            if not segment.base_offset <= header.base_offset < segment.next_offset:
                raise CorruptBatch(f"{header.base_offset} is in {segment.file.path}")
            yield header
        if end != len(data):
            raise CorruptBatch(f"{segment.file.path}: {len(data) - end} bytes are no batch")


def _is_named(disk: SimDisk, path: str) -> bool:
    """Whether the names of a directory and of those above it are durable."""
    while path != disk.root:
        parent, _, name = path.rpartition("/")
        folder = disk.node(parent)
        if not isinstance(folder, Folder) or folder.durable.get(name) is not folder.names.get(name):
            return False
        path = parent
    return True


def _size_upto(path: str, offset: int) -> int:
    data = memoryview(_content(path))
    ends = (start + it.size_bytes for start, it in iter_headers(data) if it.next_offset <= offset)
    return max(ends, default=0)


def _first_lost_page(file: File, path: str, size: int) -> int | None:
    """The first page below `size` that a loss of power could change."""
    pages = {*file.dirty, *file.dropped}
    if file.cut_to is not None:
        pages.update(range(file.cut_to // PAGE_BYTES, size // PAGE_BYTES + 1))
    if len(file.durable) < size:
        pages.add(len(file.durable) // PAGE_BYTES)
    content = _content(path)
    for page in sorted(pages):
        part = slice(page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, size))
        if part.start < size and file.durable[part] != content[part]:
            return page
    return None


# What a log knows ----------------------------------------------------------------------------------


def _misplaced(log: Log, headers: list[BatchHeader]) -> Iterator[str]:
    expected = log.segments[0].base_offset if log.segments else log.next_offset
    for header in headers:
        if header.base_offset < expected or (header.base_offset > expected and not log.has_gaps):
            yield f"offset {header.base_offset} where {expected} is next"
        expected = header.next_offset
    if log.segments and expected != log.next_offset and not log.has_gaps:
        yield f"its batches end at {expected}, the log at {log.next_offset}"
    if not (log.segments[0].base_offset if log.segments else 0) <= log.start_offset:
        yield f"it starts at {log.start_offset}, before its first segment"
    if log.start_offset > log.next_offset:
        yield f"it starts at {log.start_offset} and ends at {log.next_offset}"


def _wrong_epochs(log: Log, headers: list[BatchHeader]) -> Iterator[str]:
    latest = -1
    for header in headers:
        if header.leader_epoch < 0:
            continue  # what compaction has put in place of others
        if header.leader_epoch < latest:
            yield f"epoch {header.leader_epoch} at {header.base_offset} after {latest}"
        latest = header.leader_epoch
        known = log.epochs.epoch_at(header.last_offset)
        if header.next_offset > log.start_offset and known != header.leader_epoch:
            yield f"epoch {header.leader_epoch} at {header.base_offset} is known as {known}"
    if log.epochs.entries() and log.epochs.entries()[-1][1] > log.next_offset:
        yield f"an epoch begins after its end: {log.epochs.entries()[-1]}"


def _wrong_producers(log: Log, headers: list[BatchHeader]) -> Iterator[str]:
    """What is known of producers is what the last of their batches says."""
    last = {
        header.producer_id: header
        for header in headers
        if header.producer_id >= 0 and not header.is_control and header.base_sequence >= 0
    }
    first_offset = log.segments[0].base_offset if log.segments else log.next_offset
    for producer_id, producer in log.producers:
        if not producer.batches or producer.batches[-1].last_offset < first_offset:
            continue
        known, header = producer.batches[-1], last.pop(producer_id, None)
        wanted = (producer.epoch, known.last_sequence, known.last_offset)
        found = header and (header.producer_epoch, header.last_sequence, header.last_offset)
        if found != wanted:
            yield f"producer {producer_id} is known by {wanted}, its last batch says {found}"
    for producer_id, header in last.items():
        if producer_id not in log.producers:
            yield f"producer {producer_id} wrote {header.last_offset} and is not known"
