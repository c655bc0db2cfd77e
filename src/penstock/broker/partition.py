"""One partition that this broker hosts: its log, its epoch, its high watermark, and who waits for it.

log start <= last stable offset <= high watermark <= log end, at every moment. The event loop is the
only caller, and no method awaits: between a check and its effect nothing else can happen.
"""

import asyncio
import logging
from typing import Final

from penstock.broker.topic import Host, Isolation, Read, Topic
from penstock.broker.waiters import Commits, Watcher
from penstock.metadata.image import PartitionImage
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    NotLeader,
    OffsetOutOfRange,
    StorageFault,
)
from penstock.model.ids import TopicPartition
from penstock.replication.follower import diverges
from penstock.replication.leader import Follower, IsrState, Leadership
from penstock.storage.epochs import EpochEnd
from penstock.storage.log import Appended, Log, Origin
from penstock.storage.segment import DamagedLog

__all__ = ["Host", "Isolation", "Partition", "Read", "Topic"]

_log = logging.getLogger(__name__)

NOBODY: Final = -1  # leads


class Partition:
    """Led by this broker alone unless `lead` or `follow` say otherwise."""

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
        "leader_epoch",
        "leader_id",
        "leadership",
        "replica_watchers",
        "topic",
        "unsynced",
        "watchers",
        "written_bytes",
    )

    def __init__(self, topic: Topic, index: int, leader_epoch: int, host: Host) -> None:
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
        self._commits: Commits | None = None
        self._durables: Commits | None = None
        self._durable_offset = 0  # where each append is synced: all below is on the disk
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
            self._durable_offset = log.next_offset
            if self.is_leader and self.leadership is None:
                self.high_watermark = log.next_offset
            else:
                saved = self._host.saved_high_watermark(self)
                self.high_watermark = min(max(saved, log.start_offset), log.next_offset)
                self._begin_epoch(log)
        return self._log

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self.high_watermark)

    def check_leader(self) -> None:
        if not self.is_leader:
            raise NotLeader(_led_elsewhere(self))

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

    # Roles -------------------------------------------------------------------------------------

    def lead(self, broker_id: int, state: PartitionImage) -> None:
        """This broker leads, as of `state`. In the same epoch only the other replicas may have changed."""
        if state.leader_epoch < self.leader_epoch:
            return
        is_new = not self.is_leader or state.leader_epoch != self.leader_epoch
        self.is_leader = True
        self.leader_id = broker_id
        self.leader_epoch = state.leader_epoch
        isr = IsrState(state.isr, state.partition_epoch)
        if state.replicas == (broker_id,):
            self._lead_alone()
        elif is_new or self.leadership is None:
            self.leadership = Leadership(broker_id, state.leader_epoch, 0, state.replicas, isr)
            if self._log is not None:
                self._begin_epoch(self._log)
                self._advance()
        elif self.leadership.committed(isr, state.replicas):
            self._advance()
        if is_new:
            self.wake()  # who waits must see the new epoch

    def _lead_alone(self) -> None:
        self.leadership = None
        if self._log is not None:
            own_end = self._own_end(self._log)
            if own_end > self.high_watermark:
                self._commit_upto(own_end, 1)

    def _begin_epoch(self, log: Log) -> None:
        """R1: where this epoch begins in the log."""
        if self.leadership is None:
            return
        log.begin_epoch(self.leader_epoch)
        self.leadership.start_offset = log.next_offset

    def follow(self, state: PartitionImage | None) -> None:
        """Another broker leads, or nobody does (None: this broker may not lead, whatever was decided before)."""
        was_leader, before = self.is_leader, self.leader_epoch
        if state is not None and state.leader_epoch < before:
            return
        self.is_leader = False
        self.leadership = None
        self.is_behind = False
        self.leader_id = NOBODY if state is None else state.leader
        self.leader_epoch = before if state is None else state.leader_epoch
        if was_leader:
            self._refuse_waiting(NotLeader(_led_elsewhere(self)))
        if was_leader or self.leader_epoch != before:
            self.wake()

    def _refuse_waiting(self, error: BrokerError) -> None:
        for waiting in (self._commits, self._durables):
            if waiting is not None:
                waiting.fail(error)

    # Writing -----------------------------------------------------------------------------------

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as far as this leader knows; of one that is alone, itself."""
        return (self.leader_id,) if self.leadership is None else self.leadership.isr.members

    @property
    def min_isr(self) -> int:
        """No more can be asked for than there are replicas."""
        replicas = 1 if self.leadership is None else len(self.leadership.replicas)
        return min(self.topic.config.min_insync_replicas, replicas)

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether as many replicas are in sync as the topic asks for."""
        return self.leadership is None or len(self.leadership.isr.members) >= self.min_isr

    def check_in_sync(self) -> None:
        """Before an append that all in-sync replicas shall have."""
        if not self.has_enough_in_sync:
            raise BrokerError(
                f"{self} has {len(self.isr)} in-sync replicas; min.insync.replicas is {self.min_isr}",
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
        if not self.is_leader:
            raise NotLeader(_led_elsewhere(self))
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
            self._wrote()
            if self.leadership is not None:
                self._grew(len(records))
            elif not self.topic.sync_each_append:
                self._commit_upto(log.next_offset, len(records))
        return appended

    def _wrote(self) -> None:
        """See to it that what was written reaches the disk."""
        if not self.unsynced:
            self.unsynced = True
            self._host.has_unsynced(self)
        if self.topic.sync_each_append:
            self._host.sync_soon(self)

    def synced(self, next_offset: int, size_bytes: int) -> None:
        """What lies below `next_offset` is durable; with sync-each-append it counts only now."""
        self._durable_offset = max(self._durable_offset, next_offset)
        if self._durables is not None:
            self._durables.passed(next_offset)
        if not self.is_leader:
            self._host.made_durable(self)
        elif self.leadership is not None:
            self._advance()
        elif next_offset > self.high_watermark:
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

    def written(self, next_offset: int) -> asyncio.Future[None] | None:
        """None when this broker itself has everything below `next_offset` as safe as the topic asks for."""
        if not self.topic.sync_each_append or next_offset <= self._durable_offset:
            return None
        if self._durables is None:
            self._durables = Commits()
        return self._durables.wait_for(next_offset, self._host.loop)

    def _commit_upto(self, next_offset: int, size_bytes: int) -> None:
        self.high_watermark = next_offset
        if self._commits is not None:
            self._commits.passed(next_offset)
        if self.watchers:
            if not self.grown_bytes:
                self._host.grew(self)
            self.grown_bytes += size_bytes

    # Leading others ----------------------------------------------------------------------------

    def _grew(self, size_bytes: int) -> None:
        """The followers must have it too before it is committed."""
        self._uncommitted_bytes += size_bytes
        if self.replica_watchers:
            if not self.written_bytes:
                self._host.grew(self)
            self.written_bytes += size_bytes
        if not self.is_behind:
            self.is_behind = True
            self._host.fell_behind(self)
        self._advance()

    def _advance(self) -> None:
        """Move the high watermark up to what every replica that counts has."""
        leadership, log = self.leadership, self._log
        if leadership is None or log is None:
            return
        everyone_counts = len(leadership.maximal) == len(leadership.replicas)
        mark = leadership.high_watermark(
            self.high_watermark,
            self._own_end(log),
            min_isr=self.min_isr,
            awaited=None if everyone_counts else self._is_awaited,
        )
        if mark > self.high_watermark:
            size_bytes = self._uncommitted_bytes or 1
            if mark == log.next_offset:
                self._uncommitted_bytes = 0
            self._commit_upto(mark, size_bytes)

    def _own_end(self, log: Log) -> int:
        return self._durable_offset if self.topic.sync_each_append else log.next_offset

    def _is_awaited(self, broker_id: int, follower: Follower) -> bool:
        return self._host.is_awaited(broker_id, follower.caught_up_ms)

    def isr_committed(self, state: PartitionImage) -> None:
        """The controller's answer to a proposal of this leader."""
        leadership = self.leadership
        if leadership is not None and state.leader_epoch == self.leader_epoch:
            leadership.committed(IsrState(state.isr, state.partition_epoch), leadership.replicas)
            self._advance()

    def isr_refused(self) -> None:
        if self.leadership is not None:
            self.leadership.refused()
            self._advance()

    def replica_time_passed(self) -> None:
        """Someone for whom the high watermark waited may have had its time."""
        self._advance()

    def read_as_replica(
        self,
        replica: tuple[int, int],
        offset: int,
        last_epoch: int,
        max_bytes: int,
        *,
        at_least_one: bool,
    ) -> Read | EpochEnd:
        """What a follower (its broker id and epoch) lacks from `offset` on; where the logs part, if they do (R4)."""
        if not self.is_leader:
            raise NotLeader(_led_elsewhere(self))
        log = self.log
        if last_epoch >= 0:
            end = self.epoch_end(last_epoch)
            if end.epoch < 0 or offset < log.start_offset:
                raise OffsetOutOfRange(f"{self}: offset {offset} of epoch {last_epoch} is not here")
            if diverges(offset, last_epoch, end):
                return end
        if not log.start_offset <= offset <= log.next_offset:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {log.start_offset}..{log.next_offset}"
            )
        self._replica_has(replica, offset, log)
        return self._read(log, offset, max_bytes, log.next_offset, at_least_one=at_least_one)

    def epoch_end(self, epoch: int) -> EpochEnd:
        """Where the log leaves an epoch; the present one may not have written anything yet."""
        log = self.log
        if epoch == self.leader_epoch and self.is_leader:
            return EpochEnd(epoch, log.next_offset)
        return log.end_offset_for(epoch)

    def _replica_has(self, replica: tuple[int, int], offset: int, log: Log) -> None:
        leadership = self.leadership
        if leadership is None:
            return
        broker_id, broker_epoch = replica
        now_ms = self._host.monotonic_ms()
        if not leadership.fetched(broker_id, broker_epoch, offset, log.next_offset, now_ms):
            return
        if broker_id in leadership.isr.members:
            if offset < self.high_watermark and leadership.proposed is None:
                _log.error(
                    "replica-lost-records partition=%s broker=%d next-offset=%d high-watermark=%d",
                    self, broker_id, offset, self.high_watermark,
                )  # fmt: skip
                members = tuple(it for it in leadership.isr.members if it != broker_id)
                self._host.isr_changes(self, members)
        else:
            expanded = leadership.expanded(broker_id, self.high_watermark)
            if expanded is not None:
                self._host.isr_changes(self, expanded)
        self._advance()

    # Following ---------------------------------------------------------------------------------

    @property
    def fetch_offset(self) -> int:
        """From where to fetch: all below is here, and as safe as the topic asks for."""
        return self._own_end(self.log)

    def append_replicated(self, records: memoryview) -> None:
        """Batches of the leader, which go on where this log ends."""
        self._host.refuse_when_unable()
        try:
            self.log.append_as_follower(records)
        except DiskFull as error:
            self._host.disk_is_full(error)
            raise
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        self._wrote()

    def learn(self, high_watermark: int, log_start: int) -> None:
        """What the leader has committed, and where its log begins (F3)."""
        log = self.log
        mark = min(high_watermark, log.next_offset)
        if mark > self.high_watermark:
            self._commit_upto(mark, 1)
        if log.start_offset < log_start <= self.high_watermark:
            self.delete_records_before(log_start)

    def cut(self, offset: int) -> None:
        """Drop what the leader does not have (F1)."""
        if offset < self.high_watermark:
            _log.error(
                "committed-records-cut partition=%s to=%d high-watermark=%d leader=%d epoch=%d",
                self, offset, self.high_watermark, self.leader_id, self.leader_epoch,
            )  # fmt: skip
        try:
            self.log.truncate_to(offset)
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        self._was_cut(offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything: the leader's log begins after the end of this one."""
        try:
            self.log.restart_at(offset)
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        self._was_cut(offset)
        self.high_watermark = offset

    def _was_cut(self, offset: int) -> None:
        self._durable_offset = min(self._durable_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.wake()

    # Reading -----------------------------------------------------------------------------------

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
        limit = log.last_stable_offset(high_watermark) if isolation else high_watermark
        if offset > log.next_offset or offset < log.start_offset:
            raise OffsetOutOfRange(
                f"{self}: offset {offset} is outside {log.start_offset}..{high_watermark}"
            )
        return self._read(
            log, offset, max_bytes, limit, isolation=isolation, at_least_one=at_least_one
        )

    def read_all(self, offset: int, max_bytes: int) -> Read:
        """For this broker itself: also what is not committed yet."""
        self.check_leader()
        return self._read(self.log, offset, max_bytes, self.log.next_offset, at_least_one=True)

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
        return refusal.again()

    def fail(self, error: BrokerError) -> None:
        """From now on every use is refused with `error`."""
        self.failure = error
        self._refuse_waiting(error)
        self.wake()


def _led_elsewhere(partition: Partition) -> str:
    if partition.leader_id == NOBODY:
        return f"{partition} has no leader at the moment"
    return f"{partition} is led by broker {partition.leader_id}"
