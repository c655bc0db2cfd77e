"""Sees former mirrors through: the controller has every leader end the mirror, and when all have, that is written down.

Until then each leader does it before the first write of a client; whoever becomes the leader or the controller goes on.
"""

import asyncio
import logging
from typing import Final

from penstock.broker.controller.committer import Committer
from penstock.broker.membership.peers import Peers
from penstock.broker.membership.view import View
from penstock.metadata.image import Delta, TopicImage
from penstock.metadata.rules.promotions import end_promotion, in_promotion
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorPartition,
    MirrorTopic,
)

_log = logging.getLogger(__name__)

_LANE: Final = "promotions"
_TIMEOUT_MS: Final = 3_000
_RETRY_S: Final = 0.5


class Promotions:
    def __init__(self, view: View, committer: Committer, peers: Peers) -> None:
        self._view = view
        self._committer = committer
        self._peers = peers
        self._happened = asyncio.Event()
        view.on_change(self._notice)

    def _notice(self, delta: Delta) -> None:
        if delta.controller or any(change.new.promotion for change in delta.changed):
            self._happened.set()

    async def attend_for_ever(self) -> None:
        while True:
            await self._happened.wait()
            self._happened.clear()
            while self._is_ours and (topics := in_promotion(self._view.image)):
                for topic in topics if self._committer.is_active_controller else ():
                    await self._attend(topic)
                if in_promotion(self._view.image):
                    await asyncio.sleep(_RETRY_S)

    @property
    def _is_ours(self) -> bool:
        """This broker is the controller, or is just about to know that it is."""
        return self._view.image.controller_id == self._view.broker_id

    async def _attend(self, topic: TopicImage) -> None:
        try:
            if await self._is_done(topic):
                await self._committer.commit_all(
                    lambda: end_promotion(self._view.image, topic.name, topic.promotion)
                )
                _log.info("topic-promoted topic=%s", topic.name)
        except (BrokerError, StoreError) as error:
            _log.info("topic-not-promoted-yet topic=%s error=%s", topic.name, error)

    async def _is_done(self, topic: TopicImage) -> bool:
        """Whether every leader has ended the mirror, and all who are in sync have that."""
        by_leader: dict[int, list[int]] = {}
        for index, partition in enumerate(topic.partitions):
            by_leader.setdefault(partition.leader, []).append(index)
        if -1 in by_leader:
            raise BrokerError("a partition has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        for leader, indexes in by_leader.items():
            if not await self._has_done(leader, topic, indexes):
                return False
        return True

    async def _has_done(self, leader: int, topic: TopicImage, indexes: list[int]) -> bool:
        asked = MirrorTopic(
            name=topic.name,
            topic_id=topic.id,
            partitions=[MirrorPartition(index=index) for index in indexes],
        )
        answer = await self._peers.request(
            leader,
            MirrorAppendRequest(timeout_ms=_TIMEOUT_MS, topics=[asked]),
            MirrorAppendResponse,
            timeout_ms=2 * _TIMEOUT_MS,
            lane=_LANE,
        )
        (told,) = answer.topics
        return told.promotion == topic.promotion and not any(
            row.error_code for row in told.partitions
        )
