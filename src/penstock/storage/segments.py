"""The segments of a log in order, and the files that have left the log but not yet the disk."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, overload

from penstock.model.errors import DiskFull, OutOfResources, StorageFault
from penstock.storage import swap
from penstock.storage.files import OpenFiles, SegmentFile, halfway
from penstock.storage.segment import LOG_SUFFIX, SPARE_SUFFIX, Segment
from penstock.storage.swap import Swap
from penstock.storage.txn_index import AbortedEntry


class Retired(NamedTuple):
    """Files that may be removed after a while, and once the log start on disk has passed them."""

    delay_ms: int
    end_offset: int
    paths: list[str]
    since_ms: int | None = None  # None: nobody has looked yet


class Segments(Sequence[Segment]):
    """Never empty. The last one, `active`, is the only one that grows."""

    __slots__ = ("_files", "_items", "_path", "_retired", "active")

    def __init__(self, files: OpenFiles, path: str, items: list[Segment]) -> None:
        self._files = files
        self._path = path
        self._items = items
        self._retired: list[Retired] = []
        self.active = items[-1]

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, number: int) -> Segment: ...
    @overload
    def __getitem__(self, number: slice) -> list[Segment]: ...
    def __getitem__(self, number: int | slice) -> Segment | list[Segment]:
        return self._items[number]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._items)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._items)

    def number_of(self, offset: int) -> int:
        """Which segment would hold `offset`; the first one if it is older than all."""
        return max(bisect_right(self._items, offset, key=_base_offset) - 1, 0)

    def begin(self, base_offset: int, interval_bytes: int) -> Segment:
        """A new active segment; the one before it is the caller's to seal."""
        segment = Segment.begin(self._files, self._path, base_offset, interval_bytes)
        self._items.append(segment)
        self.active = segment
        return segment

    # Leaving ---------------------------------------------------------------------------------

    def drop_first(self, count: int, delay_ms: int) -> list[Segment]:
        """Retire the oldest, one after the other: a crash in between leaves a log that is whole."""
        assert count < len(self._items), "a log keeps its active segment"
        dropped = []
        for _ in range(count):
            segment = self._items[0]
            self._retired.append(Retired(delay_ms, segment.next_offset, segment.retire()))
            dropped.append(self._items.pop(0))
        return dropped

    def last_end_below(self, offset: int) -> int:
        """Where the last batch ends that `truncate(offset)` keeps."""
        return self._items[self.number_of(offset)].last_end_below(offset)

    def truncate(self, offset: int, leader_epoch: int) -> int:
        """Drop the batches that reach `offset` or lie past it; where the log ends then.

        Not before a gap that lies below `offset`, in `leader_epoch`: what was there is compacted, and its offsets
        are used up.
        """
        number = self.number_of(offset)
        found = self._items[number].find(offset)  # while a read that fails changes nothing
        while len(self._items) > number + 1:
            self._retire_last()
        last = self.active = self._items[-1]
        if found is None:
            last.reopen()
        else:
            last.truncate(found[0], found[1].base_offset)
            with suppress(DiskFull, OutOfResources):  # then the leader tells of the gap again
                last.fill_gap(min(offset, found[1].base_offset), leader_epoch)
        return last.next_offset

    def spare(self, offset: int, interval_bytes: int) -> Segment:
        """An empty segment for `restart_with`, beside the log: it is made while there is a way back."""
        return Segment.begin(
            self._files, self._path, offset, interval_bytes, LOG_SUFFIX + SPARE_SUFFIX
        )

    def restart_with(self, spare: Segment) -> None:
        """Retire everything and begin with that."""
        while self._items:
            self._retire_last()
        spare.put_in_place()
        self._items.append(spare)
        self.active = spare

    def _retire_last(self) -> None:
        """Newest first: a crash in between leaves a log that is whole, only shorter."""
        self._retired.append(Retired(0, 0, self._items[-1].retire()))
        self._items.pop()

    def adopt_retired(self, paths: dict[int, list[str]]) -> None:
        """Take over files that an earlier run had retired, by their base offsets."""
        first = self._items[0].base_offset
        for base_offset, found in paths.items():
            end_offset = base_offset + 1 if base_offset < first else 0
            self._retired.append(Retired(0, end_offset, found))

    def removable(self, now_ms: int, saved_start_offset: int) -> list[str]:
        """Paths of retired files to remove now, for a thread. They are given once."""
        ready: list[str] = []
        waiting: list[Retired] = []
        for retired in self._retired:
            since_ms = now_ms if retired.since_ms is None else retired.since_ms
            is_due = now_ms - since_ms >= retired.delay_ms
            if is_due and retired.end_offset <= saved_start_offset:
                ready += retired.paths
            else:
                waiting.append(retired._replace(since_ms=since_ms))
        self._retired = waiting
        return ready

    # Compaction ------------------------------------------------------------------------------

    def replace(self, change: Swap, interval_bytes: int) -> bool:
        """Put prepared segments in the place of old ones; False, and nothing is left of them, if
        those are no longer what they were."""
        number = self.number_of(change.old[0])
        old = self._items[number : number + len(change.old)]
        if tuple(segment.base_offset for segment in old) != change.old or self.active in old:
            swap.discard(self._path, self._files.disk)
            return False
        aborted = [entry for segment in old for entry in segment.txns.entries]
        for segment in old:
            segment.close()
        with halfway(f"{self._path}: a swap"):
            swap.install(self._path, change)
            new = [
                self._open(base_offset, end, interval_bytes)
                for base_offset, end in zip(
                    change.new, (*change.new[1:], old[-1].next_offset), strict=True
                )
            ]
            for segment in new:
                _keep_marked(segment, aborted)
        self._items[number : number + len(old)] = new
        for segment in old:
            if segment.base_offset not in change.new:
                self._retired.append(Retired(0, 0, segment.retire()))
        swap.finish(self._path, change)
        return True

    def _open(self, base_offset: int, next_offset: int, interval_bytes: int) -> Segment:
        file = SegmentFile(self._files, self._path, base_offset, LOG_SUFFIX)
        file.measure()
        return Segment(file, interval_bytes, next_offset)

    def close(self) -> None:
        for segment in self._items:
            segment.close()


def _keep_marked(segment: Segment, aborted: Sequence[AbortedEntry]) -> None:
    """Have only those of the aborted transactions whose markers are in the segment.

    The old index must be gone before the swap is finished: a start repairs it only with a swap.
    """
    entries = [entry for entry in aborted if _has_marker(segment, entry.last_offset)]
    try:
        segment.txns.keep_saved(entries)
    except DiskFull as error:
        raise StorageFault(str(error)) from error  # the segments are in place


def _has_marker(segment: Segment, offset: int) -> bool:
    """Whether the marker of a transaction is still there: without it, nobody may be told of the abort."""
    if not segment.base_offset <= offset < segment.next_offset:
        return False
    found = segment.find(offset)
    if found is None:
        return False
    header = found[1]
    return header.is_control and header.last_offset == offset and header.record_count > 0


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
