"""I12: log starts. Only a leader moves one by itself: for records that expired, or that a client deleted.

A follower takes over what a leader had. Nothing above the high watermark is deleted, and what is deleted stays so.
"""

from collections.abc import Callable, Iterable

from penstock.broker.partitions.partition import Partition
from penstock.storage.log import Log
from tests.simulation.mirror import Batch, Mirrors, Place


class LogStarts:
    def __init__(self, mirrors: Mirrors, fail: Callable[[str], None]) -> None:
        self._mirrors = mirrors
        self._fail = fail
        self.highest: dict[Place, int] = {}  # that a leader had
        self.requested: dict[Place, int] = {}  # the highest offset in a DeleteRecords request
        mirrors.started = self._started

    def request(self, place: Place, offset: int | None) -> None:
        """A client is about to delete the records below `offset`, or all (None)."""
        wanted = 1 << 62 if offset is None else offset
        self.requested[place] = max(self.requested.get(place, 0), wanted)

    def _started(self, log: Log, before: int, now_ms: int | None) -> None:
        partition = self._mirrors.owner_of(log)
        if partition is None:
            return
        place, start = (partition.topic.id, partition.index), log.start_offset
        if start < before:
            self._fail(f"I12: {log.path}: the start went back from {before} to {start}")
        if not partition.is_leader:
            self._check_follower(place, log, now_ms)
            return
        if start > partition.high_watermark:
            mark = partition.high_watermark
            self._fail(f"I12: {log.path}: starts at {start}, the high watermark is {mark}")
        if now_ms is not None:
            self._check_expired(partition, log, before, now_ms)
        elif start > self.requested.get(place, 0):
            self._fail(f"I12: {log.path}: starts at {start}, which nobody wanted")
        self.highest[place] = max(self.highest.get(place, 0), start)

    def _check_follower(self, place: Place, log: Log, now_ms: int | None) -> None:
        if now_ms is not None:
            self._fail(f"I12: {log.path}: a follower applied retention")
        if log.start_offset > self.highest.get(place, 0):
            highest = self.highest.get(place, 0)
            self._fail(f"I12: {log.path}: starts at {log.start_offset}, leaders' at {highest}")

    def _check_expired(self, partition: Partition, log: Log, before: int, now_ms: int) -> None:
        """Each batch that went was too old, or the log too large. Whole segments go."""
        config, batches = log.config, self._mirrors.of(log).batches
        gone = [it for it in batches if before < it.next_offset <= log.start_offset]
        left_bytes = sum(it.size_bytes for it in batches if it.next_offset > log.start_offset)
        too_old = config.retention_ms >= 0 and _newest_ms(gone) < now_ms - config.retention_ms
        too_large = 0 <= config.retention_bytes <= left_bytes
        if not (too_old or too_large or before >= log.start_offset):
            self._fail(
                f"I12: {log.path}: dropped {before}..{log.start_offset}, of {_newest_ms(gone)} at {now_ms},"
                f" and {left_bytes} bytes are left"
            )
        stable = partition.log.last_stable_offset(partition.high_watermark)
        if log.start_offset > stable:
            self._fail(f"I12: {log.path}: starts at {log.start_offset}, {stable} is stable")


def _newest_ms(batches: Iterable[Batch]) -> int:
    return max((it.time_ms for it in batches), default=-1)
