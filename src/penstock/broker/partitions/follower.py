"""The partitions that this broker follows, each with the fetcher of its leader: one for every broker that leads some."""

import asyncio
from typing import Final

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.partitions.fetcher import Fetcher
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.throttles import Throttles

_STALL_S: Final = 1.5  # a heartbeat that is so late was late by our own fault


class Followers:
    """The event loop is its only caller."""

    def __init__(self, cluster: Cluster, spawn: Spawn, throttles: Throttles) -> None:
        self._cluster = cluster
        self._spawn = spawn
        self._throttles = throttles
        self._fetchers: dict[int, Fetcher] = {}
        self._fetcher_of: dict[Partition, Fetcher] = {}
        self._looked_s = 0.0
        self._stopped = False

    def stop(self) -> None:
        """Begin no more fetchers: the node stops, and metadata may still change until it has."""
        self._stopped = True

    def follow(self, partition: Partition) -> None:
        """Its leader, or its leader's epoch, is another than before."""
        leader = partition.leader_id
        fetcher = self._fetcher_of.get(partition)
        if fetcher is not None and fetcher.leader_id != leader:
            self.unfollow(partition)
        if leader < 0 or leader == self._cluster.broker_id or partition.failure is not None:
            return
        if self._stopped:
            return
        self._fetcher(leader).add(partition)
        self._fetcher_of[partition] = self._fetchers[leader]

    def unfollow(self, partition: Partition) -> None:
        fetcher = self._fetcher_of.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)
            if fetcher.is_idle:
                del self._fetchers[fetcher.leader_id]
                fetcher.close()

    def made_durable(self, partition: Partition) -> None:
        fetcher = self._fetcher_of.get(partition)
        if fetcher is not None:
            fetcher.ask_for(partition)

    def unreachable(self) -> list[int]:
        """The leaders that say nothing any more. Asked with every heartbeat."""
        now_s = asyncio.get_running_loop().time()
        looked_s, self._looked_s = self._looked_s, now_s
        if now_s - looked_s > _STALL_S:
            for fetcher in self._fetchers.values():
                fetcher.give_time()
        return sorted(it.leader_id for it in self._fetchers.values() if it.is_unanswered)

    def close(self) -> None:
        for fetcher in self._fetchers.values():
            fetcher.close()

    def _fetcher(self, leader: int) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(leader, self._cluster, self._throttles)
            fetcher.start(self._spawn)
        return fetcher
