"""One partition that this broker hosts: its log, its epoch, its high watermark, and who waits for it.

log start <= last stable offset <= high watermark <= log end, at every moment. The event loop is the
only caller, and no method awaits: between a check and its effect nothing else can happen.
"""

import asyncio
import logging
from enum import IntEnum
from typing import NamedTuple, Protocol

from penstock.broker.metrics import TopicMetrics
from penstock.broker.waiters import Commits, Watcher
from penstock.metadata.image import INTERNAL_TOPICS
from penstock.model.configs import TopicConfig
from penstock.model.errors import BrokerError, DiskFull, ErrorCode, OffsetOutOfRange, StorageFault
from penstock.model.ids import TopicId, TopicPartition
from penstock.storage.files import FileSlice
from penstock.storage.log import AbortedTxn, Appended, Log, Origin
from penstock.storage.segment import DamagedLog

_log = logging.getLogger(__name__)


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class Read(NamedTuple):
    """Whole batches, as slices of files, and what the reader should know of the log beside them."""

    slices: list[FileSlice]
    size_bytes: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int  # where to read on
    aborted: list[AbortedTxn] | None  # None: not asked for


class Topic:
    """What the partitions of one topic share."""

    __slots__ = ("config", "id", "internal", "metrics", "name", "partitions", "sync_each_append")

    def __init__(
        self, name: str, topic_id: TopicId, config: TopicConfig, metrics: TopicMetrics
    ) -> None:
        self.name = name
        self.id = topic_id
        self.internal = name in INTERNAL_TOPICS
        self.metrics = metrics
        self.partitions: list[Partition | None] = []  # None: hosted elsewhere
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.sync_each_append = config.flush_messages == 1


class Host(Protocol):
    """What a partition asks of the broker around it."""

    loop: asyncio.AbstractEventLoop

    def open_log(self, partition: "Partition") -> Log: ...
    def refuse_when_unable(self) -> None:
        """Raise when appends cannot be taken now: the disk is full or the directory is offline."""

    def grew(self, partition: "Partition") -> None:
        """There is more to read: wake who waits at the end of this tick."""

    def has_unsynced(self, partition: "Partition") -> None:
        """It has been written to for the first time since it was last made durable."""

    def sync_soon(self, partition: "Partition") -> None:
        """Make its tail durable; `synced` is called when it is."""

    def disk_is_full(self, error: DiskFull) -> None: ...
    def disk_failed(self, error: StorageFault) -> None: ...


class Partition:
    __slots__ = (
        "_commits",
        "_host",
        "_log",
        "failure",
        "grown_bytes",
        "high_watermark",
        "index",
        "leader_epoch",
        "topic",
        "unsynced",
        "watchers",
    )

    def __init__(self, topic: Topic, index: int, leader_epoch: int, host: Host) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.high_watermark = 0
        self.watchers: set[Watcher] | None = None
        self.unsynced = False  # the log has bytes that may not be on the disk yet
        self.grown_bytes = 0  # since the last tick; not 0 means: queued to be woken
        self.failure: BrokerError | None = None  # why it can no longer be used
        self._commits: Commits | None = None
        self._host = host
        self._log: Log | None = None

    def __str__(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def name(self) -> TopicPartition:
        return TopicPartition(self.topic.name, self.index)

    @property
    def is_open(self) -> bool:
        return self._log is not None

    @property
    def log(self) -> Log:
        """The log, opened at first use."""
        if self.failure is not None:
            raise self.failure.again()
        if self._log is None:
            try:
                self._log = self._host.open_log(self)
            except StorageFault as fault:
                raise self._retire(fault) from fault
            self.high_watermark = self._log.next_offset
        return self._log

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def check_epoch(self, epoch: int) -> None:
        """The leader epoch that a client believes in, where it says one (KIP-320)."""
        if epoch == self.leader_epoch or epoch < 0:
            return
        if epoch < self.leader_epoch:
            raise BrokerError(
                f"{self} is at leader epoch {self.leader_epoch}, the request at {epoch}",
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        raise BrokerError(
            f"{self} is at leader epoch {self.leader_epoch}, not yet at {epoch}",
            ErrorCode.UNKNOWN_LEADER_EPOCH,
        )

    # Writing ---------------------------------------------------------------------------------

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether as many replicas are in sync as the topic asks for: so far there is one, this one."""
        return self.topic.config.min_insync_replicas <= 1

    def check_in_sync(self) -> None:
        """Before an append that all in-sync replicas shall have."""
        if not self.has_enough_in_sync:
            raise BrokerError(
                f"{self} has 1 in-sync replica; min.insync.replicas is "
                f"{self.topic.config.min_insync_replicas}",
                ErrorCode.NOT_ENOUGH_REPLICAS,
            )

    def append(
        self,
        records: memoryview,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transactional: bool = False,
        zstd: bool = True,
    ) -> Appended:
        """Put the batch into the log, before the caller's buffer is used again."""
        self._host.refuse_when_unable()
        log = self._log or self.log
        if self.failure is not None:
            raise self.failure.again()
        try:
            appended = log.append_as_leader(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                transactional=transactional,
                zstd=zstd,
            )
        except DiskFull as error:
            self._host.disk_is_full(error)
            raise
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        if not appended.duplicate:
            if not self.unsynced:
                self.unsynced = True
                self._host.has_unsynced(self)
            if self.topic.sync_each_append:
                self._host.sync_soon(self)
            else:
                self._commit_upto(log.next_offset, len(records))
        return appended

    def synced(self, next_offset: int, size_bytes: int) -> None:
        """What lies below `next_offset` is durable; with sync-each-append it counts only now."""
        if next_offset > self.high_watermark:
            self._commit_upto(next_offset, size_bytes)

    def flush_put_off(self) -> None:
        """Its tail could not be made durable yet: to be tried again."""
        self.unsynced = True
        self._host.has_unsynced(self)

    def committed(self, next_offset: int) -> asyncio.Future[None] | None:
        """None when everything below `next_offset` is committed, else what to wait for."""
        if next_offset <= self.high_watermark:
            return None
        if self._commits is None:
            self._commits = Commits()
        return self._commits.wait_for(next_offset, self._host.loop)

    def _commit_upto(self, next_offset: int, size_bytes: int) -> None:
        self.high_watermark = next_offset
        if self._commits is not None:
            self._commits.passed(next_offset)
        if self.watchers:
            if not self.grown_bytes:
                self._host.grew(self)
            self.grown_bytes += size_bytes

    # Reading ---------------------------------------------------------------------------------

    def visible_end(self, isolation: int) -> int:
        """One past the last offset that a consumer with this isolation may see."""
        return self.last_stable_offset if isolation else self.high_watermark

    def read(
        self, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True
    ) -> Read:
        """Whole batches from the one that holds `offset`, up to what this reader may see.

        With `at_least_one` the first is given even when larger than `max_bytes` (KIP-74). From an
        offset that is in the log but not to be seen yet there is nothing, and no error: after a
        change of leader the high watermark may be behind what a reader has already seen.
        """
        log = self.log
        high_watermark = self.high_watermark
        stable = log.last_stable_offset(high_watermark)
        limit = stable if isolation else high_watermark
        start = log.start_offset
        if offset > log.next_offset or offset < start:
            raise OffsetOutOfRange(f"{self}: offset {offset} is outside {start}..{high_watermark}")
        if offset < limit and (max_bytes > 0 or at_least_one):
            try:
                found = log.read(offset, max_bytes, upto_offset=limit)
                if found.size_bytes <= max_bytes or at_least_one:
                    until = found.next_offset
                    aborted = log.aborted_transactions(offset, until) if isolation else None
                    return Read(
                        found.slices,
                        found.size_bytes,
                        high_watermark,
                        stable,
                        start,
                        until,
                        aborted,
                    )
            except StorageFault as fault:
                raise self.storage_failed(fault) from fault
        return Read([], 0, high_watermark, stable, start, offset, [] if isolation else None)

    # Changes from outside --------------------------------------------------------------------

    def delete_records_before(self, offset: int) -> int:
        """Move the log start up to `offset` (-1: the high watermark) and return it."""
        log = self.log
        target = self.high_watermark if offset == -1 else offset
        if not log.start_offset <= target <= self.high_watermark:
            if 0 <= target < log.start_offset:
                return log.start_offset
            raise OffsetOutOfRange(
                f"{self}: cannot delete before {target}; the log is "
                f"{log.start_offset}..{self.high_watermark}"
            )
        try:
            log.delete_records_before(target)
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        self.wake()
        return log.start_offset

    def wake(self) -> None:
        """Something other than new data happened that readers must see."""
        for watcher in list(self.watchers or ()):
            watcher.changed(self)

    def storage_failed(self, fault: StorageFault) -> BrokerError:
        """Damage concerns this log alone, any other fault the whole disk. What to tell the client."""
        if isinstance(fault, DamagedLog) or isinstance(fault.__cause__, FileNotFoundError):
            return self._retire(fault)
        self._host.disk_failed(fault)
        return BrokerError(f"{self}: {fault}", ErrorCode.KAFKA_STORAGE_ERROR)

    def _retire(self, fault: StorageFault) -> BrokerError:
        _log.critical("partition-failed partition=%s error=%s", self, fault)
        refusal = BrokerError(f"{self}: {fault}", ErrorCode.KAFKA_STORAGE_ERROR)
        self.fail(refusal)
        return refusal.again()

    def fail(self, error: BrokerError) -> None:
        """From now on every use is refused with `error`."""
        self.failure = error
        if self._commits is not None:
            self._commits.fail(error)
        self.wake()
