"""Several brokers of one cluster in one event loop: real stores on one file, real connections, and time that is real but short."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from penstock.broker.controller.cluster import Cluster
from penstock.broker.membership.session import Identity
from penstock.metadata.image import TopicImage
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.sqlite.store import SqliteStore
from penstock.model.errors import BrokerError
from penstock.model.features import SUPPORTED, Ranges
from penstock.node.clock import SystemClock
from penstock.node.tasks import Tasks
from tests.unit.broker.serving import Served

SESSION_MS = 20_000  # nobody waits for its end, and machines are busy
_QUICK = {"broker.heartbeat.interval.ms": "10"}


class Broker:
    """One broker; `crash` ends it as a killed process ends: nobody is told, its address refuses."""

    def __init__(self, cluster: Cluster, served: Served, tasks: Tasks) -> None:
        self.cluster = cluster
        self.served = served
        self._tasks = tasks
        self.is_running = True

    async def crash(self) -> None:
        """Its store is closed under it, so that it cannot end its session."""
        self.is_running = False
        await self.served.close()
        await self.cluster._store.close()
        await self.cluster.stop()
        await self._tasks.close()

    async def freeze(self) -> None:
        """It does nothing any more of itself."""
        for task in self.cluster._tasks:
            task.cancel()
        await asyncio.wait(self.cluster._tasks)

    async def stop(self) -> None:
        if self.is_running:
            self.is_running = False
            await self.cluster.stop()
            await self.served.close()
            await self._tasks.close()


class Brokers:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.running: dict[int, Broker] = {}

    def store(self) -> SqliteStore:
        return SqliteStore(self._path, SystemClock(), boot_id="boot", poll_ms=2)

    async def start(
        self,
        broker_id: int,
        *,
        static: dict[str, str] | None = None,
        last_shutdown: str = "clean",
        previous_epoch: int = 0,
        session_ms: int = SESSION_MS,
        features: Ranges = SUPPORTED,
    ) -> Cluster:
        cluster = await self.make(
            Identity(
                broker_id=broker_id,
                directory_id=f"dir-{broker_id}",
                session_timeout_ms=session_ms,
                last_shutdown=last_shutdown,
                previous_epoch=previous_epoch,
                features=features,
            ),
            static,
        )
        await cluster.load()
        await cluster.join(self.running[broker_id].served.listeners)
        return cluster

    async def make(self, identity: Identity, static: dict[str, str] | None = None) -> Cluster:
        """It listens, and knows of nothing yet."""
        tasks = Tasks()
        cluster = Cluster(self.store(), identity, tasks.spawn, _QUICK | (static or {}))
        served = await Served.open(cluster)
        self.running[identity.broker_id] = Broker(cluster, served, tasks)
        return cluster

    async def crash(self, broker_id: int) -> None:
        await self.running.pop(broker_id).crash()

    async def stop_all_at_once(self) -> None:
        """Nobody sees another go."""
        stopping = list(self.running.values())
        self.running.clear()
        for broker in stopping:
            await broker.freeze()
        for broker in stopping:
            await broker.stop()

    async def stop(self, broker_id: int) -> None:
        """As the node does: others take over first."""
        broker = self.running.pop(broker_id)
        await broker.cluster.hand_over()
        await broker.stop()


@asynccontextmanager
async def brokers(path: Path) -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        started = Brokers(path)
        try:
            yield started
        finally:
            for broker in started.running.values():
                stack.push_async_callback(broker.stop)


async def create(cluster: Cluster, name: str, assignments: Sequence[Sequence[int]]) -> TopicImage:
    spec = TopicSpec(name, assignments=dict(enumerate(assignments)))
    (outcome,) = await cluster.create_topics([spec])
    if isinstance(outcome, BrokerError):
        raise outcome
    return cluster.image.topics[name]


async def seen(cluster: Cluster, what: Callable[[], bool]) -> None:
    """Returns when the image of that broker shows it."""
    changed = asyncio.Event()
    cluster.on_change(lambda _: changed.set())
    while not what():
        changed.clear()
        await changed.wait()


def leaders(cluster: Cluster, topic: str) -> list[int]:
    return [partition.leader for partition in cluster.image.topics[topic].partitions]


def isrs(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.isr for partition in cluster.image.topics[topic].partitions]
