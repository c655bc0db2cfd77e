"""The log under a partition that this broker hosts: opened at first use, its high watermark, and who waits for it.

log start <= last stable offset <= high watermark <= log end, at every moment. The event loop is the
only caller, and no method awaits: between a check and its effect nothing else can happen.
"""

import asyncio
import logging
from typing import Any, Final

from penstock.broker.partitions.topic import Host, Isolation, Read, Topic
from penstock.broker.partitions.waiters import HighWatermarkWaiters, Watcher
from penstock.model.errors import BrokerError, ErrorCode, NotLeader, StorageFault
from penstock.model.ids import TopicPartition
from penstock.replication.leader import Leadership
from penstock.storage.log import Log
from penstock.storage.segment import DamagedLog

_log = logging.getLogger(__name__)

NOBODY: Final = -1  # leads


class PartitionLog:
    """Led by this broker alone until the Partition that it is part of says otherwise."""

    __slots__ = (
        "_commits",
        "_durable_offset",
        "_durables",
        "_host",
        "_log",
        "_uncommitted_bytes",
        "failure",
        "grown_bytes",
        "high_watermark",
        "index",
        "is_behind",
        "is_leader",
        "is_stopped",
        "leader_epoch",
        "leader_id",
        "leadership",
        "loss_epoch",
        "replica_watchers",
        "topic",
        "unsynced",
        "watchers",
        "written_bytes",
    )

    def __init__(self, topic: Topic, index: int, leader_epoch: int, host: Host[Any]) -> None:
        self.topic = topic
        self.index = index
        self.is_leader = True
        self.leader_id = NOBODY
        self.leader_epoch = leader_epoch
        self.leadership: Leadership | None = None  # over other replicas, if there are any
        self.high_watermark = 0
        self.watchers: set[Watcher] | None = None  # of what is committed
        self.replica_watchers: set[Watcher] | None = None  # of all that is written
        self.unsynced = False  # the log has bytes that may not be on the disk yet
        self.grown_bytes = 0  # committed since the last tick; not 0 means: queued to be woken
        self.written_bytes = 0  # written since the last tick, likewise
        self.is_behind = False  # not every in-sync replica was seen to have all of the log
        self.failure: BrokerError | None = None  # why it can no longer be used
        self.is_stopped = False  # by that, until there is another leader epoch
        self.loss_epoch = -1  # what was committed before this epoch may have been lost with it
        self._commits: HighWatermarkWaiters | None = None
        self._durables: HighWatermarkWaiters | None = None
        self._durable_offset = 0  # all below is on the disk; some topics count no more
        self._uncommitted_bytes = 0
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
                self._log = log = self._host.open_log(self)
            except StorageFault as fault:
                raise self._retire(fault) from fault
            self._durable_offset = min(log.recovery_point, log.next_offset)
            self._queue_tail(log)
            if self.is_leader and self.leadership is None:
                self.high_watermark = max(self._own_end(log), log.start_offset)
            else:
                self.high_watermark = self._surely_committed(log)
                self._begin_epoch(log)
                self._opened_with_followers()
        return self._log

    def _surely_committed(self, log: Log) -> int:
        """What was written down; of a log that has lost some of that, only what was synced: with the rest it may have
        lost a cut, too, and have again what was never committed."""
        saved = self._host.saved_high_watermark(self)
        if saved > log.next_offset:
            saved = min(log.recovery_point, log.next_offset)
        return max(saved, log.start_offset)

    def has(self, log: Log) -> bool:
        """Whether that is its log, not one that was set aside since."""
        return self._log is log

    def _opened_with_followers(self) -> None:
        """What is committed may be more than was last written down."""

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def check_leader(self) -> None:
        if not self.is_leader:
            raise NotLeader(led_elsewhere(self))

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

    def check_settled(self) -> None:
        """KIP-207: a new leader does not know yet how much of its log had been committed before it."""
        leadership = self.leadership
        if leadership is not None and self.high_watermark < leadership.start_offset:
            raise BrokerError(
                f"{self}: the high watermark of epoch {self.leader_epoch} is not known yet",
                ErrorCode.OFFSET_NOT_AVAILABLE,
            )

    def _begin_epoch(self, log: Log) -> None:
        """R1: where this epoch begins in the log."""
        if self.leadership is None:
            return
        log.begin_epoch(self.leader_epoch)
        self.leadership.start_offset = log.next_offset
        if self.high_watermark < log.next_offset:
            self._fell_behind()

    def _fell_behind(self) -> None:
        if not self.is_behind:
            self.is_behind = True
            self._host.fell_behind(self)

    # Becoming safe --------------------------------------------------------------------------------

    def committed(self, next_offset: int) -> asyncio.Future[None] | None:
        """None when everything below `next_offset` is committed, else what to wait for."""
        if next_offset <= self.high_watermark:
            return None
        if self._commits is None:
            self._commits = HighWatermarkWaiters()
        return self._commits.wait_for(next_offset, self._host.loop)

    def written(self, next_offset: int) -> asyncio.Future[None] | None:
        """None when this broker itself has everything below `next_offset` as safe as the topic asks for."""
        if not self.topic.sync_each_append or next_offset <= self._durable_offset:
            return None
        if self._durables is None:
            self._durables = HighWatermarkWaiters()
        return self._durables.wait_for(next_offset, self._host.loop)

    def _commit_upto(self, next_offset: int, size_bytes: int) -> None:
        self.high_watermark = next_offset
        if self._commits is not None:
            self._commits.passed(next_offset)
        if self.watchers:
            if not self.grown_bytes:
                self._host.grew(self)
            self.grown_bytes += size_bytes

    def _own_end(self, log: Log) -> int:
        return self._durable_offset if self.topic.sync_each_append else log.next_offset

    def _wrote(self) -> None:
        """See to it that what was written reaches the disk."""
        if not self.unsynced:
            self.unsynced = True
            self._host.has_unsynced(self)
        if self.topic.sync_each_append:
            self._host.sync_soon(self)

    def _queue_tail(self, log: Log) -> None:
        """What a crash, or a stop, has left unsynced counts for no more than it did before."""
        if self._durable_offset < log.next_offset:
            self._wrote()

    def flush_put_off(self) -> None:
        """Its tail could not be made durable yet: to be tried again."""
        self.unsynced = True
        self._host.has_unsynced(self)

    # Reading --------------------------------------------------------------------------------------

    def _read(
        self,
        log: Log,
        offset: int,
        max_bytes: int,
        limit: int,
        *,
        isolation: int = Isolation.READ_UNCOMMITTED,
        at_least_one: bool,
    ) -> Read:
        high_watermark, start = self.high_watermark, log.start_offset
        stable = log.last_stable_offset(high_watermark)
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
                        limit,
                    )
            except StorageFault as fault:
                raise self.storage_failed(fault) from fault
        return Read([], 0, high_watermark, stable, start, offset, [] if isolation else None, limit)

    # Waking, and the end --------------------------------------------------------------------------

    def wake(self) -> None:
        """Something other than new data happened that readers must see."""
        for watcher in (*(self.watchers or ()), *(self.replica_watchers or ())):
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
        self._host.log_failed(self)
        return refusal.again()

    def fail(self, error: BrokerError) -> None:
        """From now on every use is refused with `error`."""
        self.failure = error
        self.is_stopped = False
        self._refuse_waiting(error)
        self.wake()

    def _resume(self, leader_epoch: int) -> None:
        """Under another leader it may go on."""
        if self.is_stopped and leader_epoch > self.leader_epoch:
            self.is_stopped = False
            self.failure = None
            if self._log is not None:
                self.unsynced = False  # nobody has seen to it meanwhile
                self._queue_tail(self._log)

    def _refuse_waiting(self, error: BrokerError) -> None:
        for waiting in (self._commits, self._durables):
            if waiting is not None:
                waiting.fail(error)


def led_elsewhere(partition: PartitionLog) -> str:
    if partition.leader_id == NOBODY:
        return f"{partition} has no leader at the moment"
    return f"{partition} is led by broker {partition.leader_id}"
