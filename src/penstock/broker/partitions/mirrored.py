"""A partition that mirrors one of another cluster, and how it becomes one of its own.

While it is a mirror nobody else writes. In promotion, before anything else is written, the leader aborts what
the source had left open and forgets its producers, by batches in the log: once, whoever leads by then.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.broker.partitions.leading import LeadingPartition
from penstock.broker.partitions.log import led_elsewhere
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    NotLeader,
    StorageFault,
)
from penstock.storage.log import Log

T = TypeVar("T")

_log = logging.getLogger(__name__)


class MirroredPartition(LeadingPartition):
    """See Partition for what it does while another broker leads."""

    __slots__ = ()

    def append_mirrored(self, records: memoryview, continues_at: int) -> None:
        """Batches of the source, all that it has from `continues_at` on; what is here already is left out.

        Stamps them in place.
        """
        log = self._writable_log()
        mirror = self.topic.mirror
        if mirror is None or not mirror.source:
            raise BrokerError(
                f"'{self.topic.name}' is not a mirror: penstock.mirror.source is not set",
                ErrorCode.POLICY_VIOLATION,
            )
        before = log.next_offset
        try:
            self._guarded(lambda: log.append_mirrored(records, continues_at, self.leader_epoch))
        finally:
            if self.high_watermark < log.start_offset:  # it begins there: nothing was before
                self._durable_offset = max(self._durable_offset, log.start_offset)
                self._commit_upto(log.start_offset, 1)
            if log.next_offset > before and self.failure is None:
                self._have_grown(log, len(records))

    def finish_promotion(self, now_ms: int) -> None:
        """End the mirror, unless that is done or there is none to end."""
        mirror = self.topic.mirror
        if mirror is None or mirror.source:
            return
        log = self._writable_log()
        number = mirror.promotion
        if log.is_promoted(number):
            return
        first_offset = log.next_offset
        epoch = self.leader_epoch
        size_bytes = self._guarded(lambda: log.promote(number, leader_epoch=epoch, now_ms=now_ms))
        self._have_grown(log, size_bytes)
        _log.info(
            "partition-promoted partition=%s offset=%d aborted=%d",
            self, first_offset, log.next_offset - first_offset - 1,
        )  # fmt: skip

    def _refuse_mirror(self, now_ms: int) -> None:
        if self.topic.config.penstock_mirror_source:
            super()._refuse_mirror(now_ms)
        self.finish_promotion(now_ms)

    def _writable_log(self) -> Log:
        self._host.refuse_when_unable()
        if not self.is_leader:
            raise NotLeader(led_elsewhere(self))
        return self.log

    def _guarded(self, write: Callable[[], T]) -> T:
        """What a write gives; a fault of the disk concerns more than whoever wrote."""
        try:
            return write()
        except DiskFull as error:
            self._host.disk_is_full(error)
            raise
        except StorageFault as fault:
            raise self.storage_failed(fault) from fault
