"""A partition's log: what may enter, what is read, what leaves, what is durable.

An append is one write and no sync. `start_offset` <= what can be read < `next_offset`; below `recovery_point` all
is durable.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple

from penstock.model.configs import TopicConfig
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    OffsetOutOfRange,
    OutOfResources,
    StorageFault,
)
from penstock.model.ids import TopicId
from penstock.records.batch import parse_header, verify
from penstock.records.control import EndMarker, Promotion, decode_marker
from penstock.storage import following, local_log, mirroring, reading, retention, state
from penstock.storage.epochs import EpochEnd, Epochs
from penstock.storage.files import FileSlice, OpenFiles, halfway
from penstock.storage.flush import FlushTicket, Unsynced
from penstock.storage.following import Hole, Received
from penstock.storage.limits import Limits, limits_of
from penstock.storage.local_log import LocalLog, Location
from penstock.storage.producers import Producers
from penstock.storage.reading import LogRead
from penstock.storage.recovery import Recovery
from penstock.storage.runs import check_run
from penstock.storage.scrub import Scrub
from penstock.storage.segment import Segment
from penstock.storage.segments import Segments
from penstock.storage.state import AbortedTxn, LogState
from penstock.storage.swap import Swap
from penstock.storage.timestamps import Search, TimestampOffset, find, search, search_max

__all__ = ["AbortedTxn", "Appended", "FlushTicket", "Log", "LogRead", "Origin", "TimestampOffset"]

_NOTHING_RECOVERED: Final = Recovery()

_new_tuple = tuple.__new__


class Origin(Enum):
    """Who made a batch."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # this broker: offsets, transaction state, markers


_CLIENT: Final = Origin.CLIENT


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    append_time_ms: int  # -1: the records keep the producer's time
    start_offset: int
    duplicate: bool


class Log:
    """Batches in order of offset, and what follows from them. A log that was never written owns no file.

    Not thread-safe: the event loop is its only caller.
    """

    __slots__ = (
        "_files",
        "_has_gaps",
        "_is_closed",
        "_limits",
        "_local",
        "_refused_hole",
        "_state",
        "_topic_path",
        "_writable",
        "config",
        "next_offset",
        "partition",
        "recovery",
        "recovery_point",
        "saved_start_offset",
        "start_offset",
        "topic_id",
        "truncations",
    )

    def __init__(
        self,
        files: OpenFiles,
        topic_path: str,
        partition: int,
        topic_id: TopicId,
        config: TopicConfig,
    ) -> None:
        """A log that was never written."""
        self._files = files
        self._topic_path = topic_path
        self.partition = partition
        self.topic_id = topic_id
        self._local: LocalLog | None = None
        self._writable: LocalLog | None = None  # the same, unless the log is closed
        self._state: LogState | None = None
        self.start_offset = 0
        self.next_offset = 0
        self.recovery_point = 0
        self.saved_start_offset = 0  # the log start that is surely on disk
        self.recovery = _NOTHING_RECOVERED
        self.truncations = 0  # since this log was opened
        self._has_gaps = False
        self._refused_hole: Hole | None = None
        self._is_closed = False  # or about to be: every change is rejected
        self.configure(config)

    def adopt(
        self,
        segments: Segments,
        log_state: LogState,
        unsynced: list[Segment],
        unflushed_bytes: int,
        *,
        has_gaps: bool,
    ) -> None:
        """Become the log that was found on disk."""
        self._has_gaps = has_gaps
        self._state = log_state
        self.next_offset = segments.active.next_offset
        self._local = self._writable = LocalLog(
            self._location, segments, Unsynced(unsynced), log_state, self.config
        )
        self._local.unflushed_bytes = unflushed_bytes

    @property
    def _location(self) -> Location:
        return Location(self._files, self.path, self.topic_id, self.partition)

    def _begin(self, base_offset: int) -> LocalLog:
        """Make the first segment of a log that was never written. If that fails nothing has changed."""
        self._check_open()
        local = local_log.create(
            self._location, self.state, self.config, base_offset, has_gaps=self._has_gaps
        )
        self._local = self._writable = local
        self.next_offset = base_offset
        return local

    def configure(self, config: TopicConfig) -> None:
        """Settings in force from the next append on."""
        self.config = config
        self._limits = limits_of(config)
        if self._writable is not None:
            self._writable.configure(config)

    def __str__(self) -> str:
        return f"{os.path.basename(self._topic_path)}-{self.partition}"

    @property
    def has_gaps(self) -> bool:
        """Whether offsets may be missing in it."""
        return self._has_gaps

    @property
    def path(self) -> str:
        return f"{self._topic_path}/partition-{self.partition}"

    @property
    def segments(self) -> Sequence[Segment]:
        return () if self._local is None else self._local.segments

    @property
    def size_bytes(self) -> int:
        return 0 if self._local is None else self._local.segments.size_bytes

    @property
    def unflushed_bytes(self) -> int:
        """Appended since the last flush began."""
        return 0 if self._local is None else self._local.unflushed_bytes

    @property
    def local_start_offset(self) -> int:
        """The first offset on this disk; as long as there are no tiers, the log's."""
        return self.start_offset

    @property
    def state(self) -> LogState:
        if self._state is None:
            self._state = LogState()
        return self._state

    @property
    def epochs(self) -> Epochs:
        return self.state.epochs

    @property
    def producers(self) -> Producers:
        return self.state.producers

    def knows_producer_of(self, batch: memoryview) -> bool:
        """Whether it can tell which sequence is that producer's next."""
        return parse_header(batch).producer_id in self.producers

    @property
    def latest_epoch(self) -> int:
        return self.state.epochs.latest

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return None if self._state is None else self._state.producers.first_open_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        """Below it every transaction is decided, and its marker is below the high watermark."""
        if self._state is None:
            return high_watermark
        undecided = self._state.producers.first_undecided_offset(high_watermark)
        if undecided is None:
            return high_watermark
        return max(min(undecided, high_watermark), self.start_offset)  # it may have been deleted

    def end_offset_for(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, self.next_offset)

    def begin_epoch(self, epoch: int) -> None:
        """This broker leads from here on. It reaches the disk with the next flush or roll."""
        self.epochs.assign(epoch, self.next_offset)

    def stop_writes(self) -> None:
        """Reject every change from now on. The log is about to be closed; it can still be read."""
        self._is_closed = True
        self._writable = None  # appends then come to `_begin`, at no cost to those that may enter

    def _check_open(self) -> None:
        """Raise if the log is closed: its size must stay the one that the clean stop wrote down."""
        if self._is_closed:
            raise BrokerError(
                f"{self} is closed: nothing can be written to it until the broker has started again",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    # Appending as leader ---------------------------------------------------------------------

    def append_as_leader(
        self,
        records: memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transactional: bool = False,
        zstd: bool = True,
        is_opened: bool = False,
    ) -> Appended:
        """Check one batch, give it the next offsets, in place, and write it.

        `transactional`: the request named a transactional id. `zstd`: it may carry zstd. `is_opened`: see
        `Limits.rewrite`, whose TakesLong says that the batch must be opened before.
        Hot: benchmarks/storage_log.py.
        """
        if origin is not _CLIENT:
            return self._append_own(records, leader_epoch, now_ms)
        limits = self._limits
        header = limits.check(records, now_ms, transactional=transactional, zstd=zstd)
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                time_ms = known.timestamp_ms if limits.append_time else -1
                return Appended(
                    known.base_offset, known.last_offset, time_ms, self.start_offset, True
                )
        if limits.opens_batches:
            records, header = limits.rewrite(records, header, now_ms, is_opened=is_opened)
        base_offset = self.next_offset
        local = self._writable or self._begin(base_offset)
        local.append_one(records, header, base_offset, leader_epoch)
        last_offset = base_offset + header.last_offset_delta
        self.next_offset = last_offset + 1
        if header.producer_id >= 0:
            self.producers.record(header, base_offset, header.max_timestamp_ms, now_ms)
        append_time_ms = now_ms if limits.append_time else -1
        fields = (base_offset, last_offset, append_time_ms, self.start_offset, False)
        return _new_tuple(Appended, fields)

    @property
    def limits(self) -> Limits:
        """What the topic's settings allow a client's batch to be."""
        return self._limits

    @property
    def takes_runs(self) -> bool:
        """Whether batches enter as they are, so that several can be one write."""
        return not self._limits.opens_batches

    def append_run(
        self, batches: Sequence[memoryview], *, leader_epoch: int, now_ms: int, zstd: bool = True
    ) -> list[Appended] | None:
        """Append batches of clients, outside of transactions, with one write: each as `append_as_leader` would.

        Return None, with nothing changed, unless all may enter, as they are, into the active segment. Then each is to
        be appended by itself. Hot: benchmarks/storage_log.py.
        """
        run = check_run(batches, self._limits, self.producers, now_ms, zstd=zstd)
        if run is None or self._writable is None:
            return None
        base_offset, start_offset = self.next_offset, self.start_offset
        if not self._writable.append_run(run, base_offset, leader_epoch):
            return None
        self.next_offset = self._writable.next_offset
        outcomes: list[Appended] = []
        for header in run.headers:
            if header.producer_id >= 0:
                self.producers.record(header, base_offset, header.max_timestamp_ms, now_ms)
            last_offset = base_offset + header.last_offset_delta
            fields = (base_offset, last_offset, -1, start_offset, False)
            outcomes.append(_new_tuple(Appended, fields))
            base_offset = last_offset + 1
        return outcomes

    def _append_own(self, records: memoryview, leader_epoch: int, now_ms: int) -> Appended:
        """Append a batch that this broker made, which may be a marker."""
        header = verify(records)
        marker: EndMarker | None = None
        if header.producer_id >= 0:
            if header.is_control and (marker := decode_marker(records, header)) is not None:
                self.producers.check_marker(header, marker)
            self.producers.check_epoch(header)
        base_offset = self.next_offset
        local = self._writable or self._begin(base_offset)
        local.append_one(records, header, base_offset, leader_epoch)
        self.next_offset = local.next_offset
        if marker is not None:
            self.state.end_transaction(local.segments.active, header, marker, base_offset, now_ms)
        elif header.producer_id >= 0:
            self.producers.record(header, base_offset, header.max_timestamp_ms, now_ms)
        return Appended(base_offset, self.next_offset - 1, -1, self.start_offset, False)

    # Appending what has its offsets ----------------------------------------------------------

    def append_as_follower(self, records: memoryview) -> None:
        """Append batches of the leader, which continue this log. All are checked before any is written.

        While nothing is here, also from the batch on that holds the log start, which stays where it is: records are
        deleted by offset, and leaders send whole batches.
        """
        self._check_open()
        start_offset, next_offset = self.start_offset, self.next_offset
        around: int | None = None
        if start_offset == next_offset:
            around = following.base_offset_around(records, start_offset)
        batches, hole = following.check(records, self, next_offset if around is None else around)
        if hole is not None and not self._has_gaps:
            refused, self._refused_hole = self._refused_hole, hole
            following.check_hole(hole, refused, self, self.config)
            self._note_gaps()
        self._refused_hole = None
        if around is None:
            self._append_received(batches)
            return
        self.truncate_fully_and_start_at(around)
        try:
            self._append_received(batches)
        finally:
            self.delete_records_before(min(start_offset, self.next_offset))

    def _note_gaps(self) -> None:
        """Compaction has been at work where these batches come from: offsets are missing from now on."""
        if self._local is not None:
            self._local.note_gaps()
        self._has_gaps = True

    def _append_received(self, batches: Sequence[Received]) -> None:
        """Append checked batches that have their offsets and leader epochs. Those before an error stay, and count."""
        if not batches:
            return
        local = self._writable or self._begin(self.next_offset)
        try:
            local.append_received(batches)
        finally:
            self.next_offset = local.next_offset

    def append_mirrored(self, records: memoryview, continues_at: int, leader_epoch: int) -> None:
        """Append batches of another cluster's log, at their own offsets; those that are here already are left out.

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
            self.truncate_fully_and_start_at(first_offset)
        if has_gaps and not self._has_gaps:
            self._note_gaps()
        self._append_received(mirroring.restamp(records, batches, leader_epoch))

    def is_promoted(self, number: int) -> bool:
        """Whether it has ceased to be a mirror, for that time."""
        return self.producers.promotion == Promotion(self.topic_id, number)

    def promote(self, number: int, *, leader_epoch: int, now_ms: int) -> int:
        """Cease to be a mirror: abort open transactions and forget all producers. Return the bytes written.

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
        self._append_received(following.batches_in(memoryview(batches)))
        return len(batches)

    # Reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto_offset: int) -> LogRead:
        """Whole batches of one segment, from the one that holds `offset` or else follows it.

        The first one is returned even when larger than `max_bytes`. None reaches `upto_offset`.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {self.start_offset}..{self.next_offset}"
            )
        local = self._local
        if local is None or offset >= upto_offset:
            return LogRead([], 0, offset)
        active = local.segments.active
        if offset < active.base_offset:
            return reading.read_closed(local.segments, offset, max_bytes, upto_offset)
        found = active.read(offset, max_bytes, upto_offset)
        if found is None:
            return LogRead([], 0, offset)
        position, end, next_offset = found
        piece = FileSlice(active.file, position, end - position)
        return LogRead([piece], end - position, next_offset)

    def _segments_from(self, offset: int) -> Iterable[Segment]:
        if self._local is None:
            return ()
        segments = self._local.segments
        return islice(segments, segments.number_of(offset), None)

    def aborted_transactions(self, from_offset: int, upto_offset: int) -> list[AbortedTxn]:
        """What a reader of committed records in that range must leave out."""
        return state.aborted_transactions(
            self._segments_from(from_offset), from_offset, upto_offset
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
        for segment in self.segments[:-1]:
            if segment.next_offset > after_offset:
                return Scrub(segment, self._has_gaps)
        return None

    def scrubbed(self, scrub: Scrub) -> None:
        """A scrub came to its end without damage. It has seen what the time index should say."""
        scrub.mend_indexes(self.segments[:-1])

    # Leaving ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Drop every batch that reaches `offset` (KIP-101: only where logs diverge)."""
        self._check_open()
        if offset >= self.next_offset:
            self.epochs.truncate_end(offset)
            return
        local = self._local
        if local is None or offset < self.start_offset:
            self.truncate_fully_and_start_at(offset)
            return
        kept_upto = local.announce_truncation(offset)
        with halfway(f"{self}: a truncation to {offset}"):
            local.truncate(offset)
            self._was_truncated(local)
        self.recovery_point = min(self.recovery_point, kept_upto)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the next batch comes at `offset`. Without room for that nothing has changed."""
        self._check_open()
        local = self._local
        if local is None:
            self._files.ensure()
            local = self._begin(offset)
        else:
            spare = local.spare_for(offset)
            with halfway(f"{self}: a start at {offset}"):
                local.start_with(spare)
        self.start_offset = offset
        with halfway(f"{self}: a start at {offset}"):
            self._was_truncated(local)

    def _was_truncated(self, local: LocalLog) -> None:
        """Let all that is known of the log agree with where it ends now."""
        next_offset = local.next_offset
        self.truncations += 1
        self.next_offset = next_offset
        self.start_offset = min(self.start_offset, next_offset)  # it may lie inside a batch
        self.recovery_point = min(self.recovery_point, next_offset)
        local.reload_state(self.start_offset)

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
        """Drop segments that `retention.ms` and `retention.bytes` no longer keep. Return their bytes.

        None that reaches `upto_offset`, the last stable offset: what is not decided yet stays.
        """
        self._check_open()
        if self._local is None:
            return 0
        segments = self._local.segments
        count = retention.count_expired(
            segments,
            self.config,
            start_offset=self.start_offset,
            upto_offset=upto_offset,
            now_ms=now_ms,
        )
        if count == len(segments):
            self._roll_if_there_is_room()
            count = min(count, len(segments) - 1)
        return self._drop_first(count, self.config.file_delete_delay_ms)

    def roll(self) -> None:
        """Close the active segment, if it holds anything, and begin another."""
        self._check_open()
        if self._local is not None and self._local.segments.active.size_bytes:
            self._local.roll()

    def _roll_if_there_is_room(self) -> None:
        """What is in the active segment may go. Without room or descriptors it stays a while, and the others go."""
        with suppress(DiskFull, OutOfResources):
            self.roll()

    def _drop_first(self, count: int, delay_ms: int) -> int:
        if self._local is None or not count:
            return 0
        dropped = self._local.drop_first(count, delay_ms)
        self.start_offset = max(self.start_offset, self._local.segments[0].base_offset)
        self.epochs.truncate_start(self.start_offset)
        return sum(segment.size_bytes for segment in dropped)

    def replace_segments(self, change: Swap) -> bool:
        """Put compacted segments in place, once `swap.prepare` has returned for them.

        False, and they are gone, if the old ones are no longer what they were.
        """
        self._check_open()
        assert self._local is not None
        if not self._local.replace(change):
            return False
        self._has_gaps = True  # as `swap.prepare` has written down
        self._local.save_state(keep_upto=-1)
        return True

    def adopt_retired(self, paths: dict[int, list[str]]) -> None:
        """Take over files that an earlier run had taken out of the log, by their base offsets."""
        assert self._local is not None
        self._local.segments.adopt_retired(paths)

    def removable(self, now_ms: int) -> list[str]:
        """Paths of files that are no longer of this log, to be removed by a thread. Given once. By a clock that only grows."""
        if self._local is None:
            return []
        return self._local.segments.removable(now_ms, self.saved_start_offset)

    # Becoming durable ------------------------------------------------------------------------

    def flush_begin(self) -> FlushTicket:
        """What to sync. Then `ticket.sync()` in a thread, then `flush_end(ticket)`."""
        ticket = FlushTicket(self._files, self.next_offset, self.unflushed_bytes, self.truncations)
        if self._local is not None:
            self._local.fill(ticket)
        return ticket

    def flush_end(self, ticket: FlushTicket) -> None:
        """All below `ticket.next_offset` is durable, unless the log was truncated meanwhile."""
        if ticket.missing is not None:
            raise StorageFault(f"{ticket.missing} is gone, and the log in it is in use")
        if ticket.is_complete and ticket.truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, ticket.next_offset)

    def flush_put_off(self, ticket: FlushTicket) -> None:
        """In place of `flush_end`, when `sync` could not be completed: the next flush does all of it."""
        if self._local is not None:
            self._local.take_back(ticket)

    def flush(self) -> None:
        """All three steps at once, for those who may wait for the disk."""
        ticket = self.flush_begin()
        ticket.sync()
        self.flush_end(ticket)

    def checkpointed(self, truncations: int, start_offset: int) -> None:
        """The recovery point and this log start are on the disk, as of so many truncations."""
        self.saved_start_offset = max(self.saved_start_offset, start_offset)
        if truncations == self.truncations and self.state.truncated_to is not None:
            self.state.truncated_to = None
            self.epochs.changed = True  # the file still has it

    def abandon(self) -> None:
        """Close every file and write nothing more: the log is gone, or its disk is."""
        self.stop_writes()
        if self._local is not None:
            self._local.close()
        self._local = None

    def close_begin(self) -> FlushTicket | None:
        """What to sync before it is closed; None: nothing. Then `ticket.sync()` in any thread, then `close_end(ticket)`."""
        self.stop_writes()
        if self._local is None:
            return None
        self._local.seal()
        return self.flush_begin()

    def close_end(self, ticket: FlushTicket) -> None:
        """Everything is durable: close every file. It can still be read."""
        assert self._local is not None
        self.flush_end(ticket)
        self._local.close()

    def close(self) -> None:
        """All three steps at once, for those who may wait for the disk."""
        ticket = self.close_begin()
        if ticket is not None:
            ticket.sync()
            self.close_end(ticket)
