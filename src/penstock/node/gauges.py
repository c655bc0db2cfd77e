"""What is read off the broker at each scrape: counts and sizes that nobody has to keep up to date."""

from collections.abc import Callable, Iterator

from penstock.broker.controller.cluster import Cluster
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.kafka.fetch_sessions import FetchSessions
from penstock.kafka.memory import FrameMemory
from penstock.storage.log import Log
from penstock.storage.usage import room
from penstock.telemetry.registry import Sample


class Gauges:
    def __init__(
        self,
        replicas: ReplicaManager,
        cluster: Cluster,
        memory: FrameMemory,
        sessions: FetchSessions,
    ) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._memory = memory
        self._sessions = sessions

    def register(self, metrics: BrokerMetrics) -> None:
        replicas, cluster = self._replicas, self._cluster
        metrics.read_replicas(
            partitions=lambda: self._count(lambda _: True),
            leaders=lambda: self._count(lambda partition: partition.is_leader),
            under_replicated=lambda: self._count(lambda partition: partition.is_under_replicated),
            under_min_isr=lambda: self._count(lambda partition: not partition.has_enough_in_sync),
            offline=lambda: self._count(lambda partition: partition.failure is not None),
        )
        metrics.read_controller(
            active=lambda: int(cluster.is_controller),
            topics=lambda: len(cluster.image.topics),
            partitions=lambda: cluster.image.partition_count,
            offline_partitions=lambda: cluster.image.leaderless_count,
            active_brokers=lambda: len(cluster.image.usable_brokers()),
            fenced_brokers=lambda: len(cluster.image.brokers) - len(cluster.image.usable_brokers()),
        )
        metrics.read_logs(
            size_bytes=lambda: self._logs(lambda log: log.size_bytes),
            segments=lambda: self._logs(lambda log: len(log.segments)),
            start_offset=lambda: self._logs(lambda log: log.start_offset),
            end_offset=lambda: self._logs(lambda log: log.next_offset),
        )
        metrics.read_process(
            disk_free_bytes=lambda: room(replicas.directory.path).usable_bytes,
            request_memory_bytes=lambda: self._memory.used_bytes,
            fetch_sessions=lambda: len(self._sessions),
            waiting=lambda: [(("Fetch",), self._sessions.waiting)],
        )

    def _count(self, condition: Callable[[Partition], bool]) -> int:
        return sum(1 for partition in self._replicas.partitions() if condition(partition))

    def _logs(self, value: Callable[[Log], float]) -> Iterator[Sample]:
        """Of the logs in use: one that nobody touched since the start has nothing new to tell."""
        for partition in list(self._replicas.open_partitions()):
            labels = (partition.topic.name, str(partition.index))
            yield labels, value(partition.log)
