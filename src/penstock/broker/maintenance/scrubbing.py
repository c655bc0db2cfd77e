"""Reads closed segments again at a low rate: a disk that lies is found before the data is needed."""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Final

from penstock.broker.controller.cluster import Cluster
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.storage.scrub import Scrub
from penstock.storage.segment import DamagedLog

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 1.0
_LOGS_A_TURN: Final = 2000  # that are looked at before others have their turn


class Scrubbing:
    def __init__(self, replicas: ReplicaManager, cluster: Cluster) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._rounds = self._segments()

    def pause_s(self) -> float:
        return _PAUSE_S

    async def run(self) -> None:
        """One second's worth of bytes, going on where the last one ended."""
        left_bytes = self._cluster.config.penstock_scrub_bytes_per_second
        metrics = self._replicas.metrics.scrub
        while left_bytes > 0:
            found = next(self._rounds)
            if found is None:
                return
            partition, scrub = found
            try:
                done_bytes = await self._replicas.run_in_thread(partial(scrub.step, left_bytes))
            except DamagedLog as damage:
                metrics.damaged.value += 1
                _log.critical("segment-damaged partition=%s error=%s", partition, damage)
                if partition.failure is None:
                    partition.storage_failed(damage)
                continue
            metrics.bytes.value += done_bytes
            if scrub.done and partition.failure is None:
                metrics.segments.value += 1
                partition.log.scrubbed(scrub)
            left_bytes -= max(done_bytes, 1)

    def _segments(self) -> Iterator[tuple[Partition, Scrub] | None]:
        """For ever: each closed segment of each open log, given again until it is done. None: time for a pause."""
        while True:
            yield None
            for number, partition in enumerate(list(self._replicas.open_partitions()), start=1):
                yield from self._segments_of(partition)
                if number % _LOGS_A_TURN == 0:
                    yield None

    def _segments_of(self, partition: Partition) -> Iterator[tuple[Partition, Scrub]]:
        after_offset = -1
        while partition.failure is None:
            scrub = partition.log.scrub(after_offset)
            if scrub is None:
                return
            while not scrub.done and partition.failure is None:
                yield partition, scrub
            after_offset = scrub.next_offset
