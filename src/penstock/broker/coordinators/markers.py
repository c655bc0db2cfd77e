"""Writes how transactions ended into the logs that this broker leads: at least once, with effect once.

A marker of an epoch of its own (transactions version 2) can only end what is older than it; one that
was written before is not written again.
"""

import asyncio
from typing import NamedTuple

from penstock.broker.coordinators.groups import OFFSETS_TOPIC, GroupCoordinator
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.clock import Clock
from penstock.model.ids import TopicPartition
from penstock.records.control import ControlType, EndMarker, build_marker
from penstock.storage.log import Origin
from penstock.transactions.state import Producer


class Ending(NamedTuple):
    producer: Producer
    committed: bool
    coordinator_epoch: int
    ends_epoch: bool = False  # what it ends is of an older epoch than its own


class MarkerWriter:
    """Only the event loop calls it."""

    def __init__(self, replicas: ReplicaManager, groups: GroupCoordinator, clock: Clock) -> None:
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
        partition.check_in_sync()
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
