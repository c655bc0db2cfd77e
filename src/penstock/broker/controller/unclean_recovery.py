"""Unclean recovery (KIP-966): after a power loss, elect the replica with the most data.

It requests the log ends once all last eligible replicas are back. Records that none of them has are
lost, which is logged as an error; `flush.messages=1` would have kept them.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from penstock.broker.controller.committer import Committer
from penstock.broker.membership.peers import Peers
from penstock.broker.membership.view import View
from penstock.client.errors import ClientError
from penstock.metadata.rules.unclean_recovery import (
    LogEnd,
    ReplicaLogEnds,
    partitions_to_recover,
    recover_leaders,
)
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.get_replica_log_info import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    TopicPartitions,
)

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0
_AT_ONCE: Final = 1_000  # partitions in a request: each may have a log to open
_TIMEOUT_MS: Final = 30_000
_LANE: Final = "survey"

Ends = dict[TopicPartition, dict[int, LogEnd]]


class UncleanRecovery:
    def __init__(self, view: View, committer: Committer, peers: Peers) -> None:
        self._view = view
        self._committer = committer
        self._peers = peers

    async def look_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self._look()
            except (BrokerError, StoreError, ClientError) as error:
                _log.warning("survey-failed error=%s", error)

    async def _look(self) -> None:
        view = self._view
        if not self._committer.is_active_controller or not view.image.leaderless_count:
            return
        places = partitions_to_recover(view.image, view.rules)
        if not places:
            return
        log_ends = await self._fetch_log_ends(places)
        done = await self._committer.commit_all(
            lambda: recover_leaders(view.image, view.rules, log_ends)
        )
        if done:
            _log.error(
                "led-by-who-has-most partitions=%d reason=%s effect=%s",
                len(places), "all-in-sync-replicas-lost-power", "unsynced-messages-may-be-lost",
            )  # fmt: skip

    async def _fetch_log_ends(
        self, places: Mapping[TopicPartition, tuple[int, ...]]
    ) -> ReplicaLogEnds:
        asked: dict[int, list[TopicPartition]] = {}
        for at, brokers in places.items():
            for broker_id in brokers:
                asked.setdefault(broker_id, []).append(at)
        image = self._view.image
        sessions = {broker_id: image.brokers[broker_id].epoch for broker_id in asked}
        ends: Ends = {}
        for broker_id, partitions in asked.items():
            for some in _portions(partitions):
                await self._ask(broker_id, sessions[broker_id], some, ends)
        return ReplicaLogEnds(sessions, ends)

    async def _ask(
        self, broker_id: int, session: int, partitions: Iterable[TopicPartition], ends: Ends
    ) -> None:
        """What it cannot tell is left out of `ends`."""
        topics, numbers = self._view.image.topics, dict[str, list[int]]()
        for at in partitions:
            numbers.setdefault(at.topic, []).append(at.partition)
        names: dict[bytes, str] = {topics[it].id: it for it in numbers if it in topics}
        request = GetReplicaLogInfoRequest(
            broker_id=self._view.broker_id,
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=numbers[name])
                for topic_id, name in names.items()
            ],
        )
        answer = await self._peers.request(
            broker_id, request, GetReplicaLogInfoResponse, timeout_ms=_TIMEOUT_MS, lane=_LANE
        )
        if answer.broker_epoch != session:
            raise BrokerError(f"broker {broker_id} restarted", ErrorCode.STALE_BROKER_EPOCH)
        for topic in answer.topic_partition_log_info_list:
            for info in topic.partition_log_info:
                if not info.error_code:
                    at = TopicPartition(names[topic.topic_id], info.partition)
                    end = LogEnd(info.last_written_leader_epoch, info.log_end_offset)
                    ends.setdefault(at, {})[broker_id] = end


def _portions(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    left = iter(partitions)
    while some := list(islice(left, _AT_ONCE)):
        yield some
