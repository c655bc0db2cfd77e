"""The offset index and the time index of one segment, which grow together."""

from penstock.records.batch import NO_TIMESTAMP
from penstock.storage.files import OpenFiles, SegmentFile
from penstock.storage.index import OFFSETS, TIMES, SparseIndex


class Indexes:
    """An entry in each for every `interval_bytes` of log, as Kafka writes them."""

    __slots__ = (
        "_base_offset",
        "_interval_bytes",
        "_newest_entry_ms",
        "_unindexed_bytes",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offsets",
        "times",
    )

    def __init__(
        self, offsets: SparseIndex, times: SparseIndex, base_offset: int, interval_bytes: int
    ) -> None:
        self.offsets = offsets
        self.times = times
        self._base_offset = base_offset
        self._interval_bytes = interval_bytes
        self._unindexed_bytes = 0
        timestamp_ms, relative = times.last() or (NO_TIMESTAMP, 0)
        self._newest_entry_ms = timestamp_ms
        self.max_timestamp_ms = timestamp_ms  # of all batches noted
        self.max_timestamp_offset = base_offset + relative  # last of the first batch that has it

    @classmethod
    def fresh(
        cls, files: OpenFiles, directory: str, base_offset: int, interval_bytes: int, tag: str
    ) -> "Indexes":
        """Empty ones, to grow. `tag` is added to the names of the files."""
        offsets = SparseIndex(files, directory, base_offset, OFFSETS, tag=tag)
        times = SparseIndex(files, directory, base_offset, TIMES, tag=tag)
        return cls(offsets, times, base_offset, interval_bytes)

    @classmethod
    def saved(
        cls, files: OpenFiles, directory: str, base_offset: int, interval_bytes: int
    ) -> "Indexes":
        """As their files have them."""
        offsets = SparseIndex.open(files, directory, base_offset, OFFSETS)
        times = SparseIndex.open(files, directory, base_offset, TIMES)
        return cls(offsets, times, base_offset, interval_bytes)

    @property
    def are_whole(self) -> bool:
        """No file has a part of an entry at its end."""
        return self.offsets.is_whole and self.times.is_whole

    def note(self, position: int, size_bytes: int, last_offset: int, max_timestamp_ms: int) -> bool:
        """Take note of the next batch; True if it got an entry."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        unindexed = self._unindexed_bytes
        if unindexed <= self._interval_bytes:
            self._unindexed_bytes = unindexed + size_bytes
            return False
        self.offsets.add(last_offset - self._base_offset, position)
        self._add_time()
        self._unindexed_bytes = size_bytes
        return True

    def _add_time(self) -> None:
        if self.max_timestamp_ms > self._newest_entry_ms:
            self._newest_entry_ms = self.max_timestamp_ms
            self.times.add(self.max_timestamp_ms, self.max_timestamp_offset - self._base_offset)

    def resume(self, entry: tuple[int, int]) -> None:
        """Forget what came after the batch of this offset entry, and be ready to note that batch again.

        Whenever a batch got an entry, the largest timestamp up to it got one too: the time entries
        that are left tell the largest timestamp of the batches that are left.
        """
        self.offsets.truncate(entry[1])
        self.times.truncate(entry[0])
        newest = self.times.last() or (NO_TIMESTAMP, 0)
        self._newest_entry_ms = self.max_timestamp_ms = newest[0]
        self.max_timestamp_offset = self._base_offset + newest[1]
        self._unindexed_bytes = 0

    def room(self, limit_bytes: int) -> int:
        """How many more batches may get an entry within `limit_bytes`, which allow at least one in all."""
        entries = max(len(self.offsets), len(self.times))
        return max(limit_bytes // TIMES.entry_bytes, 1) - entries

    def save(self) -> None:
        """Bring the files up to date. Times first: an entry among the offsets vouches for them."""
        self.times.save()
        self.offsets.save()

    def seal(self) -> list[SegmentFile]:
        """Save and leave the memory; the files, to be synced. The last time entry is the largest time."""
        if self.times.grows:
            self._add_time()
        sealed = (self.times.seal(), self.offsets.seal())
        return [file for file in sealed if file is not None]

    def close(self) -> None:
        self.times.close()
        self.offsets.close()
