"""The cluster as one broker sees and changes it: what is known, this broker's part in it, and the controller's commands.

A command returns when its effect is in the image. What only the controller can do is asked of it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from penstock.broker.controller.broker_lifecycle import BrokerLifecycle, Report
from penstock.broker.controller.client import ControllerClient, Spawn
from penstock.broker.controller.commands import DEFAULT_TIMEOUT_MS, new_id
from penstock.broker.controller.committer import Committer
from penstock.broker.controller.election import ControllerElection
from penstock.broker.controller.promotions import Promotions
from penstock.broker.controller.unclean_recovery import UncleanRecovery
from penstock.broker.controller.upkeep import Upkeep
from penstock.broker.membership.heartbeats import Heartbeats
from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.isolation_vote import IsolationVote
from penstock.broker.membership.recently_lost_brokers import RecentlyLostBrokers
from penstock.broker.membership.refused_connections import RefusedConnectionDetector
from penstock.broker.membership.session import Identity, Session
from penstock.metadata.image import BrokerInfo, Delta, Endpoint
from penstock.metadata.rules.feature_levels import check_levels, check_stored_levels, first_levels
from penstock.metadata.store import (
    NO_REVISION,
    Compare,
    MetadataStore,
    Put,
    Revision,
    StoreError,
)
from penstock.metadata.values import FEATURES_PREFIX, META, encode, tombstone_key
from penstock.model.features import Ranges
from penstock.model.ids import TopicId, format_topic_id
from penstock.wire.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)

__all__ = ["DEFAULT_TIMEOUT_MS", "Cluster", "Spawn", "new_id"]

_log = logging.getLogger(__name__)

_HAND_OVER_LIMIT_S: Final = 30.0
_FAREWELL_S: Final = 1.0  # in which clients are told of the new leaders
_TTLS_OF_PATIENCE: Final = 2  # C4


class Cluster(ControllerClient):
    """Owns the store. `load` gives the picture; `join` makes this broker a part of it; `stop` takes it out."""

    def __init__(
        self,
        store: MetadataStore,
        identity: Identity,
        spawn: Spawn,
        static: Mapping[str, str] | None = None,
    ) -> None:
        """`static` are the broker's settings that somebody set, under their Kafka names."""
        feed = ImageFeed(store)
        session = Session(store, feed, identity)
        super().__init__(feed, Committer(store, feed), session, spawn, static or {})
        self._store = store
        happened = asyncio.Event()
        patience_ms = _TTLS_OF_PATIENCE * identity.session_timeout_ms
        self._upkeep = Upkeep(self, self._committer)
        self._promotions = Promotions(self, self._committer, self.peers)
        self._unclean_recovery = UncleanRecovery(self, self._committer, self.peers)
        self._lifecycle = lifecycle = BrokerLifecycle(
            self, self._committer, self._upkeep, happened.set, patience_ms=patience_ms
        )
        self._upkeep.avoid(lambda: lifecycle.reachability.avoided)
        self._election = ControllerElection(
            store, feed, self._committer, self._session, lifecycle, happened
        )
        self._heartbeats = Heartbeats(self, self._session, self.peers, lifecycle.receive)
        self._recently_lost = RecentlyLostBrokers()
        self.on_change(lambda delta: self._recently_lost.take(self.image, delta))
        self._refused_connections = RefusedConnectionDetector(
            store, self, self._session, self.peers, spawn
        )
        self._isolation_vote = IsolationVote(
            store, self, self._session, self._heartbeats, lifecycle.reachability
        )
        self._tasks: list[asyncio.Task[None]] = []

    # starting and stopping

    async def load(self, *, cluster_id: str | None = None, least_revision: int = 0) -> None:
        """The present picture, kept up to date from now on.

        `cluster_id` and `least_revision` are what the data directory knows (B1): a store of another
        cluster, or one that has gone back in time, is refused.
        """
        check_stored_levels(await self._store.snapshot(FEATURES_PREFIX), self.supported)
        await self._feed.load()
        if self.image.cluster_id is None:
            if cluster_id is not None:
                raise StoreError(
                    f"the metadata store is empty, and the data directory belongs to cluster {cluster_id}:"
                    " restore the store, or point to the right one"
                )
            await self._create_cluster()
        check_levels(self.image, self.supported)
        if cluster_id not in (None, self.image.cluster_id):
            raise StoreError(
                f"the data directory belongs to cluster {cluster_id}, the metadata store to"
                f" {self.image.cluster_id}: one of them is not this broker's"
            )
        if self.image.revision < least_revision:
            raise StoreError(
                f"the metadata store is at revision {self.image.revision}, and this broker has seen"
                f" {least_revision}: an old backup was restored"
            )
        self._take_settings(Delta(self.image.revision, broker_configs=True))
        self._check_topics()
        self._recently_lost.take(
            self.image, Delta(self.image.revision, brokers=[*self.image.brokers])
        )
        self._run(self._feed.run(), "metadata-watch")

    async def join(self, listeners: Mapping[str, Endpoint]) -> None:
        """Returns when this broker takes part. Listen before: who does not answer looks dead."""
        await self._election.join(listeners)
        self._run(self._election.do_duties(), "cluster-duties")
        self._run(self._session.check_for_ever(), "session-check")
        self._run(self._heartbeats.send_for_ever(), "heartbeats")
        self._run(self._isolation_vote.look_for_ever(), "ballot")
        self._run(self._upkeep.balance_for_ever(), "leader-balance")
        self._run(self._promotions.attend_for_ever(), "promotions")
        self._run(self._unclean_recovery.look_for_ever(), "surveys")
        self._refused_connections.begin()
        await self._election.admitted()

    async def hand_over(self) -> None:
        """Before a stop: returns when others lead what this broker led, and know it (O1). Alone, at once."""
        if self.epoch == NO_REVISION or not self.config.controlled_shutdown_enable:
            return
        led = self.image.leader_counts.get(self.broker_id, 0)
        if await self._heartbeats.may_leave(_HAND_OVER_LIMIT_S) and led:
            await asyncio.sleep(_FAREWELL_S)

    def begin_to_leave(self) -> None:
        """From now on nobody is let in any more, and a session that is lost stays lost."""
        self._election.begin_to_leave()

    async def stop(self) -> None:
        """Gives up session and office, and closes the store."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._refused_connections.stop()
        await self.peers.close()
        try:
            await self._election.leave()
        except StoreError as error:  # the session then ends by itself
            _log.warning("session-not-ended error=%s", error)
        await self._store.close()

    def _run(self, coroutine: Coroutine[Any, Any, None], name: str) -> None:
        self._tasks.append(self._spawn(coroutine, name))

    async def _create_cluster(self) -> None:
        """With the highest levels of this broker, its first."""
        writes = [
            *first_levels(self.supported),
            Put(META, encode(cluster_id=format_topic_id(new_id()))),
        ]
        await self._store.commit([Compare(META, mod_revision=NO_REVISION)], writes)
        await self._feed.load()

    # this broker's part

    @property
    def is_connected(self) -> bool:
        """Whether the store has heard of this broker within the time of a session (B5)."""
        return self._session.is_connected

    @property
    def supported(self) -> Ranges:
        """The levels of features that this broker has."""
        return self._session.identity.features

    def on_session(self, callback: Callable[[Revision], None]) -> None:
        """`callback` gets the epoch of each session, before anybody is told of it."""
        self._session.on_opened(callback)

    def on_registered(self, callback: Callable[[Revision], None]) -> None:
        """`callback` gets the epoch of each session that the controller has dealt with."""
        self._session.on_registered(callback)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """`callback` is called in the loop, at once: from now on others may lead what this broker led (B4)."""
        self._session.on_lost(callback)

    def on_connection(self, callback: Callable[[bool], None]) -> None:
        """`callback` is told, in the loop, when the store cannot be reached any more and when it can again (B5)."""
        self._session.on_connection(callback)

    def withdraw_when(self, is_disabled: Callable[[], bool]) -> None:
        """Once that is so, others lead in this broker's place until it starts anew (L4)."""
        self._heartbeats.withdraw_when(is_disabled)
        self._session.withdraw_when(is_disabled)

    def accuse(self, unreachable: Callable[[], list[int]]) -> None:
        """Leaders that this broker cannot fetch from: the controller may let others lead in their place."""
        self._heartbeats.accuse(unreachable)

    def endpoints(self, listener: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """The brokers that take part and can be reached through that listener.

        Without any, this one: a client that is told of none forgets even whom it asks.
        """
        return _reached(listener, self.image.usable_brokers() or [self._session.own])

    def endpoints_with_grace(self, listener: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """Those of `endpoints`, and of brokers that were among them until a moment ago."""
        running = self.endpoints(listener)
        ids = {broker.id for broker, _ in running}
        gone = (broker for broker in self._recently_lost.brokers() if broker.id not in ids)
        return running + _reached(listener, gone)

    # the controller's part

    async def decide_isrs(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        """A leader that its followers cannot reach is replaced, rather than left alone in sync."""
        reachability = self._lifecycle.reachability
        if reachability.is_accused(request.broker_id):
            await reachability.attend()
        return await super().decide_isrs(request)

    def heartbeat(self, request: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        return self._lifecycle.receive(request)

    def last_report(self, broker_id: int) -> Report | None:
        """What another broker last reported to this one as the controller; None at any other broker."""
        return self._lifecycle.last_report(broker_id) if self.is_controller else None

    async def confirm_deleted(self, topic_ids: Iterable[TopicId]) -> None:
        """This broker holds no data of those topics any more; once nobody does, their tombstones go."""
        if self.is_controller:
            confirmed = {it: self._known_deleted(it) for it in self.image.registrations}
            await self._forget_tombstones({**confirmed, self.broker_id: set(topic_ids)})

    def _known_deleted(self, broker_id: int) -> list[TopicId]:
        """Who has taken in that a topic was deleted has put its data away (O4)."""
        applied, revisions = self._lifecycle.applied(broker_id), self.image.key_revisions
        return [it for it in self.image.tombstones if revisions[tombstone_key(it)] <= applied]


def _reached(listener: str, brokers: Iterable[BrokerInfo]) -> list[tuple[BrokerInfo, Endpoint]]:
    return [(it, it.listeners[listener]) for it in brokers if listener in it.listeners]
