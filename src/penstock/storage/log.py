"""A partition's log: batches enter at the end, whole and in order, and never change.

One write per append, no fsync: what is durable is what `recovery_point` says.
"""

import os
from bisect import bisect_right
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from penstock.model.configs import TopicConfig
from penstock.model.errors import DiskFull, OffsetOutOfRange, StorageFault
from penstock.model.ids import TopicId, format_topic_id
from penstock.records.batch import BatchHeader, stamp, stamp_append_time, verify
from penstock.records.validation import UNBOUNDED_MS, check_client_batch
from penstock.storage import recovery
from penstock.storage.epochs import EpochEnd, Epochs
from penstock.storage.files import FileSlice, Handle, OpenFiles, write_atomically
from penstock.storage.producers import Producers
from penstock.storage.recovery import Ending, Recovery
from penstock.storage.segment import MAX_RELATIVE_OFFSET, Segment
from penstock.storage.timestamps import TimestampOffset, find_max_timestamp, find_timestamp

METADATA_FILE: Final = "partition.metadata"


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


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int


class LogRead(NamedTuple):
    slices: list[FileSlice]
    size_bytes: int
    next_offset: int


class FlushTicket:
    """What was unsynced when a flush began. Only `sync` runs in a thread, and touches nothing else."""

    __slots__ = ("_directories", "_handles", "next_offset", "size_bytes", "truncations")

    def __init__(
        self,
        handles: list[tuple[Handle, str]],
        directories: list[str],
        next_offset: int,
        size_bytes: int,
        truncations: int,
    ) -> None:
        self._handles = handles
        self._directories = directories
        self.next_offset = next_offset
        self.size_bytes = size_bytes
        self.truncations = truncations

    def sync(self) -> None:
        """May be called once: after a failure nobody knows what is on the disk."""
        for handle, path in self._handles:
            try:
                os.fdatasync(handle.fd)
            except OSError as error:
                raise StorageFault(f"{path}: sync failed: {error.strerror}") from error
        for path in self._directories:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        self._handles = []


class Log:
    """Segments in order; the last one grows. Not thread-safe: the event loop is its only caller."""

    __slots__ = (
        "_active",
        "_after_max_ms",
        "_append_time",
        "_before_max_ms",
        "_epochs",
        "_files",
        "_max_batch_bytes",
        "_new_names",
        "_partition",
        "_producers",
        "_roll_after_ms",
        "_roll_bytes",
        "_topic_path",
        "_truncations",
        "_unsynced",
        "config",
        "next_offset",
        "recovery",
        "recovery_point",
        "segments",
        "start_offset",
        "topic_id",
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
        """A log that was never written; it owns no file and no directory until it is."""
        self._files = files
        self._topic_path = topic_path
        self._partition = partition
        self.topic_id = topic_id
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.next_offset = 0
        self.recovery_point = 0
        self.recovery = Recovery()
        self.unflushed_bytes = 0
        self._active: Segment | None = None
        self._epochs: Epochs | None = None
        self._producers: Producers | None = None
        self._unsynced: list[Segment] = []
        self._new_names = False
        self._truncations = 0
        self._roll_after_ms = 0
        self.configure(config)

    @classmethod
    def open(
        cls,
        files: OpenFiles,
        topic_path: str,
        partition: int,
        topic_id: TopicId,
        config: TopicConfig,
        *,
        ending: Ending,
        recovery_point: int | None,
        start_offset: int | None,
    ) -> "Log":
        log = cls(files, topic_path, partition, topic_id, config)
        segments, log.recovery = recovery.open_segments(
            files,
            log.path,
            config.index_interval_bytes,
            ending=ending,
            recovery_point=recovery_point,
        )
        if segments:
            log.segments = segments
            log._active = segments[-1]
            log.next_offset = log._active.next_offset
            log.start_offset = max(segments[0].base_offset, start_offset or 0)
            log.recovery_point = log.next_offset if ending is Ending.CLEAN else recovery_point or 0
            log._plan_roll(log._active.first_header())
        return log

    def configure(self, config: TopicConfig) -> None:
        """Settings in force from the next append on."""
        self.config = config
        self._append_time = config.message_timestamp_type == "LogAppendTime"
        self._max_batch_bytes = config.max_message_bytes
        self._before_max_ms = (
            UNBOUNDED_MS if self._append_time else config.message_timestamp_before_max_ms
        )
        self._after_max_ms = (
            UNBOUNDED_MS if self._append_time else config.message_timestamp_after_max_ms
        )
        self._roll_bytes = config.segment_bytes

    @property
    def path(self) -> str:
        return f"{self._topic_path}/partition-{self._partition}"

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def local_start_offset(self) -> int:
        return self.start_offset

    @property
    def epochs(self) -> Epochs:
        if self._epochs is None:
            self._epochs = Epochs()
        return self._epochs

    @property
    def producers(self) -> Producers:
        if self._producers is None:
            self._producers = Producers()
        return self._producers

    @property
    def latest_epoch(self) -> int:
        return -1 if self._epochs is None else self._epochs.latest

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return None if self._producers is None else self._producers.first_open_offset

    def end_offset_for(self, epoch: int) -> EpochEnd:
        return self.epochs.end_offset_for(epoch, self.next_offset)

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
    ) -> Appended:
        """Check one batch, give it the next offsets and write it, before the caller's buffer is used again."""
        header = (
            check_client_batch(
                records,
                max_batch_bytes=self._max_batch_bytes,
                now_ms=now_ms,
                before_max_ms=self._before_max_ms,
                after_max_ms=self._after_max_ms,
                transactional=transactional,
                zstd=zstd,
            )
            if origin is Origin.CLIENT
            else verify(records)
        )
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                return Appended(known.base_offset, known.last_offset, -1, self.start_offset, True)
        timestamp_ms, append_time_ms = header.max_timestamp_ms, -1
        if self._append_time:
            stamp_append_time(records, now_ms)
            timestamp_ms = append_time_ms = now_ms
        base_offset = self.next_offset
        last_offset = base_offset + header.last_offset_delta
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
            self._after_entry(active)
        self.next_offset = last_offset + 1
        self.unflushed_bytes += len(records)
        epochs = self._epochs
        if epochs is None or leader_epoch != epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            self.producers.record(header, base_offset, timestamp_ms)
        return Appended(base_offset, last_offset, append_time_ms, self.start_offset, False)

    def _after_entry(self, active: Segment) -> None:
        """A full index begins a new segment with the next append."""
        if active.index_bytes + 12 > self.config.segment_index_bytes:
            self._roll_bytes = 0

    def _roll_for(self, timestamp_ms: int) -> Segment:
        """A new segment for a batch of that time, if the active one has any batch."""
        active = self._active
        if active is None or active.size_bytes:
            active = self._begin_segment()
        self._roll_after_ms = timestamp_ms + self.config.segment_ms
        return active

    def _plan_roll(self, first: BatchHeader | None) -> None:
        if first is not None:
            self._roll_after_ms = first.max_timestamp_ms + self.config.segment_ms

    def roll(self) -> None:
        """Close the active segment, if it holds anything, and begin another."""
        if self._active is not None and self._active.size_bytes:
            self._begin_segment()

    def _begin_segment(self) -> Segment:
        if self._active is None:
            self._create_directory()
        segment = Segment.begin(
            self._files, self.path, self.next_offset, self.config.index_interval_bytes
        )
        if self._active is not None:
            self._unsynced.append(self._active)
            with suppress(DiskFull):  # tried again by the next flush
                self._active.seal()
        self._active = segment
        self.segments.append(segment)
        self._roll_bytes = self.config.segment_bytes
        self._new_names = True
        return segment

    def _create_directory(self) -> None:
        path = self.path
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise StorageFault(f"{path}: cannot be made: {error.strerror}") from error
        text = f"version: 0\ntopic_id: {format_topic_id(self.topic_id)}\n"
        write_atomically(f"{path}/{METADATA_FILE}", text.encode())

    # Reading ---------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, upto_offset: int) -> LogRead:
        """Whole batches from the one that holds `offset`, of one segment; the next call goes on after them.

        The first one is given even when larger than `max_bytes`. None reaches `upto_offset`.
        """
        if not self.start_offset <= offset <= self.next_offset:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {self.start_offset}..{self.next_offset}"
            )
        active = self._active
        if active is None or offset >= upto_offset:
            return LogRead([], 0, offset)
        if offset >= active.base_offset:
            found, segment = active.read(offset, max_bytes, upto_offset), active
        else:
            number = bisect_right(self.segments, offset, key=_base_offset) - 1
            found, segment = None, active
            for segment in self.segments[max(number, 0) :]:
                found = segment.read(offset, max_bytes, upto_offset)
                if found is not None or segment.next_offset >= upto_offset:
                    break
        if found is None:
            return LogRead([], 0, offset)
        size = found.end - found.position
        return LogRead([FileSlice(segment.file, found.position, size)], size, found.next_offset)

    def aborted_transactions(self, from_offset: int, upto_offset: int) -> list[AbortedTxn]:
        return []

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampOffset | None:
        """The first record at or after `timestamp_ms`, by its own time, also inside a batch."""
        return find_timestamp(self.segments, timestamp_ms, self.start_offset)

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp."""
        return find_max_timestamp(self.segments, self.start_offset)

    # Flushing --------------------------------------------------------------------------------

    def flush_begin(self) -> FlushTicket:
        active = self._active
        handles: list[tuple[Handle, str]] = []
        for segment in self._unsynced:
            for file in (segment.file, *segment.seal()):
                handles.append((file.open(), file.path))
        if active is not None:
            active.save_indexes()
            handles.append((active.file.open(), active.file.path))
        directories = [self.path] if self._new_names else []
        self._new_names = False
        self._unsynced = []
        size_bytes, self.unflushed_bytes = self.unflushed_bytes, 0
        return FlushTicket(handles, directories, self.next_offset, size_bytes, self._truncations)

    def flush_end(self, ticket: FlushTicket) -> None:
        if ticket.truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, ticket.next_offset)

    def flush(self) -> None:
        """All three steps at once, for those who may wait for the disk."""
        ticket = self.flush_begin()
        ticket.sync()
        self.flush_end(ticket)

    def close(self) -> None:
        """Everything durable and every file closed; the log can be opened again."""
        if self._active is not None:
            self._unsynced.append(self._active)
            self._active = None
            self.flush()
        for segment in self.segments:
            segment.close()

    def __str__(self) -> str:
        return f"{os.path.basename(self._topic_path)}-{self._partition}"


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
