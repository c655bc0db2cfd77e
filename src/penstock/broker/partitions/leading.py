"""A partition while this broker leads it: appends, and the followers that must have them before they are committed."""

import logging
from collections.abc import Sequence

from penstock.broker.partitions.log import PartitionLog, led_elsewhere
from penstock.broker.partitions.topic import Read
from penstock.metadata.image import PartitionImage
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    NotLeader,
    OffsetOutOfRange,
    StorageFault,
)
from penstock.replication.follower import diverges
from penstock.replication.leader import Follower, IsrState, Leadership
from penstock.storage.epochs import EpochEnd
from penstock.storage.log import Appended, Log, Origin

_log = logging.getLogger(__name__)


class LeadingPartition(PartitionLog):
    """See Partition for what it does while another broker leads."""

    __slots__ = ()

    def lead(self, broker_id: int, state: PartitionImage) -> None:
        """This broker leads, as of `state`. In the same epoch only the other replicas may have changed."""
        if state.leader_epoch < self.leader_epoch:
            return
        is_new = not self.is_leader or state.leader_epoch != self.leader_epoch
        self._resume(state.leader_epoch)
        self.is_leader = True
        self.leader_id = broker_id
        self.leader_epoch = state.leader_epoch
        isr = IsrState(state.isr, state.partition_epoch)
        settled_count = len(state.replicas) - len(state.adding)
        if state.replicas == (broker_id,):
            self._lead_alone()
        elif is_new or self.leadership is None:
            self.leadership = Leadership(broker_id, state.leader_epoch, 0, state.replicas, isr)
            self.leadership.settled_count = settled_count
            if self._log is not None:
                self._begin_epoch(self._log)
                self._advance()
        else:
            self.leadership.settled_count = settled_count
            self.leadership.committed(isr, state.replicas)
            self._advance()
        if is_new:
            self.wake()  # who waits must see the new epoch

    def _lead_alone(self) -> None:
        self.leadership = None
        if self._log is not None:
            own_end = self._own_end(self._log)
            if own_end > self.high_watermark:
                self._commit_upto(own_end, 1)

    # Writing --------------------------------------------------------------------------------------

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as far as this leader knows; of one that is alone, itself."""
        return (self.leader_id,) if self.leadership is None else self.leadership.isr.members

    @property
    def min_isr(self) -> int:
        """No more can be asked for than there are replicas; those that are being added do not count yet."""
        replicas = 1 if self.leadership is None else self.leadership.settled_count
        return min(self.topic.config.min_insync_replicas, replicas)

    @property
    def has_enough_in_sync(self) -> bool:
        """Whether as many replicas are in sync as the topic asks for."""
        return self.leadership is None or len(self.leadership.isr.members) >= self.min_isr

    @property
    def is_under_replicated(self) -> bool:
        leadership = self.leadership
        return leadership is not None and len(leadership.isr.members) < len(leadership.replicas)

    def check_writable(self) -> None:
        """Raise what an append that all in-sync replicas shall have would be refused with now."""
        self._host.refuse_when_unable()
        if self.failure is not None:
            raise self.failure.again()
        if not self.is_leader:
            raise NotLeader(led_elsewhere(self))
        self.check_in_sync()

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
        is_opened: bool = False,
    ) -> Appended:
        """Put the batch into the log, before the caller's buffer is used again."""
        self._host.refuse_when_unable()
        if not self.is_leader:
            raise NotLeader(led_elsewhere(self))
        log = self._log or self.log
        if self.failure is not None:
            raise self.failure.again()
        if self.topic.mirror is not None:
            self._refuse_mirror(now_ms)
        try:
            appended = log.append_as_leader(
                records,
                leader_epoch=self.leader_epoch,
                now_ms=now_ms,
                origin=origin,
                transactional=transactional,
                zstd=zstd,
                is_opened=is_opened,
            )
        except DiskFull as error:
            self._host.disk_is_full(error)
            raise
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        if not appended.duplicate:
            self._have_grown(log, len(records))
        return appended

    @property
    def takes_runs(self) -> bool:
        """Whether batches that arrive together may be written together; else it is not worth looking for them."""
        return (
            self._log is not None
            and self._log.takes_runs
            and self.is_leader
            and self.failure is None
            and self.topic.mirror is None
            and self._host.unable is None
        )

    def append_run(
        self, run: Sequence[memoryview], *, now_ms: int, zstd: bool
    ) -> list[Appended] | None:
        """Batches of clients, outside of transactions, with one write, before the caller's buffer is used again.

        None: nothing was written, and each is to be put in by itself, or refused.
        """
        log = self._log
        if log is None or not self.takes_runs:
            return None
        try:
            appended = log.append_run(run, leader_epoch=self.leader_epoch, now_ms=now_ms, zstd=zstd)
        except DiskFull:  # for some of them there may be room
            return None
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        if appended is not None:
            self._have_grown(log, sum(map(len, run)))
        return appended

    def _refuse_mirror(self, now_ms: int) -> None:  # noqa: ARG002 - for one in promotion
        """A mirror has one writer."""
        raise BrokerError(
            f"'{self.topic.name}' mirrors another cluster's topic, and nothing else is written to it; to"
            " make it a topic of its own, remove penstock.mirror.source",
            ErrorCode.POLICY_VIOLATION,
        )

    def _have_grown(self, log: Log, size_bytes: int) -> None:
        """What `append` does once a batch is in the log."""
        self._wrote()
        if self.leadership is not None:
            self._grew(size_bytes)
        elif not self.topic.sync_each_append:
            self._commit_upto(log.next_offset, size_bytes)

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

    # The followers --------------------------------------------------------------------------------

    def _grew(self, size_bytes: int) -> None:
        """The followers must have it too before it is committed."""
        self._uncommitted_bytes += size_bytes
        if self.replica_watchers:
            if not self.written_bytes:
                self._host.grew(self)
            self.written_bytes += size_bytes
        self._fell_behind()
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

    def _opened_with_followers(self) -> None:
        self._advance()

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
            raise NotLeader(led_elsewhere(self))
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
            self._take_in(broker_id, leadership)
        self._advance()

    def take_in_followers(self, leadership: Leadership) -> None:
        """Those that have caught up, and could not be taken in when they did."""
        for broker_id in leadership.replicas:
            self._take_in(broker_id, leadership)

    def _take_in(self, broker_id: int, leadership: Leadership) -> None:
        expanded = leadership.expanded(broker_id, self.high_watermark)
        if expanded is not None:
            self._host.isr_changes(self, expanded)
