"""End the session of an isolated broker by majority vote, without waiting for its lease to expire.

An etcd that has elected a leader lets every session live on for its whole time from then on, and a broker that is gone
holds up producers for as long. The controller knows of whom it hears nothing, and the others whether they hear of the
controller. Who is suspected is told through the store; everyone tries to connect to its host, and votes if nothing
comes back. To be wrong costs a session, never data: epochs fence whoever still runs. A broker that is merely slow
is not voted out, for its host takes connections.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from penstock.broker.membership.heartbeats import Heartbeats
from penstock.broker.membership.leader_reachability import LeaderReachability
from penstock.broker.membership.probe import Reach, probe
from penstock.broker.membership.session import Session
from penstock.broker.membership.view import View, inter_broker
from penstock.metadata.image import Delta
from penstock.metadata.store import Delete, LeaseId, MetadataStore, Put, StoreError, Write
from penstock.metadata.values import Vote, encode, vote_key

_log = logging.getLogger(__name__)

_LOOK_TTLS: Final = 0.1  # in session timeouts, as all times here
_SILENT_TTLS: Final = 0.5  # before anybody is suspected
_SILENT_BEATS: Final = 2
_TRIES: Final = 3
_TRY_TTLS: Final = 0.125
_AGAIN_TTLS: Final = 0.5  # who was reached is left in peace
_STORE_TTLS: Final = 0.25  # what is sent while etcd elects is lost: it is sent again soon
_STALL_TTLS: Final = 0.5  # a look that is so late was late by our own fault


class IsolationVote:
    def __init__(
        self,
        store: MetadataStore,
        view: View,
        session: Session,
        heartbeats: Heartbeats,
        reachability: LeaderReachability,
    ) -> None:
        self._store = store
        self._view = view
        self._session = session
        self._heartbeats = heartbeats
        self._reachability = reachability
        self._ttl_s: Final = session.identity.session_timeout_ms / 1000
        self._due = asyncio.Event()
        self._since_s = 0.0  # before which nothing could be heard
        self._said: dict[int, Vote] = {}  # by suspect
        self._reached_s: dict[int, float] = {}
        self._ended: dict[int, int] = {}  # sessions, by suspect
        session.on_lost(self._said.clear)
        view.on_change(self._notice)

    async def look_for_ever(self) -> None:
        self._since_s = self._now_s()
        while True:
            due_s = self._now_s() + _LOOK_TTLS * self._ttl_s
            try:
                async with asyncio.timeout_at(due_s):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            if self._now_s() - due_s > _STALL_TTLS * self._ttl_s:
                self._since_s = self._now_s()
            suspects = self._suspects()
            await asyncio.gather(*(self._examine(it, epoch) for it, epoch in suspects.items()))
            for broker_id in list(self._said):
                if broker_id not in suspects:
                    await self._withdraw(broker_id)

    def _notice(self, delta: Delta) -> None:
        if delta.votes:
            self._due.set()

    # Whom ----------------------------------------------------------------------------------------

    def _suspects(self) -> Mapping[int, int]:
        """Those of whom somebody hears nothing, with their sessions. Who does not take part harms nobody."""
        image, me = self._view.image, self._view.broker_id
        if not self._session.epoch:
            return {}
        named = {it for (it, voter), vote in image.votes.items() if self._counts(it, voter, vote)}
        found = (named | self._unheard()) - {me}
        running = (image.brokers[it] for it in sorted(found) if it in image.live)
        return {it.id: it.epoch for it in running if not it.fenced}

    def _unheard(self) -> set[int]:
        """The controller hears of everyone, and everyone of the controller."""
        image, controller_id = self._view.image, self._view.image.controller_id
        interval_s = self._view.config.broker_heartbeat_interval_ms / 1000
        patience_s = max(_SILENT_TTLS * self._ttl_s, _SILENT_BEATS * interval_s)
        if controller_id is None or self._now_s() - self._since_s < patience_s:
            return set()
        if controller_id == self._view.broker_id:
            return {it for it in image.live if self._reachability.silence_s(it) >= patience_s}
        is_silent = self._now_s() - self._heartbeats.heard_s >= patience_s
        return {controller_id} if is_silent else set()

    def _counts(self, suspect: int, voter: int, vote: Vote) -> bool:
        """Whether it is about the session that the suspect has now, by one that runs."""
        image = self._view.image
        return (
            voter in image.live
            and suspect in image.live
            and vote.epoch == image.brokers[suspect].epoch
        )

    # What becomes of it --------------------------------------------------------------------------

    async def _examine(self, suspect: int, epoch: int) -> None:
        if self._said.get(suspect) == Vote(epoch, is_cut_off=True):
            await self._count(suspect, epoch)
        if self._now_s() - self._reached_s.get(suspect, -self._ttl_s) < _AGAIN_TTLS * self._ttl_s:
            return
        doubts = []
        if suspect not in self._said and self._view.image.controller_id == self._view.broker_id:
            doubts = [self._say(suspect, Vote(epoch, is_cut_off=False))]
        is_cut_off, *_ = await asyncio.gather(self._is_cut_off(suspect), *doubts)
        if is_cut_off:
            await self._say(suspect, Vote(epoch, is_cut_off=True))
        else:
            self._reached_s[suspect] = self._now_s()
            await self._withdraw(suspect)

    async def _is_cut_off(self, suspect: int) -> bool:
        """Whether nothing comes back from its host; each try is a packet of its own, and may get lost."""
        for _ in range(_TRIES):
            live = self._view.image.live.get(suspect)
            address = live and inter_broker(live.listeners, self._view.config)
            if not address:
                return False
            if await probe(address, _TRY_TTLS * self._ttl_s) is not Reach.SILENT:
                return False
        return True

    async def _count(self, suspect: int, epoch: int) -> None:
        image = self._view.image
        voters = {
            voter
            for (it, voter), vote in image.votes.items()
            if it == suspect and vote.is_cut_off and self._counts(it, voter, vote)
        }
        known = image.brokers.get(suspect)
        if known is None or known.epoch != epoch or self._ended.get(suspect) == epoch:
            return
        if not self._is_majority(len(voters)):
            return
        by = ",".join(map(str, sorted(voters)))
        _log.warning("broker-voted-out broker=%d voters=%s", suspect, by)
        try:
            async with asyncio.timeout(_STORE_TTLS * self._ttl_s):
                await self._store.revoke(LeaseId(image.live[suspect].lease))
            self._ended[suspect] = epoch
        except (StoreError, TimeoutError) as error:
            _log.info("broker-not-ended broker=%d error=%s", suspect, error)

    def _is_majority(self, count: int) -> bool:
        return 2 * count > len(self._view.image.live)

    async def _say(self, suspect: int, vote: Vote) -> None:
        if self._said.get(suspect) == vote:
            return
        value = encode(epoch=vote.epoch, cut_off=vote.is_cut_off)
        key, session = vote_key(suspect, self._view.broker_id), self._session.epoch
        is_written = await self._written(Put(key, value, self._session.lease))
        if is_written and self._session.epoch == session:  # else the vote has ended with its lease
            self._said[suspect] = vote

    async def _withdraw(self, suspect: int) -> None:
        if suspect in self._said and await self._written(
            Delete(vote_key(suspect, self._view.broker_id))
        ):
            self._said.pop(suspect, None)  # a session that was lost meanwhile has ended all votes

    async def _written(self, write: Write) -> bool:
        """What is not, or of which nobody knows, is written at the next look."""
        try:
            async with asyncio.timeout(_STORE_TTLS * self._ttl_s):
                await self._store.commit([], [write])
        except (StoreError, TimeoutError) as error:
            _log.debug("vote-not-written error=%s", error)
            return False
        return True

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
