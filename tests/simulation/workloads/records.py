"""The workload that every history has: idempotent producers and readers of one topic."""

import asyncio
from collections.abc import Callable
from typing import Final

from tests.simulation.clients.producers import PipelinedProducer, Producer
from tests.simulation.clients.readers import Reader
from tests.simulation.workloads.workload import Cluster, Topic

PRODUCERS: Final = 2  # per partition


class Records:
    """Idempotent producers and readers of each partition; every other one has several batches in flight.

    The history's checker judges them.
    """

    topics: tuple[Topic, ...] = ()

    def __init__(self, cluster: Cluster, producers: int = PRODUCERS) -> None:
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self._cluster = cluster
        self._producers_per_partition = producers
        self._producing: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> int:
        return sum(producer.acked for producer in self.producers)

    @property
    def written(self) -> int:
        return self.operations

    def begin(self) -> None:
        cluster = self._cluster
        for place in cluster.places:
            index = place[1]
            for number in range(self._producers_per_partition):
                kind = PipelinedProducer if number % 2 else Producer
                producer = kind(
                    cluster.loop, cluster.brokers, f"p{index}.{number}", place, cluster.history
                )
                self.producers.append(producer)
                self._producing.append(cluster.run_client(producer, producer.run()))
            reader = Reader(cluster.loop, cluster.brokers, f"r{index}", place, cluster.history)
            reader.observe = self._observer(reader)
            self.readers.append(reader)
            cluster.run_client(reader, reader.run())

    def _observer(self, reader: Reader) -> Callable[[int], None]:
        def observe(offset: int) -> None:
            place = reader.topic_ids[reader.topic], reader.partition
            self._cluster.invariants.read(place, offset)

        return observe

    def stop(self) -> None:
        for producer in self.producers:
            producer.is_stopping = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._producing)

    def is_caught_up(self) -> bool:
        ends = self._cluster.invariants.ends()
        return all(reader.position >= ends.get(reader.place, 0) for reader in self.readers)

    def judge(self) -> None:
        for reader in self.readers:
            reader.is_stopping = True
