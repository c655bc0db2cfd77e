"""The growing end of a log: batches enter whole and in order, and never change.

An append is one write and no sync: what is durable is what `recovery_point` says.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.configs import TopicConfig
from penstock.model.errors import (
    BrokerError,
    CorruptBatch,
    DiskFull,
    ErrorCode,
    OutOfResources,
    StorageFault,
)
from penstock.model.ids import TopicId
from penstock.records.batch import BatchHeader, iter_headers, parse_header, stamp, verify
from penstock.records.control import EndMarker, decode_marker
from penstock.storage import identity
from penstock.storage.epochs import EpochEnd, Epochs
from penstock.storage.files import OpenFiles, refuse
from penstock.storage.flush import Unsynced
from penstock.storage.identity import Identity
from penstock.storage.limits import Limits, jitter_ms, limits_of
from penstock.storage.producers import Producers
from penstock.storage.recovery import Recovery
from penstock.storage.runs import Run, check_run
from penstock.storage.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.storage.segments import Segments
from penstock.storage.state import LogState

COMPACT: Final = "compact"  # a cleanup policy
_NEVER_MS: Final = (1 << 63) - 1
_AT_FIRST_BATCH: Final = -2  # before any timestamp: planned when the segment gets its first batch
_NOTHING_RECOVERED: Final = Recovery()


class Origin(Enum):
    """Who made a batch."""

    CLIENT = "client"
    COORDINATOR = "coordinator"  # this broker: offsets, transaction state, markers


class Appended(NamedTuple):
    base_offset: int
    last_offset: int
    append_time_ms: int  # -1: the records keep the producer's time
    start_offset: int
    duplicate: bool


class Hole(NamedTuple):
    """Offsets without a batch in what a follower is sent."""

    next_offset: int  # the first of them
    base_offset: int  # of the batch that comes after them


class GrowingLog:
    """Segments in order, and what follows from their batches.

    Not thread-safe: the event loop is its only caller. A log that was never written owns no file.
    """

    __slots__ = (
        "_active",
        "_files",
        "_has_gaps",
        "_is_closed",
        "_limits",
        "_refused_hole",
        "_roll_after_ms",
        "_roll_bytes",
        "_segments",
        "_state",
        "_topic_path",
        "_truncated_to",
        "_unsynced",
        "config",
        "next_offset",
        "partition",
        "recovery",
        "recovery_point",
        "saved_start_offset",
        "start_offset",
        "topic_id",
        "truncations",
        "unflushed_bytes",
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
        self._segments: Segments | None = None
        self._active: Segment | None = None
        self._state: LogState | None = None
        self._unsynced: Unsynced | None = None
        self.start_offset = 0
        self.next_offset = 0
        self.recovery_point = 0
        self.saved_start_offset = 0  # the log start that is surely on disk
        self.unflushed_bytes = 0
        self.recovery = _NOTHING_RECOVERED
        self.truncations = 0  # how often it was cut
        self._has_gaps = False
        self._refused_hole: Hole | None = None
        self._is_closed = False  # or about to be: every change is rejected
        self._truncated_to: int | None = None  # since the recovery point was last written to disk
        self._roll_after_ms = _AT_FIRST_BATCH
        self.configure(config)

    def adopt(
        self,
        segments: Segments,
        state: LogState,
        unsynced: list[Segment],
        *,
        has_gaps: bool,
        truncated_to: int | None,
    ) -> None:
        """Become the log that was found on disk."""
        self._has_gaps = has_gaps
        self._truncated_to = truncated_to
        active = segments.active
        self._segments, self._active, self._state = segments, active, state
        self._unsynced = Unsynced(unsynced)
        self.next_offset = active.next_offset
        self._plan_anew()

    def configure(self, config: TopicConfig) -> None:
        """Settings in force from the next append on."""
        self.config = config
        self._limits = limits_of(config)
        self._plan_anew()

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
        return () if self._segments is None else self._segments

    @property
    def size_bytes(self) -> int:
        return 0 if self._segments is None else self._segments.size_bytes

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
        self._active = (
            None  # appends then come to `_begin_segment`, at no cost to those that may enter
        )

    def _check_open(self) -> None:
        """Raise if the log is closed: its size must stay the one that the clean stop wrote down."""
        if self._is_closed:
            raise BrokerError(
                f"{self} is closed: nothing can be written to it until the broker has started again",
                ErrorCode.KAFKA_STORAGE_ERROR,
            )

    # Appending -------------------------------------------------------------------------------

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
        if origin is not Origin.CLIENT:
            return self._append_own(records, leader_epoch, now_ms)
        limits = self._limits
        header = limits.check(records, now_ms, transactional=transactional, zstd=zstd)
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                time_ms = known.timestamp_ms if limits.append_time else -1
                return Appended(known[2], known[3], time_ms, self.start_offset, True)
        if limits.opens_batches:
            records, header = limits.rewrite(records, header, now_ms, is_opened=is_opened)
        base_offset = self._write(records, header, leader_epoch, now_ms)
        if header.producer_id >= 0:
            self.producers.record(header, base_offset, header.max_timestamp_ms, now_ms)
        return Appended(
            base_offset,
            self.next_offset - 1,
            now_ms if limits.append_time else -1,
            self.start_offset,
            False,
        )

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
        """Clients' batches, outside of transactions, with one write: each as `append_as_leader` would have it.

        None, and nothing has changed: not all of them may enter, or not as they are, or not into this
        segment; each is to be tried by itself. Hot: benchmarks/storage_log.py.
        """
        run = check_run(batches, self._limits, self.producers, now_ms, zstd=zstd)
        active = self._active
        if run is None or active is None or not self._has_room_for(run, active):
            return None
        first_offset = base_offset = self.next_offset
        start_offset = self.start_offset
        outcomes: list[Appended] = []
        for records, header in zip(batches, run.headers, strict=True):
            stamp(records, base_offset, leader_epoch)
            last_offset = base_offset + header.last_offset_delta
            outcomes.append(Appended(base_offset, last_offset, -1, start_offset, False))
            base_offset = last_offset + 1
        try:
            grew = active.append_run(run, first_offset)
        except (BrokerError, StorageFault):
            for records, header in zip(batches, run.headers, strict=True):
                stamp(records, header.base_offset, header.leader_epoch)  # as they came
            raise
        if grew:
            self._indexes_grew(active)
        self.next_offset = base_offset
        self.unflushed_bytes += run.size_bytes
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, first_offset)
        for header, appended in zip(run.headers, outcomes, strict=True):
            if header.producer_id >= 0:
                self.producers.record(header, appended.base_offset, header.max_timestamp_ms, now_ms)
        return outcomes

    def _has_room_for(self, run: Run, active: Segment) -> bool:
        """Whether no batch of the run begins another segment."""
        last_offset = self.next_offset + run.record_count - 1
        return (
            active.file.size + run.size_bytes <= self._roll_bytes
            and run.max_timestamp_ms <= self._roll_after_ms
            and last_offset - active.base_offset <= MAX_RELATIVE_OFFSET
            and not active.index_is_full(self.config.segment_index_bytes, len(run.batches))
        )

    def _append_own(self, records: memoryview, leader_epoch: int, now_ms: int) -> Appended:
        """A batch that this broker made, which may be a marker."""
        header = verify(records)
        marker: EndMarker | None = None
        if header.producer_id >= 0:
            if header.is_control and (marker := decode_marker(records, header)) is not None:
                self.producers.check_marker(header, marker)
            self.producers.check_epoch(header)
        base_offset = self._write(records, header, leader_epoch, now_ms)
        assert self._active is not None
        if marker is not None:
            self.state.end_transaction(self._active, header, marker, base_offset, now_ms)
        elif header.producer_id >= 0:
            self.producers.record(header, base_offset, header.max_timestamp_ms, now_ms)
        return Appended(base_offset, self.next_offset - 1, -1, self.start_offset, False)

    def _write(
        self, records: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int
    ) -> int:
        """Stamp and write a batch that may enter; its base offset."""
        base_offset = self.next_offset
        last_offset = base_offset + header.last_offset_delta
        timestamp_ms = header.max_timestamp_ms
        active = self._active
        if (
            active is None
            or active.file.size + len(records) > self._roll_bytes
            or timestamp_ms > self._roll_after_ms
            or last_offset - active.base_offset > MAX_RELATIVE_OFFSET
        ):
            active = self._roll_for(timestamp_ms if timestamp_ms >= 0 else now_ms)
        stamp(records, base_offset, leader_epoch)
        if active.append(records, base_offset, last_offset, timestamp_ms):
            self._indexes_grew(active)
        self.next_offset = last_offset + 1
        self.unflushed_bytes += len(records)
        if leader_epoch != self._state.epochs.latest:  # type: ignore[union-attr] # there since `_roll_for`
            self.epochs.assign(leader_epoch, base_offset)
        return base_offset

    def append_as_follower(self, records: memoryview) -> None:
        """Batches as the leader has them, which go on where this log ends. All are checked before any is written."""
        self._check_open()
        batches, hole = self._check_following(records, self.next_offset)
        if hole is not None and not self._has_gaps:
            self._check_hole(hole)
            self._note_gaps()
        self._refused_hole = None
        self._write_batches(records, batches)

    def _check_hole(self, hole: Hole) -> None:
        """Reject a hole where none is expected, unless the leader sends the same one again.

        Compaction makes holes, and a mirror has those of its source. A topic that was compacted once, or was a
        mirror, keeps them; only the leader knows that, and its own log has passed the same check. A batch that came
        out of turn is not sent twice.
        """
        config = self.config
        if COMPACT in config.cleanup_policy or config.penstock_mirror_source:
            return
        if hole != self._refused_hole:
            self._refused_hole = hole
            raise CorruptBatch(
                f"{self}: the leader's batches leave out the offsets {hole.next_offset} to {hole.base_offset - 1},"
                " though the topic is neither compacted nor a mirror; fetch them again"
            )

    def _check_following(
        self, records: memoryview, next_offset: int
    ) -> tuple[list[tuple[int, BatchHeader]], Hole | None]:
        """The batches, if they are whole and go on at `next_offset`, and where offsets are missing first."""
        batches = list(iter_headers(records))
        end, hole = 0, None
        for position, header in batches:
            end = position + header.size_bytes
            verify(records[position:end], header)
            if header.base_offset < next_offset:
                raise CorruptBatch(
                    f"{self}: offset {header.base_offset} where {next_offset} is next"
                )
            if header.base_offset > next_offset and hole is None:
                hole = Hole(next_offset, header.base_offset)
            next_offset = header.next_offset
        if end != len(records):
            raise CorruptBatch(f"{self}: {len(records) - end} bytes are left after the last batch")
        return batches, hole

    def _write_batches(
        self, records: memoryview, batches: Sequence[tuple[int, BatchHeader]]
    ) -> None:
        """Checked batches, one after the other in `records`, each with its offset and epoch."""
        first = 0
        for number, (position, header) in enumerate(batches):
            start = batches[first][0]
            if self._must_roll(header, position - start):
                self._write_run(records, batches[first:number])
                self._roll_for(header.max_timestamp_ms)
                first = number
        self._write_run(records, batches[first:])

    def _note_gaps(self) -> None:
        """Compaction has been at work where these batches come from: offsets are missing from now on."""
        if self._unsynced is not None:
            named = identity.write(self.path, Identity(self.topic_id, has_gaps=True))
            self._unsynced.add_path(named)
        self._has_gaps = True

    def _must_roll(self, header: BatchHeader, ahead_bytes: int) -> bool:
        """Whether a batch, with so many bytes before it still to be written, begins a segment."""
        active = self._active
        if active is None:
            return ahead_bytes == 0
        size_bytes = active.size_bytes + ahead_bytes
        return size_bytes > 0 and (
            size_bytes + header.size_bytes > self._roll_bytes
            or header.max_timestamp_ms > self._roll_after_ms
            or header.last_offset - active.base_offset > MAX_RELATIVE_OFFSET
        )

    def _write_run(self, records: memoryview, run: Sequence[tuple[int, BatchHeader]]) -> None:
        if not run:
            return
        active, state = self._active, self.state
        assert active is not None
        assert active.grows, "a closed segment does not grow"
        if active.size_bytes == 0:
            self._plan_roll(active, run[0][1].max_timestamp_ms)
        start, end = run[0][0], run[-1][0] + run[-1][1].size_bytes
        place = active.size_bytes - start
        active.file.append(records[start:end])
        for position, header in run:
            state.apply(active, header, records[position : position + header.size_bytes])
            if active.note(place + position, header):
                self._indexes_grew(active)
        self.next_offset = active.next_offset
        self.unflushed_bytes += end - start

    # Rolling ---------------------------------------------------------------------------------

    def _indexes_grew(self, active: Segment) -> None:
        """A full index begins a new segment with the next append."""
        if active.index_is_full(self.config.segment_index_bytes):
            self._roll_bytes = 0

    def _roll_for(self, timestamp_ms: int) -> Segment:
        """The segment for a batch of that time, which the active one is not."""
        active = self._active
        if active is None or active.size_bytes:
            active = self._begin_segment()
        self._plan_roll(active, timestamp_ms)
        return active

    def _plan_roll(self, active: Segment, first_timestamp_ms: int) -> None:
        """`segment.ms` counts in the time of records, from a segment's first batch."""
        config = self.config
        jitter = jitter_ms(config, self.topic_id, self.partition, active.base_offset)
        timed = first_timestamp_ms >= 0
        self._roll_after_ms = (
            first_timestamp_ms + config.segment_ms - jitter if timed else _NEVER_MS
        )
        self._roll_bytes = config.segment_bytes

    def _plan_anew(self) -> None:
        """The active segment is another one, or has other settings."""
        self._roll_bytes = self.config.segment_bytes
        self._roll_after_ms = _AT_FIRST_BATCH
        if self._active is None:
            return
        with suppress(OutOfResources):  # then the next batch begins a new segment
            first = self._active.first_header()
            if first is not None:
                self._plan_roll(self._active, first.max_timestamp_ms)

    def roll(self) -> None:
        """Close the active segment, if it holds anything, and begin another."""
        self._check_open()
        if self._active is not None and self._active.size_bytes:
            self._begin_segment()
            self._plan_anew()

    def _begin_segment(self) -> Segment:
        self._check_open()
        interval_bytes = self.config.index_interval_bytes
        if self._segments is None or self._active is None or self._unsynced is None:
            return self._begin_log(self.next_offset, interval_bytes)
        closed = self._active
        self._active = self._segments.begin(self.next_offset, interval_bytes)
        self._unsynced.add_segment(closed)
        with suppress(DiskFull, OutOfResources):  # then the next flush does it
            closed.seal()
            self._save_state(self._active.base_offset)
        return self._active

    def _begin_log(self, base_offset: int, interval_bytes: int) -> Segment:
        """The first segment of a log that was never written; whatever is missing for it, nothing has changed."""
        path = self.path
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            refuse(error, f"{path}: cannot be made")
        self._unsynced = self._unsynced or Unsynced([])
        self._unsynced.add_path(identity.write(path, Identity(self.topic_id, self._has_gaps)))
        active = Segment.begin(self._files, path, base_offset, interval_bytes)
        self._segments, self._active = Segments(self._files, path, [active]), active
        self._state = self.state
        self.next_offset = base_offset
        return active

    def _save_state(self, keep_upto: int) -> None:
        """Write down what follows from the batches so far."""
        unsynced, path = self._unsynced, self.path
        assert unsynced is not None
        if self.epochs.changed:
            unsynced.add_path(self.state.save_epochs(path, self._truncated_to))
        unsynced.add_path(
            self.state.save_producers(path, self.segments, self.next_offset, keep_upto)
        )
