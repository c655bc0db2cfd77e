"""A partition's log, as the broker uses it: what enters, what is read, what goes, what is durable."""

import os
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from penstock.model.errors import (
    BrokerError,
    DiskFull,
    OffsetOutOfRange,
    OutOfResources,
    StorageFault,
)
from penstock.records.batch import iter_headers, parse_header
from penstock.records.control import Promotion
from penstock.storage import mirroring, retention, state, swap
from penstock.storage.appending import Appended, GrowingLog, Origin
from penstock.storage.files import FileSlice, halfway
from penstock.storage.flush import FlushTicket
from penstock.storage.scrub import Scrub
from penstock.storage.state import AbortedTxn
from penstock.storage.swap import Swap
from penstock.storage.timestamps import Search, TimestampOffset, find, search, search_max

__all__ = ["AbortedTxn", "Appended", "FlushTicket", "Log", "LogRead", "Origin", "TimestampOffset"]


_CRUMBS_BYTES: Final = 4096  # what compaction leaves of a segment without records is not more


class LogRead(NamedTuple):
    slices: list[FileSlice]
    size_bytes: int
    next_offset: int


class Log(GrowingLog):
    """See GrowingLog for what enters. `start_offset` <= what can be read < `next_offset`."""

    __slots__ = ()

    # Reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto_offset: int) -> LogRead:
        """Whole batches of one segment, from the one that holds `offset` or else follows it.

        Where that is next to nothing, also of those after it: compaction may have left no record
        there, and librdkafka takes some such answers in a row for an error. The first one is given even when larger than `max_bytes`. None reaches `upto_offset`.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {self.start_offset}..{self.next_offset}"
            )
        if self._segments is None or offset >= upto_offset:
            return LogRead([], 0, offset)
        active = self._active
        if active is None or offset < active.base_offset:
            return self._read_closed(offset, max_bytes, upto_offset)
        found = active.read(offset, max_bytes, upto_offset)
        if found is None:
            return LogRead([], 0, offset)
        position, end, next_offset = found
        piece = FileSlice(active.file, position, end - position)
        return LogRead([piece], end - position, next_offset)

    def _read_closed(self, offset: int, max_bytes: int, upto_offset: int) -> LogRead:
        assert self._segments is not None
        slices: list[FileSlice] = []
        size_bytes = 0
        for segment in islice(self._segments, self._segments.number_of(offset), None):
            found = segment.read(offset, max_bytes - size_bytes, upto_offset)
            if found is not None:
                more_bytes = found.end - found.position
                if slices and size_bytes + more_bytes > max_bytes:
                    break
                slices.append(FileSlice(segment.file, found.position, more_bytes))
                size_bytes += more_bytes
                offset = found.next_offset
                if size_bytes >= _CRUMBS_BYTES or offset < segment.next_offset:
                    break
            if segment.next_offset >= upto_offset:
                break
        return LogRead(slices, size_bytes, offset)

    def aborted_transactions(self, from_offset: int, upto_offset: int) -> list[AbortedTxn]:
        """What a reader of committed records in that range must leave out."""
        if self._segments is None:
            return []
        number = self._segments.number_of(from_offset)
        return state.aborted_transactions(
            islice(self._segments, number, None), from_offset, upto_offset
        )

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms` by its own time, also inside a batch."""
        return find(self.search_timestamp(timestamp_ms), self.limits.max_opened_bytes)

    def max_timestamp(self) -> TimestampOffset | None:
        """The first record with the largest timestamp."""
        return find(self.search_max_timestamp(), self.limits.max_opened_bytes)

    def search_timestamp(self, timestamp_ms: int) -> Search:
        """As `offset_for_timestamp`, in steps between which the log may change."""
        return search(lambda: self.segments, timestamp_ms, self.start_offset)

    def search_max_timestamp(self) -> Search:
        """As `max_timestamp`, in steps."""
        return search_max(lambda: self.segments, self.start_offset)

    def scrub(self, after_offset: int) -> Scrub | None:
        """A check of the first closed segment that ends after `after_offset`, to run in a thread."""
        for segment in self.segments:
            if segment.next_offset > after_offset and segment is not self._active:
                return Scrub(segment, self._has_gaps)
        return None

    def scrubbed(self, scrub: Scrub) -> None:
        """A scrub came to its end without damage. It has seen what the time index should say."""
        for segment in self.segments:
            if (
                segment.base_offset == scrub.base_offset
                and segment.next_offset == scrub.next_offset
            ):
                if segment.newest()[0] != scrub.max_timestamp_ms and segment is not self._active:
                    segment.rebuild_indexes()
                return

    # Following -------------------------------------------------------------------------------

    def append_as_follower(self, records: memoryview) -> None:
        """Also, while nothing is here, from the batch on that holds the log start, which stays where it is.

        Records are deleted by offset, and leaders send whole batches: theirs may start inside of one.
        """
        self._check_open()
        start_offset = self.start_offset
        if start_offset != self.next_offset or not _begins_before(records, start_offset):
            super().append_as_follower(records)
            return
        first_offset = parse_header(records).base_offset
        self._check_following(records, first_offset)
        self.restart_at(first_offset)
        try:
            super().append_as_follower(records)
        finally:
            self.delete_records_before(min(start_offset, self.next_offset))

    # Being a mirror --------------------------------------------------------------------------

    def append_mirrored(self, records: memoryview, continues_at: int, leader_epoch: int) -> None:
        """Batches of another cluster's log, at their own offsets; what is here already is left out.

        They are all that it has from `continues_at` on: so far this log must go, or what comes between would be lost
        without a word. All are checked before any is written. An empty log begins with the first of them.
        """
        self._check_open()
        if continues_at > self.next_offset:
            raise OffsetOutOfRange(
                f"{self} ends at offset {self.next_offset}: what comes before {continues_at} was not sent"
            )
        batches = mirroring.missing_batches(records, self, self.next_offset)
        if not batches:
            return
        first_offset = batches[0][1].base_offset
        begins = self.start_offset == self.next_offset < first_offset
        next_offset = first_offset if begins else self.next_offset
        has_gaps = mirroring.check_gaps(batches, self, next_offset)
        if begins:
            self.restart_at(first_offset)
        if has_gaps and not self._has_gaps:
            self._note_gaps()
        self._write_batches(records, mirroring.restamp(records, batches, leader_epoch))

    def is_promoted(self, number: int) -> bool:
        """Whether it has ceased to be a mirror, for that time."""
        return self.producers.promotion == Promotion(self.topic_id, number)

    def promote(self, number: int, *, leader_epoch: int, now_ms: int) -> int:
        """Cease to be a mirror: what is open is aborted, no producer is known; the bytes that this took.

        It is written in batches, so that followers, and a log that is read again, come to the same.
        """
        self._check_open()
        batches = mirroring.ending(
            self.producers.open_transactions(),
            Promotion(self.topic_id, number),
            base_offset=self.next_offset,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
        )
        records = memoryview(batches)
        self._write_batches(records, list(iter_headers(records)))
        return len(batches)

    # Going -----------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` (KIP-101: only where logs diverge)."""
        self._check_open()
        if offset >= self.next_offset:
            self.epochs.truncate_end(offset)
            return
        if self._segments is None or offset < self.start_offset:
            self.restart_at(offset)
            return
        self._files.ensure()
        kept_upto = self._segments.last_end_below(offset)
        self._announce_cut(kept_upto)  # first: where it is refused, a compaction goes on
        if offset < self._segments.active.base_offset:
            swap.discard(self.path, self._files.disk)
        with halfway(f"{self}: a cut to {offset}"):
            self._was_cut(self._segments.truncate(offset, self.epochs.epoch_at(offset - 1)))
        self.recovery_point = min(self.recovery_point, kept_upto)

    def restart_at(self, offset: int) -> None:
        """Drop everything; the next batch comes at `offset`. Where there is no room for that nothing has changed."""
        self._check_open()
        interval_bytes = self.config.index_interval_bytes
        self._files.ensure()
        if self._segments is None:
            self._begin_log(offset, interval_bytes)
        else:
            spare = self._segments.spare(offset, interval_bytes)
            try:
                self._announce_cut(min(offset, self._segments[0].base_offset))
                swap.discard(self.path, self._files.disk)
            except BrokerError:  # no room, or too many open files
                spare.file.unlink()
                raise
            with halfway(f"{self}: a restart at {offset}"):
                state.forget_producers(self.path)  # what they did below `offset` is not known here
                self._segments.restart_with(spare)
        self.start_offset = offset
        with halfway(f"{self}: a restart at {offset}"):
            self._was_cut(offset)

    def _announce_cut(self, next_offset: int) -> None:
        """Write down that less will be there, before it is: a crash halfway must not look like damage."""
        assert self._unsynced is not None
        before = self._truncated_to
        lowest = next_offset if before is None else min(before, next_offset)
        self._unsynced.add_path(self.state.save_epochs(self.path, lowest))
        self._truncated_to = lowest

    def _was_cut(self, next_offset: int) -> None:
        """The log ends at `next_offset` now: all that is known of it must agree."""
        assert self._segments is not None
        assert self._unsynced is not None
        self._active = self._segments.active
        self.truncations += 1
        self._unsynced.keep(self._segments)
        self._unsynced.add_segment(self._active)
        self.next_offset = next_offset
        self.start_offset = min(self.start_offset, next_offset)  # it may lie inside a batch
        self.recovery_point = min(self.recovery_point, next_offset)
        self._state = state.load(self.path, self._segments, self.epochs, next_offset)
        self.epochs.truncate_start(self.start_offset)
        self.epochs.changed = True
        with suppress(BrokerError):  # as above; then the next flush does it
            self._unsynced.add_path(self.state.save_epochs(self.path, self._truncated_to))
        self._plan_anew()

    def delete_records_before(self, offset: int) -> None:
        """Move the log start up; segments that are wholly below it go."""
        self._check_open()
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"{self}: cannot delete before {offset}; the log is "
                f"{self.start_offset}..{self.next_offset}"
            )
        self.start_offset = offset
        self.epochs.truncate_start(offset)
        if offset == self.next_offset:
            self._roll_if_there_is_room()
        self._drop_first(sum(s.next_offset <= offset for s in self.segments[:-1]), delay_ms=0)

    def apply_retention(self, now_ms: int, *, upto_offset: int) -> int:
        """Drop segments that `retention.ms` and `retention.bytes` no longer keep; their bytes.

        None that reaches `upto_offset`, the last stable offset: what is not decided yet stays.
        """
        self._check_open()
        if self._segments is None:
            return 0
        count = retention.count_expired(
            self._segments,
            self.config,
            start_offset=self.start_offset,
            upto_offset=upto_offset,
            now_ms=now_ms,
        )
        if count == len(self._segments):
            self._roll_if_there_is_room()
            count = min(count, len(self._segments) - 1)
        return self._drop_first(count, self.config.file_delete_delay_ms)

    def _roll_if_there_is_room(self) -> None:
        """What is in the active segment may go. Without room or descriptors it stays a while, and the others go."""
        with suppress(DiskFull, OutOfResources):
            self.roll()

    def _drop_first(self, count: int, delay_ms: int) -> int:
        if self._segments is None or self._unsynced is None or not count:
            return 0
        dropped = self._segments.drop_first(count, delay_ms)
        self._unsynced.keep(self._segments)
        self.start_offset = max(self.start_offset, self._segments[0].base_offset)
        self.epochs.truncate_start(self.start_offset)
        return sum(segment.size_bytes for segment in dropped)

    def replace_segments(self, change: Swap) -> bool:
        """Put compacted segments in place, once `swap.prepare` has returned for them.

        False, and they are gone, if the old ones are no longer what they were.
        """
        self._check_open()
        assert self._segments is not None
        assert self._unsynced is not None
        self._files.ensure()
        if not self._segments.replace(change, self.config.index_interval_bytes):
            return False
        self._has_gaps = True  # as `swap.prepare` has written down
        self._unsynced.keep(self._segments)
        for base_offset in change.new:
            self._unsynced.add_segment(self._segments[self._segments.number_of(base_offset)])
        self._save_state(keep_upto=-1)
        return True

    def adopt_retired(self, paths: dict[int, list[str]]) -> None:
        """Take over files that an earlier run had taken out of the log, by their base offsets."""
        assert self._segments is not None
        self._segments.adopt_retired(paths)

    def removable(self, now_ms: int) -> list[str]:
        """Paths of files that are no longer of this log, to be removed by a thread. Given once. By a clock that only grows."""
        if self._segments is None:
            return []
        return self._segments.removable(now_ms, self.saved_start_offset)

    # Becoming durable ------------------------------------------------------------------------

    def flush_begin(self) -> FlushTicket:
        """What to sync. Then `ticket.sync()` in a thread, then `flush_end(ticket)`."""
        size_bytes = self.unflushed_bytes
        ticket = FlushTicket(self._files, self.next_offset, size_bytes, self.truncations)
        if self._segments is not None and self._unsynced is not None:
            if self.epochs.changed:
                try:
                    self._unsynced.add_path(self.state.save_epochs(self.path, self._truncated_to))
                except DiskFull:  # the next flush has it
                    ticket.is_complete = False
            directories = [self.path, self._topic_path, os.path.dirname(self._topic_path)]
            self._unsynced.fill(ticket, self._segments.active, directories)
        self.unflushed_bytes = 0
        return ticket

    def flush_end(self, ticket: FlushTicket) -> None:
        """All below `ticket.next_offset` is durable, unless the log was cut meanwhile."""
        if ticket.missing is not None:
            raise StorageFault(f"{ticket.missing} is gone, and the log in it is in use")
        if ticket.is_complete and ticket.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, ticket.next_offset)

    def flush_put_off(self, ticket: FlushTicket) -> None:
        """In place of `flush_end`, when `sync` could not be completed: the next flush does all of it."""
        self.unflushed_bytes += ticket.size_bytes
        if self._unsynced is not None:
            self._unsynced.take_back(ticket)

    def flush(self) -> None:
        """All three steps at once, for those who may wait for the disk."""
        ticket = self.flush_begin()
        ticket.sync()
        self.flush_end(ticket)

    def checkpointed(self, truncations: int, start_offset: int) -> None:
        """The recovery point and this log start are on the disk, as of so many truncations."""
        self.saved_start_offset = max(self.saved_start_offset, start_offset)
        if truncations == self.truncations and self._truncated_to is not None:
            self._truncated_to = None
            self.epochs.changed = True  # the file still has it

    def abandon(self) -> None:
        """Close every file and write nothing more: the log is gone, or its disk is."""
        self.stop_writes()
        if self._segments is not None:
            self._segments.close()
        self._segments = None

    def close_begin(self) -> FlushTicket | None:
        """What to sync before it is closed; None: nothing. Then `ticket.sync()` in any thread, then `close_end(ticket)`."""
        self.stop_writes()
        if self._segments is None or self._unsynced is None:
            return None
        active = self._segments.active
        self._unsynced.add_segment(active)
        active.seal()
        self._save_state(active.base_offset)
        return self.flush_begin()

    def close_end(self, ticket: FlushTicket) -> None:
        """Everything is durable: close every file. It can still be read."""
        assert self._segments is not None
        self.flush_end(ticket)
        self._segments.close()

    def close(self) -> None:
        """All three steps at once, for those who may wait for the disk."""
        ticket = self.close_begin()
        if ticket is not None:
            ticket.sync()
            self.close_end(ticket)


def _begins_before(records: memoryview, offset: int) -> bool:
    """Whether `offset` lies inside the first batch."""
    header = next((header for _, header in iter_headers(records)), None)
    return header is not None and header.base_offset < offset < header.next_offset
