"""One partition that this broker hosts: what it does while another broker leads, and what anyone may read of it."""

import logging

from penstock.broker.partitions.log import NOBODY, led_elsewhere
from penstock.broker.partitions.mirrored import MirroredPartition
from penstock.broker.partitions.topic import Host, Isolation, Read, Topic
from penstock.metadata.image import PartitionImage
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    NotLeader,
    OffsetOutOfRange,
    StorageFault,
)

__all__ = ["Host", "Isolation", "Partition", "Read", "Topic"]

_log = logging.getLogger(__name__)


class Partition(MirroredPartition):
    """A log with a role: `lead` and `follow` change it, in the order of leader epochs."""

    __slots__ = ()

    def follow(self, state: PartitionImage | None) -> None:
        """Another broker leads, or nobody does (None: this broker may not lead, whatever was decided before)."""
        was_leader, before = self.is_leader, self.leader_epoch
        if state is not None and state.leader_epoch < before:
            return
        if state is not None:
            self._resume(state.leader_epoch)
            self.loss_epoch = state.leader_epoch + 1 if state.recovering else state.unclean_epoch
        self.is_leader = False
        self.leadership = None
        self.is_behind = False
        self.leader_id = NOBODY if state is None else state.leader
        self.leader_epoch = before if state is None else state.leader_epoch
        if was_leader:
            self._refuse_waiting(NotLeader(led_elsewhere(self)))
        if was_leader or self.leader_epoch != before:
            self.wake()

    @property
    def has_room(self) -> bool:
        """Whether the disk takes what would be fetched."""
        return self._host.unable is None

    @property
    def fetch_offset(self) -> int:
        """From where to fetch: all below is here, and as safe as the topic asks for."""
        return self._own_end(self.log)

    def append_replicated(self, records: memoryview) -> None:
        """Batches of the leader, which go on where this log ends. Those before a fault are here, and count."""
        self._host.refuse_when_unable()
        log = self.log
        end, had_gaps = log.next_offset, log.has_gaps
        try:
            log.append_as_follower(records)
        except DiskFull as error:
            self._host.disk_is_full(error)
            raise
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
        finally:
            if log.next_offset > end:
                self._wrote()
            elif log.next_offset < end:  # it was to begin anew, with what was not written
                self._was_cut(log.next_offset)
        if log.has_gaps and not had_gaps:
            _log.info("log-has-gaps partition=%s from=%d leader=%d", self, end, self.leader_id)
        self.topic.metrics.replication_bytes_in.value += len(records)

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
        self._check_loss(offset)
        self._guarded(lambda: self.log.truncate_to(offset))
        self._was_cut(self.log.next_offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything: the leader's log begins after the end of this one."""
        self._check_loss(offset)
        self._guarded(lambda: self.log.truncate_fully_and_start_at(offset))
        self._was_cut(offset)
        self._durable_offset = self.high_watermark = offset

    def _check_loss(self, offset: int) -> None:
        """F3: what is committed is dropped only if an unclean election has cost it. Else the leader lacks it by no right,
        and this may be the last copy: the replica stops, as it is, until somebody else leads."""
        mark = self.high_watermark
        if offset >= mark:
            return
        if self.log.epochs.epoch_at(mark - 1) < self.loss_epoch:
            _log.error(
                "committed-records-cut partition=%s to=%d high-watermark=%d leader=%d epoch=%d",
                self, offset, mark, self.leader_id, self.leader_epoch,
            )  # fmt: skip
            return
        _log.critical(
            "replica-stopped partition=%s high-watermark=%d leader=%d leader-has=%d epoch=%d reason=%s",
            self, mark, self.leader_id, offset, self.leader_epoch, "leader-lacks-committed-records",
        )  # fmt: skip
        refusal = BrokerError(
            f"{self}: its leader, broker {self.leader_id}, has only what is below offset {offset},"
            f" and {mark} was committed: an operator must decide which log is right",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        self.fail(refusal)
        self.is_stopped = True
        self._host.replica_stopped(self)
        raise refusal.again()

    def start_over(self) -> None:
        """Its log was damaged, and is another one now, without anything."""
        assert not self.is_leader, "it would be empty for everybody"
        self.failure = None
        self._log = None
        self.high_watermark = self._durable_offset = 0
        self.unsynced = False

    def _was_cut(self, offset: int) -> None:
        self._durable_offset = min(self._durable_offset, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.wake()

    # Reading --------------------------------------------------------------------------------------

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
        if offset > high_watermark and not self.is_leader:
            raise BrokerError(
                f"{self}: this follower has not seen offset {offset} committed yet",
                ErrorCode.OFFSET_NOT_AVAILABLE,
            )
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

    # Changes from outside -------------------------------------------------------------------------

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
        self._guarded(lambda: log.delete_records_before(target))
        self.wake()
        return log.start_offset
