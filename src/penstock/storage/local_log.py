"""The files of a log: segments, of which the last one grows, and what the next flush must sync.

`LocalLog.append` is the only way for batches into a segment, and has the only rule for where a segment ends.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, OutOfResources
from penstock.model.ids import TopicId
from penstock.records.batch import NO_TIMESTAMP, BatchHeader, stamp
from penstock.storage import identity, state, swap
from penstock.storage.files import OpenFiles, refuse
from penstock.storage.flush import FlushTicket, Unsynced
from penstock.storage.following import Received
from penstock.storage.identity import Identity
from penstock.storage.limits import jitter_ms
from penstock.storage.runs import Run
from penstock.storage.segment import MAX_RELATIVE_OFFSET, PlacedBatch, Segment
from penstock.storage.segments import Segments
from penstock.storage.state import LogState
from penstock.storage.swap import Swap

_NEVER_MS: Final = (1 << 63) - 1
_AT_FIRST_BATCH: Final = -(1 << 64)  # less than any timestamp: no batch fits before the first one


class Location(NamedTuple):
    """Where the files of a log are, and whose they are."""

    files: OpenFiles
    path: str
    topic_id: TopicId
    partition: int


class LocalLog:
    """A log that has been written to. The `Log` that owns it checks what enters, and is its only caller."""

    __slots__ = (
        "_config",
        "_index_room",
        "_location",
        "_max_bytes",
        "_max_offset",
        "_max_timestamp_ms",
        "_state",
        "_unsynced",
        "segments",
        "unflushed_bytes",
    )

    def __init__(
        self,
        location: Location,
        segments: Segments,
        unsynced: Unsynced,
        log_state: LogState,
        config: TopicConfig,
    ) -> None:
        """`log_state` follows the batches of the segments already."""
        self.segments = segments
        self._location = location
        self._unsynced = unsynced
        self._state = log_state
        self._index_room = 0
        self.unflushed_bytes = 0  # appended since the last flush began
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Apply new settings from the next append on."""
        self._config = config
        self._plan_again()

    @property
    def next_offset(self) -> int:
        return self.segments.active.next_offset

    # Growing ---------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[PlacedBatch],
        size_bytes: int,
        last_offset: int,
        max_timestamp_ms: int,
    ) -> bool:
        """Write batches of `size_bytes` in all, up to `last_offset`, with one call, unless they begin a new segment.

        Return False, with nothing changed, unless all of them fit into the active segment. Nothing fits into one that
        is empty. Hot: benchmarks/storage_log.py.
        """
        active = self.segments.active
        if (
            active.file.size + size_bytes > self._max_bytes
            or max_timestamp_ms > self._max_timestamp_ms
            or last_offset > self._max_offset
            or len(batches) > self._index_room
        ):
            return False
        self._index_room -= active.append(batches, size_bytes)
        self.unflushed_bytes += size_bytes
        return True

    def append_first(
        self, batch: Sequence[PlacedBatch], size_bytes: int, max_timestamp_ms: int
    ) -> None:
        """Write a batch that `append` did not take, of any size: a new segment begins with it.

        An empty segment is new. Where it ends depends on the batch only once the batch is written.
        """
        if self.segments.active.size_bytes:
            self.roll()
        self.segments.active.append(batch, size_bytes)
        self.unflushed_bytes += size_bytes
        self._plan(max_timestamp_ms)

    def append_one(
        self, records: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
    ) -> None:
        """Give a checked batch the offsets from `base_offset` on, in place, and write it."""
        size_bytes, timestamp_ms = len(records), header.max_timestamp_ms
        last_offset = base_offset + header.last_offset_delta
        stamp(records, base_offset, leader_epoch)
        placed = ((records, base_offset, last_offset, timestamp_ms),)
        if not self.append(placed, size_bytes, last_offset, timestamp_ms):
            self.append_first(placed, size_bytes, timestamp_ms)
        epochs = self._state.epochs
        if leader_epoch != epochs.latest:
            epochs.assign(leader_epoch, base_offset)

    def append_run(self, run: Run, base_offset: int, leader_epoch: int) -> bool:
        """Do the same for several batches, with one write.

        After False, or an error, nothing has changed, and the batches are as they were.
        """
        offset = base_offset
        placed: list[PlacedBatch] = []
        for records, header in zip(run.batches, run.headers, strict=True):
            stamp(records, offset, leader_epoch)
            last_offset = offset + header.last_offset_delta
            placed.append((records, offset, last_offset, header.max_timestamp_ms))
            offset = last_offset + 1
        is_written = False
        try:
            is_written = self.append(placed, run.size_bytes, offset - 1, run.max_timestamp_ms)
        finally:
            if not is_written:
                for records, header in zip(run.batches, run.headers, strict=True):
                    stamp(records, header.base_offset, header.leader_epoch)
        if is_written:
            self._state.epochs.assign(leader_epoch, base_offset)
        return is_written

    def append_received(self, batches: Sequence[Received]) -> None:
        """Write checked batches that have their offsets and leader epochs, and follow them.

        Those that fit into one segment are one write. Those before an error stay.
        """
        log_end, size_bytes, last_offset, max_timestamp_ms = self.next_offset, 0, -1, NO_TIMESTAMP
        placed: list[PlacedBatch] = []
        for records, header in batches:
            size_bytes += len(records)
            last_offset = header.last_offset
            max_timestamp_ms = max(max_timestamp_ms, header.max_timestamp_ms)
            placed.append((records, header.base_offset, last_offset, header.max_timestamp_ms))
        if not self.append(placed, size_bytes, last_offset, max_timestamp_ms):
            if len(batches) > 1:
                half = len(batches) // 2
                self.append_received(batches[:half])
                self.append_received(batches[half:])
                return
            self.append_first(placed, size_bytes, max_timestamp_ms)
        follows, active = self._state, self.segments.active
        for records, header in batches:
            follows.apply(active, header, records, log_end)
            log_end = header.next_offset

    def roll(self) -> None:
        """Close the active segment, which must not be empty, and begin another one."""
        closed = self.segments.active
        active = self.segments.begin(closed.next_offset, self._config.index_interval_bytes)
        self._max_timestamp_ms = _AT_FIRST_BATCH
        self._unsynced.add_segment(closed)
        with suppress(DiskFull, OutOfResources):  # then the next flush does it
            closed.seal()
            self.save_state(active.base_offset)

    def _plan(self, first_timestamp_ms: int) -> None:
        """Set the limits of the active segment. `segment.ms` counts in the time of records, from the first batch."""
        active, config = self.segments.active, self._config
        location = self._location
        jitter = jitter_ms(config, location.topic_id, location.partition, active.base_offset)
        is_timed = first_timestamp_ms >= 0
        self._max_timestamp_ms = (
            first_timestamp_ms + config.segment_ms - jitter if is_timed else _NEVER_MS
        )
        self._max_bytes = config.segment_bytes
        self._max_offset = active.base_offset + MAX_RELATIVE_OFFSET
        self._index_room = active.index_room(config.segment_index_bytes)

    def _plan_again(self) -> None:
        """Set the limits after the settings, or the active segment, have changed."""
        self._max_timestamp_ms = _AT_FIRST_BATCH
        self._max_bytes = self._max_offset = 0
        self._index_room = 0
        with suppress(OutOfResources):  # then the next batch begins a new segment
            first = self.segments.active.first_header()
            if first is not None:
                self._plan(first.max_timestamp_ms)

    # Leaving ---------------------------------------------------------------------------------

    def announce_truncation(self, offset: int) -> int:
        """Write down where `truncate(offset)` will end the log: a crash halfway must not look like damage.

        Return that offset. If it cannot be written nothing has changed.
        """
        self._location.files.ensure()
        kept_upto = self.segments.last_end_below(offset)
        self._announce(kept_upto)  # first: if it fails, a compaction goes on
        if offset < self.segments.active.base_offset:
            swap.discard(self._location.path, self._location.files.disk)
        return kept_upto

    def _announce(self, next_offset: int) -> None:
        before = self._state.truncated_to
        lowest = next_offset if before is None else min(before, next_offset)
        self._unsynced.add_path(self._state.save_epochs(self._location.path, lowest))
        self._state.truncated_to = lowest

    def truncate(self, offset: int) -> None:
        """Drop the batches that reach `offset`, after `announce_truncation`. Then call `reload_state`."""
        self.segments.truncate(offset, self._state.epochs.epoch_at(offset - 1))

    def spare_for(self, offset: int) -> Segment:
        """Make ready to drop everything; if there is no room for that, nothing has changed."""
        self._location.files.ensure()
        spare = self.segments.spare(offset, self._config.index_interval_bytes)
        try:
            self._announce(min(offset, self.segments[0].base_offset))
            swap.discard(self._location.path, self._location.files.disk)
        except BrokerError:  # no room, or too many open files
            spare.file.unlink()
            raise
        return spare

    def start_with(self, spare: Segment) -> None:
        """Drop everything but the segment from `spare_for`. Then call `reload_state`."""
        # what producers did below its offset is not known here
        state.forget_producers(self._location.path)
        self.segments.restart_with(spare)

    def reload_state(self, start_offset: int) -> None:
        """The log was truncated: let all that is known of it agree with the batches that are left."""
        self._unsynced.keep(self.segments)
        self._unsynced.add_segment(self.segments.active)
        follows, epochs = self._state, self._state.epochs
        follows.become(state.load(self._location.path, self.segments, epochs, self.next_offset))
        follows.epochs.truncate_start(start_offset)
        follows.epochs.changed = True
        with suppress(BrokerError):  # then the next flush does it
            self._unsynced.add_path(follows.save_epochs(self._location.path, follows.truncated_to))
        self._plan_again()

    def drop_first(self, count: int, delay_ms: int) -> list[Segment]:
        dropped = self.segments.drop_first(count, delay_ms)
        self._unsynced.keep(self.segments)
        return dropped

    def replace(self, change: Swap) -> bool:
        """Put compacted segments in place. False, and they are gone, if the old ones are no longer what they were."""
        self._location.files.ensure()
        if not self.segments.replace(change, self._config.index_interval_bytes):
            return False
        self._unsynced.keep(self.segments)
        for base_offset in change.new:
            self._unsynced.add_segment(self.segments[self.segments.number_of(base_offset)])
        return True

    # Becoming durable ------------------------------------------------------------------------

    def note_gaps(self) -> None:
        """Write down that offsets may be missing from now on."""
        gapped = Identity(self._location.topic_id, has_gaps=True)
        self._unsynced.add_path(identity.write(self._location.path, gapped))

    def save_state(self, keep_upto: int) -> None:
        """Write down what follows from the batches so far."""
        follows, path = self._state, self._location.path
        if follows.epochs.changed:
            self._unsynced.add_path(follows.save_epochs(path, follows.truncated_to))
        self._unsynced.add_path(
            follows.save_producers(path, self.segments, self.next_offset, keep_upto)
        )

    def fill(self, ticket: FlushTicket) -> None:
        """Hand a flush all that may not be on the disk."""
        follows, path = self._state, self._location.path
        if follows.epochs.changed:
            try:
                self._unsynced.add_path(follows.save_epochs(path, follows.truncated_to))
            except DiskFull:  # the next flush has it
                ticket.is_complete = False
        topic_path = os.path.dirname(path)
        directories = [path, topic_path, os.path.dirname(topic_path)]
        self._unsynced.fill(ticket, self.segments.active, directories)
        self.unflushed_bytes = 0

    def take_back(self, ticket: FlushTicket) -> None:
        """A flush could not be completed: the next one has all of it."""
        self.unflushed_bytes += ticket.size_bytes
        self._unsynced.take_back(ticket)

    def seal(self) -> None:
        """Close the active segment: the log grows no more."""
        active = self.segments.active
        self._unsynced.add_segment(active)
        active.seal()
        self.save_state(active.base_offset)

    def close(self) -> None:
        """Close every file. They open again when they are read."""
        self.segments.close()


def create(
    location: Location,
    log_state: LogState,
    config: TopicConfig,
    base_offset: int,
    *,
    has_gaps: bool,
) -> LocalLog:
    """The files of a log that was never written: its first segment. If that fails nothing has changed."""
    files, path, topic_id, _ = location
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        refuse(error, f"{path}: cannot be made")
    unsynced = Unsynced([])
    unsynced.add_path(identity.write(path, Identity(topic_id, has_gaps)))
    active = Segment.begin(files, path, base_offset, config.index_interval_bytes)
    return LocalLog(location, Segments(files, path, [active]), unsynced, log_state, config)
