"""What each replica's log holds, kept beside the logs themselves: batches enter and leave as the product's own calls say.

Batches that retention, DeleteRecords or compaction have taken stay in a mirror as long as the process runs: whoever
compares looks at offsets from the log start on, and takes a compacted batch for the same as before.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple
from unittest import mock

from penstock.broker.partitions.partition import Partition
from penstock.model.errors import StorageFault
from penstock.model.ids import TopicId
from penstock.records.batch import BatchHeader, iter_headers, parse_header
from penstock.replication.leader import Leadership
from penstock.storage.directory import DataDirectory
from penstock.storage.limits import COMPACT
from penstock.storage.log import Appended, Log

Place = tuple[bytes, int]  # topic id and partition
_CHECKED: Final = (  # and the log's offsets
    "is_leader",
    "leader_epoch",
    "high_watermark",
    "is_stopped",
    "_log",
)
_OFFSETS: Final = ("next_offset", "start_offset")


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    epoch: int
    crc: int
    time_ms: int
    size_bytes: int

    def is_same(self, other: "Batch", *, compacted: bool) -> bool:
        """Compaction may have taken records out of either."""
        return self[:3] == other[:3] if compacted else self == other

    def contradicts(self, other: "Batch", compacted: bool) -> bool:
        """Whether it ends where the other does and is another; with I2, then all before them agree or not."""
        return self.next_offset == other.next_offset and not self.is_same(
            other, compacted=compacted
        )


class Mirror:
    """The batches of one replica, in order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.batches = _read(log)

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else self.log.start_offset

    @property
    def is_compacted(self) -> bool:
        return COMPACT in self.log.config.cleanup_policy

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)

    def cut(self) -> None:
        log = self.log
        while self.batches and self.batches[-1].next_offset > log.next_offset:
            self.batches.pop()

    def ends_at(self, offset: int) -> Batch | None:
        """The batch that ends there."""
        number = bisect_left(self.batches, offset, key=_next_offset)
        found = self.batches[number] if number < len(self.batches) else None
        return found if found is not None and found.next_offset == offset else None

    def upto(self, offset: int) -> list[Batch]:
        """The batches below it, from the log start on."""
        first = bisect_right(self.batches, self.log.start_offset, key=_next_offset)
        return self.batches[first : bisect_right(self.batches, offset, key=_next_offset)]

    def gap(self, expected: Sequence[Batch]) -> str:
        """The first of `expected` that is above the log start and missing here, or different."""
        compacted, start = self.is_compacted, self.log.start_offset
        first = bisect_right(expected, start, key=_next_offset)
        if first == len(expected):
            return ""
        if expected[-1].next_offset > self.end:
            return f"it ends at {self.end}, {expected[-1].next_offset} is committed"
        wanted = expected[first:]
        if not compacted:
            mine = self.upto(expected[-1].next_offset)
            if mine == wanted:
                return ""
        known = {batch.base_offset: batch for batch in self.batches}
        for batch in wanted:
            found = known.get(batch.base_offset)
            if found is None:
                if not compacted:
                    return f"{batch} is missing"
            elif not found.is_same(batch, compacted=compacted) and not _is_filler(found, compacted):
                return f"{batch}, it has {found}"
        return "" if compacted else "it has more batches than that"


class Mirrors:
    """`entered` hears of every batch, and whether a leader took it; `taken` of the headers of those that a leader took;
    `differs` of a log that changed while nobody ran; `opened` of a log that was opened, or cut; `started` of a log
    start that has moved, from where, and the time by which records expired (None: they were deleted); `proposed` of a
    leader that wants other in-sync replicas, and of those that join or leave; `was_cut` of the path of a log that lost
    its end."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], Mirror] = {}  # by path and topic id
        self._saved_starts: dict[tuple[str, bytes], int] = {}  # that are surely on the disk
        self._torn: dict[tuple[str, bytes], bool] = {}  # the process ended within a callback
        self.entered: Callable[[Log, Batch, bool], None] = lambda _log, _batch, _led: None
        self.taken: Callable[[Log, BatchHeader], None] = lambda _log, _header: None
        self.differs: Callable[[str], None] = lambda _what: None
        self.opened: Callable[[Log], None] = lambda _log: None
        self.cutting: Callable[[Log], None] = lambda _log: None  # it is about to be cut
        self.started: Callable[[Log, int, int | None], None] = lambda _log, _before, _now: None
        self.proposed: Callable[[int, Sequence[int]], None] = lambda _leader, _changed: None
        self.was_cut: Callable[[str], None] = lambda _path: None
        self.touched: dict[Partition, None] = {}  # by the current step
        self._owners: dict[Log, Partition] = {}

    def of(self, log: Log) -> Mirror:
        key = _key(log)
        known = self._known.get(key)
        if known is None or known.log is not log:
            found = Mirror(log)
            self.opened(log)
            saved = min(self._saved_starts.get(key, 0), log.next_offset)
            if log.start_offset < saved:
                self.differs(f"I12: {log.path} starts at {log.start_offset}, {saved} was saved")
            is_torn = self._torn.pop(key, False)
            if known is not None and not _agree(known, found, is_torn=is_torn):
                self.differs(f"{log.path}: a crash of the process changed the log")
            self._known[key] = known = found
        return known

    def owner_of(self, log: Log) -> Partition | None:
        """The partition that has this log, or had it."""
        return self._owners.get(log)

    def at(self, path: str, topic_id: bytes) -> Mirror | None:
        """Also of a broker that is down, as its process left the log."""
        return self._known.get((path, topic_id))

    def tear(self, directory: str) -> None:
        """A process ends now, within a callback: of its last change a part may be there, or all."""
        for key in self._known:
            if key[0].startswith(f"{directory}/"):
                self._torn[key] = True

    def forget(self, directory: str) -> None:
        """Power was lost: nobody knows what is left."""
        for key in [it for it in self._known if it[0].startswith(f"{directory}/")]:
            del self._known[key]

    def _copied(self, log: Log, mirror: Mirror, records: memoryview) -> None:
        for _, header in iter_headers(records):
            if mirror.end <= header.base_offset < log.next_offset:
                batch = _batch(header)
                mirror.add(batch)
                self.entered(log, batch, False)

    def _start_lowered(self, log: Log) -> None:
        """By a cut, or because the log begins anew."""
        key = _key(log)
        if key in self._saved_starts:
            self._saved_starts[key] = min(self._saved_starts[key], log.start_offset)

    def _truncate(self, log: Log, offset: int, truncate: Callable[[Log, int], None]) -> None:
        mirror, end = self.of(log), log.next_offset
        if offset < end:
            self.cutting(log)
        try:
            truncate(log, offset)
        except StorageFault:  # memory and files disagree: some of it may be cut, or all
            self._torn[_key(log)] = True
            raise
        mirror.cut()
        self._start_lowered(log)
        self.opened(log)
        if log.next_offset < end:
            self.was_cut(log.path)

    @contextmanager
    def watching(self) -> Iterator[None]:
        append, copy = Log.append_as_leader, Log.append_as_follower
        append_together = Log.append_run
        truncate, restart, leave = (
            Log.truncate_to,
            Log.truncate_fully_and_start_at,
            DataDirectory.give_up,
        )

        def append_as_leader(log: Log, records: memoryview, **more: Any) -> Appended:
            mirror = self.of(log)
            appended = append(log, records, **more)
            if not appended.duplicate:
                led(log, mirror, records, appended, more["leader_epoch"])
            return appended

        def append_run(log: Log, run: Sequence[memoryview], **more: Any) -> list[Appended] | None:
            mirror = self.of(log)
            outcomes = append_together(log, run, **more)
            for records, appended in zip(run, outcomes or [], strict=outcomes is not None):
                led(log, mirror, records, appended, more["leader_epoch"])
            return outcomes

        def led(
            log: Log, mirror: Mirror, records: memoryview, appended: Appended, epoch: int
        ) -> None:
            header = parse_header(records)
            placed = header._replace(base_offset=appended.base_offset, leader_epoch=epoch)
            batch = _batch(placed)
            mirror.add(batch)
            self.entered(log, batch, True)
            self.taken(log, header)

        def append_as_follower(log: Log, records: memoryview) -> None:
            mirror = self.of(log)
            try:
                copy(log, records)
            finally:  # batches before a fault are in the log, and count
                self._copied(log, mirror, records)

        def truncate_to(log: Log, offset: int) -> None:
            self._truncate(log, offset, truncate)

        def give_up(at: DataDirectory, topic: str, topic_id: TopicId, partition: int) -> None:
            key = at.partition_path(topic, partition), bytes(topic_id)
            self._known.pop(key, None)
            self._saved_starts.pop(key, None)
            leave(at, topic, topic_id, partition)

        def truncate_fully_and_start_at(log: Log, offset: int) -> None:
            mirror = self.of(log)
            restart(log, offset)
            mirror.batches.clear()
            self._start_lowered(log)

        with ExitStack() as stack:
            stack.enter_context(self._noticing_changes())
            stack.enter_context(self._noticing_starts())
            for owner, name, replacement in (
                (Log, "append_as_leader", append_as_leader),
                (Log, "append_run", append_run),
                (Log, "append_as_follower", append_as_follower),
                (Log, "truncate_to", truncate_to),
                (Log, "truncate_fully_and_start_at", truncate_fully_and_start_at),
                (DataDirectory, "give_up", give_up),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement))
            yield

    @contextmanager
    def _noticing_starts(self) -> Iterator[None]:
        delete, retain, checkpointed = (
            Log.delete_records_before,
            Log.apply_retention,
            Log.checkpointed,
        )

        def delete_records_before(log: Log, offset: int) -> None:
            self.of(log)
            before = log.start_offset
            try:
                delete(log, offset)
            finally:
                if log.start_offset != before:
                    self.started(log, before, None)

        def apply_retention(log: Log, now_ms: int, *, upto_offset: int) -> int:
            self.of(log)
            before = log.start_offset
            try:
                return retain(log, now_ms, upto_offset=upto_offset)
            finally:
                if log.start_offset != before:
                    self.started(log, before, now_ms)

        def saved(log: Log, truncations: int, start_offset: int) -> None:
            checkpointed(log, truncations, start_offset)
            if truncations == log.truncations:
                self._saved_starts[_key(log)] = start_offset

        with (
            mock.patch.object(Log, "delete_records_before", delete_records_before),
            mock.patch.object(Log, "apply_retention", apply_retention),
            mock.patch.object(Log, "checkpointed", saved),
        ):
            yield

    @contextmanager
    def _noticing_changes(self) -> Iterator[None]:
        """Note in `touched` which partitions change, so that no step looks at all of them."""
        propose = Leadership.propose

        def set_of_partition(partition: Partition, name: str, value: Any) -> None:
            object.__setattr__(partition, name, value)
            if name in _CHECKED:
                self.touched[partition] = None
                if name == "_log" and value is not None:
                    self._owners[value] = partition

        def set_of_log(log: Log, name: str, value: Any) -> None:
            object.__setattr__(log, name, value)
            if name in _OFFSETS and log in self._owners:
                self.touched[self._owners[log]] = None

        def propose_isr(leadership: Leadership, members: tuple[int, ...]) -> None:
            propose(leadership, members)
            changed = sorted({*leadership.isr.members} ^ {*members})
            self.proposed(leadership.broker_id, changed)

        with (
            mock.patch.object(Leadership, "propose", propose_isr),
            mock.patch.object(Partition, "__setattr__", set_of_partition, create=True),
            mock.patch.object(Log, "__setattr__", set_of_log, create=True),
        ):
            yield


def _key(log: Log) -> tuple[str, bytes]:
    return log.path, bytes(log.topic_id)


def _batch(header: BatchHeader) -> Batch:
    return Batch(
        header.base_offset,
        header.next_offset,
        header.leader_epoch,
        header.crc,
        header.max_timestamp_ms,
        header.size_bytes,
    )


def _is_filler(batch: Batch, compacted: bool) -> bool:
    """Whether compaction has put it where nothing was left: it covers the offsets of several."""
    return compacted and batch.time_ms < 0


def _agree(before: Mirror, after: Mirror, *, is_torn: bool) -> bool:
    """Whether the log is what it was, apart from what was deleted or compacted."""
    if before.is_compacted:
        expected = [it for it in before.batches if not is_torn or it.next_offset <= after.end]
        return not after.gap(expected)
    start = max(before.log.start_offset, after.log.start_offset)
    first, second = (bisect_right(it.batches, start, key=_next_offset) for it in (before, after))
    had, has = before.batches[first:], after.batches[second:]
    count = min(len(had), len(has)) if is_torn else None
    return had[:count] == has[:count]


def _next_offset(batch: Batch) -> int:
    return batch.next_offset


def _read(log: Log) -> list[Batch]:
    found: list[Batch] = []
    offset = log.start_offset
    while offset < log.next_offset:
        read = log.read(offset, 1 << 20, upto_offset=log.next_offset)
        if not read.slices:
            break
        data = memoryview(b"".join(piece.read() for piece in read.slices))
        found += [_batch(header) for _, header in iter_headers(data)]
        offset = read.next_offset
    return found
