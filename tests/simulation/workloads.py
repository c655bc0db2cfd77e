"""Workloads: each is one kind of client activity on a simulated cluster, with its own judgement."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from tests.simulation.clients.client import Client
from tests.simulation.clients.producers import Producer
from tests.simulation.clients.readers import Reader
from tests.simulation.invariants import Invariants
from tests.simulation.loop import SimLoop, World
from tests.support.checker import History

PRODUCERS: Final = 2  # per partition


class Cluster(Protocol):
    """What a workload uses of the simulation."""

    world: World
    loop: SimLoop  # in which the clients run
    history: History
    invariants: Invariants

    @property
    def brokers(self) -> list[int]: ...
    @property
    def places(self) -> list[tuple[str, int]]:
        """The partitions of the topic that every simulated cluster has."""

    def run_client(self, client: Client, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a client; an error that ends it fails the history."""


class Workload(Protocol):
    """The simulation calls `begin`, `stop` when faults are over, and `judge` in the end."""

    @property
    def operations(self) -> int:
        """How many operations brokers acknowledged."""

    def begin(self) -> None: ...
    def stop(self) -> None:
        """Begin no new operation; retry those that have no response yet."""

    def is_done(self) -> bool:
        """Every operation has its response."""

    def is_caught_up(self) -> bool:
        """Every reader has read what is committed. Asked when the cluster is healthy and all is done."""

    def judge(self) -> None:
        """Raise Broken if the clients saw what must not happen. The final logs are in the history."""


class Records:
    """Idempotent producers and readers of each partition. The history's checker judges them."""

    def __init__(self, cluster: Cluster, producers: int = PRODUCERS) -> None:
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self._cluster = cluster
        self._producers_per_partition = producers
        self._producing: list[asyncio.Task[None]] = []

    @property
    def operations(self) -> int:
        return sum(producer.acked for producer in self.producers)

    def begin(self) -> None:
        cluster = self._cluster
        for place in cluster.places:
            index = place[1]
            for number in range(self._producers_per_partition):
                producer = Producer(
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
