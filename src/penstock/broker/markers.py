"""Tells partitions how transactions ended: at least once, with effect once, until each of them has it.

A marker of an epoch of its own (transactions version 2) can only end what is older than it; one that
was written before is not written again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from penstock.broker.coordinator import OFFSETS_TOPIC, GroupCoordinator
from penstock.broker.partition import Partition
from penstock.broker.replicas import Replicas
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode, UnknownTopicOrPartition
from penstock.model.ids import TopicPartition
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.storage.log import Origin
from penstock.transactions.events import Markers
from penstock.transactions.state import Producer

_log = logging.getLogger(__name__)

_PER_TURN: Final = 100  # markers written before others have their turn
_RETRY_S: Final = 0.1
_OVERTAKEN: Final = frozenset(  # someone newer has ended what this marker is about
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED}
)


class Ending(NamedTuple):
    producer: Producer
    committed: bool
    coordinator_epoch: int
    ends_epoch: bool = False  # what it ends is of an older epoch than its own


class MarkerWriter:
    """Only the event loop calls it."""

    def __init__(self, replicas: Replicas, groups: GroupCoordinator, clock: Clock) -> None:
        self._replicas = replicas
        self._groups = groups
        self._clock = clock

    def build(self, ending: Ending) -> bytearray:
        """The marker, for any partition: whoever appends it stamps its offset."""
        return build_marker(
            EndMarker(
                ControlType.COMMIT if ending.committed else ControlType.ABORT,
                ending.coordinator_epoch,
            ),
            producer_id=ending.producer.id,
            producer_epoch=ending.producer.epoch,
            timestamp_ms=self._clock.wall_ms(),
        )

    def write(
        self, name: TopicPartition, ending: Ending, marker: bytearray
    ) -> asyncio.Future[None] | None:
        """Put a marker into a log. None when it is committed there, else what to wait for."""
        partition = self._replicas.partition(self._replicas.topic(name.topic), name.partition)
        producer = ending.producer
        if ending.ends_epoch and self._has_it(partition, producer):
            return partition.committed(partition.log.next_offset)  # it may be waited for already
        if name.topic == OFFSETS_TOPIC:
            self._groups.end_transaction(
                name.partition, producer.id, marker, committed=ending.committed
            )
        else:
            now_ms = self._clock.wall_ms()
            partition.append(memoryview(marker), now_ms=now_ms, origin=Origin.COORDINATOR)
        return partition.committed(partition.log.next_offset)

    def _has_it(self, partition: Partition, producer: Producer) -> bool:
        """Whether the epoch was entered by this very marker. Raises if it is in use already."""
        return partition.log.producers.has_entered(producer.id, producer.epoch)

    def send(
        self,
        markers: Markers,
        coordinator_epoch: int,
        *,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        """Write them all, again and again where it fails; `done` is called when all are committed."""
        ending = Ending(markers.producer, markers.committed, coordinator_epoch, markers.ends_epoch)
        _Sending(self, self._replicas.loop, markers, ending, is_wanted, done).go_on()


class _Sending:
    """The markers of one transaction on their way."""

    def __init__(
        self,
        writer: MarkerWriter,
        loop: asyncio.AbstractEventLoop,
        markers: Markers,
        ending: Ending,
        is_wanted: Callable[[], bool],
        done: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._loop = loop
        self._transactional_id = markers.transactional_id
        self._ending = ending
        self._left = deque(markers.partitions)
        self._failed: list[TopicPartition] = []
        self._waiting = 0  # for so many to be committed
        self._is_wanted = is_wanted
        self._done = done

    def go_on(self) -> None:
        if not self._is_wanted():
            return
        marker = self._writer.build(self._ending)
        for _ in range(min(_PER_TURN, len(self._left))):
            self._write(self._left.popleft(), marker)
        if self._left:
            self._loop.call_soon(self.go_on)
        else:
            self._end_if_all_there()

    def _end_if_all_there(self) -> None:
        if self._left or self._waiting:
            return
        if self._failed:
            self._left, self._failed = deque(self._failed), []
            self._loop.call_later(_RETRY_S, self.go_on)
        else:
            self._done()

    def _write(self, name: TopicPartition, marker: bytearray) -> None:
        try:
            committed = self._writer.write(name, self._ending, marker)
        except UnknownTopicOrPartition:
            return  # it was deleted, and its part of the transaction with it
        except BrokerError as error:
            self._refused(name, error)
            return
        if committed is not None:
            self._waiting += 1
            committed.add_done_callback(lambda future: self._committed(name, future))

    def _refused(self, name: TopicPartition, error: BrokerError) -> None:
        if error.code in _OVERTAKEN:
            _log.warning(
                "marker-overtaken transactional-id=%s partition=%s error=%s",
                self._transactional_id,
                name,
                error,
            )
        else:
            self._failed.append(name)

    def _committed(self, name: TopicPartition, future: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if future.cancelled() or future.exception() is not None:
            self._failed.append(name)
        if self._is_wanted():
            self._end_if_all_there()
