"""What the controller improves when nothing is broken: internal topics grow with the cluster, moves end, leaders are balanced."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from penstock.broker.controller.committer import Committer
from penstock.broker.membership.view import View
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.elections import balance_leaders
from penstock.metadata.rules.internal_topics import raise_internal_replication
from penstock.metadata.rules.reassignment import complete_reassignments
from penstock.metadata.store import StoreError
from penstock.model.errors import BrokerError

_log = logging.getLogger(__name__)

_MOVES_PER_S: Final = 500  # E6
_LOOK_S: Final = 1.0
_CALM_S: Final = 5.0  # before leaders are moved early

Decide = Callable[[], Sequence[Decision[None]]]


class Upkeep:
    def __init__(self, view: View, committer: Committer) -> None:
        self._view = view
        self._committer = committer
        self._avoided: Callable[[], frozenset[int]] = frozenset
        self._is_owed = False

    def avoid(self, avoided: Callable[[], frozenset[int]]) -> None:
        """Brokers that are not given anything to lead for the sake of balance."""
        self._avoided = avoided

    async def attend(self) -> None:
        """After brokers came or went."""
        view = self._view
        await self._do(
            "internal-topics-grown",
            lambda: raise_internal_replication(view.image, view.rules),
        )
        await self._do(
            "reassignments-completed",
            lambda: complete_reassignments(view.image, view.rules),
        )

    def balance_soon(self) -> None:
        """Once, when all are in sync: after a start of the whole cluster its first broker may lead everything."""
        self._is_owed = True

    async def balance_for_ever(self) -> None:
        """E6: preferred leaders lead again, some at a time."""
        while True:
            await self._next_balance()
            self._is_owed = False
            try:
                await self._balance()
            except (BrokerError, StoreError) as error:
                _log.warning("leaders-not-balanced error=%s", error)

    async def _next_balance(self) -> None:
        now_s = asyncio.get_running_loop().time
        interval_s = self._view.config.leader_imbalance_check_interval_seconds
        due_s, restless_s = now_s() + interval_s, now_s()
        while now_s() < due_s:
            await asyncio.sleep(min(_LOOK_S, interval_s))
            if not (self._is_owed and self._committer.is_active_controller and self._is_settled()):
                restless_s = now_s()
            elif now_s() - restless_s >= _CALM_S:
                return

    def _is_settled(self) -> bool:
        """Whether every replica is in sync, and its broker takes part."""
        image = self._view.image
        usable = {broker.id for broker in image.usable_brokers()}
        return all(
            len(partition.isr) == len(partition.replicas) and usable.issuperset(partition.replicas)
            for topic in image.topics.values()
            for partition in topic.partitions
        )

    async def _balance(self) -> None:
        while (
            self._committer.is_active_controller and self._view.config.auto_leader_rebalance_enable
        ):
            if not await self._do("leaders-balanced", self._moves):
                return
            await asyncio.sleep(1)

    def _moves(self) -> Sequence[Decision[None]]:
        return balance_leaders(
            self._view.image,
            self._view.rules,
            max_moves=_MOVES_PER_S,
            tolerated_percent=self._view.config.leader_imbalance_per_broker_percentage,
            avoided=self._avoided(),
        )

    async def _do(self, event: str, decide: Decide) -> bool:
        """Whether there was anything to do. To look costs nothing in the store."""
        if not decide():
            return False
        done = await self._committer.commit_all(decide)
        _log.info("controller-upkeep what=%s chunks=%d", event, len(done))
        return True
