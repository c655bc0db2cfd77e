"""Keep this broker in the cluster: reopen a lost session, run for controller if there is none."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from penstock.broker.controller.broker_lifecycle import BrokerLifecycle
from penstock.broker.controller.committer import Committer
from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.session import Session
from penstock.metadata.image import Delta
from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Committed,
    Compare,
    Conflict,
    Delete,
    MetadataStore,
    Put,
    Revision,
    StoreError,
)
from penstock.metadata.values import CONTROLLER, Endpoint, encode, live_key
from penstock.model.errors import BrokerError

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_STANDS_BACK_S: Final = 10.0  # after a resignation, unless another takes the office sooner
_CLOCK_SLACK_S: Final = 0.01  # timers may be a little early


class ControllerElection:
    """`happened` tells that there may be something to do."""

    def __init__(
        self,
        store: MetadataStore,
        feed: ImageFeed,
        committer: Committer,
        session: Session,
        lifecycle: BrokerLifecycle,
        happened: asyncio.Event,
    ) -> None:
        self._store = store
        self._feed = feed
        self._committer = committer
        self._session = session
        self._lifecycle = lifecycle
        self._happened = happened
        self._has_taken_part = False
        self._is_leaving = False
        self._stands_back_until_s = 0.0
        self._when_elected: list[Callable[[], None]] = []
        session.on_lost(self._lose_office)
        feed.listen(self._notice)

    async def join(self, listeners: Mapping[str, Endpoint]) -> None:
        """Opens the session. The broker takes part once the controller has admitted it."""
        await self._session.open(listeners)
        await self.attend()

    async def admitted(self) -> None:
        await self._session.admitted()
        self._has_taken_part = True

    def begin_to_leave(self) -> None:
        """Who stops looks dead to others before it is gone. Its session may end so; it opens no other one."""
        self._is_leaving = True

    async def leave(self) -> None:
        """Ends the session, and with it the office."""
        self._committer.controller_epoch = NO_REVISION
        await self._session.close()

    async def do_duties(self) -> None:
        """For ever: a session, the office when it is vacant, and in office what there is to do."""
        while True:
            await self._happened.wait()
            self._happened.clear()
            try:
                await self.attend()
            except (StoreError, BrokerError) as error:
                _log.info("membership-retry error=%s", error)
                await self._pause()
            except Exception:  # noqa: BLE001 - logged, with its trace: a cluster without elections is worse
                _log.exception("membership-failed broker=%d", self._session.identity.broker_id)
                await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(_RETRY_S)
        self._happened.set()

    async def attend(self) -> None:
        if self._session.epoch == NO_REVISION:
            if self._is_leaving:
                return
            await self._session.open()
        if self._feed.image.controller_id is None and self._may_campaign():
            await self._campaign()
        if self._committer.is_active_controller and self._lifecycle.reachability.is_cut_off:
            await self._resign()
        if self._committer.is_active_controller:
            await self._lifecycle.attend()

    def _may_campaign(self) -> bool:
        resigned_lately = asyncio.get_running_loop().time() < self._stands_back_until_s
        return not resigned_lately and not self._is_on_its_way_out()

    async def _resign(self) -> None:
        """Too few brokers reach us: another shall take the office, if it can."""
        epoch, loop = self._committer.controller_epoch, asyncio.get_running_loop()
        _log.warning(
            "controller-resigned broker=%d reason=%s", self._session.identity.broker_id, "cut-off"
        )
        self._stands_back_until_s = loop.time() + _STANDS_BACK_S
        await self._store.commit([Compare(CONTROLLER, create_revision=epoch)], [Delete(CONTROLLER)])
        self._committer.controller_epoch = NO_REVISION
        loop.call_later(_STANDS_BACK_S + _CLOCK_SLACK_S, self._happened.set)

    def _is_on_its_way_out(self) -> bool:
        """Then another shall take the office, if there is one."""
        brokers = self._feed.image.brokers
        own = brokers.get(self._session.identity.broker_id)
        leaves = own is not None and own.in_controlled_shutdown
        return leaves and any(broker.may_lead for broker in brokers.values())

    def _notice(self, delta: Delta) -> None:
        if delta.controller and not self._committer.is_active_controller:
            self._committer.controller_epoch = NO_REVISION
        if delta.controller and self._feed.image.controller_id is not None:
            self._stands_back_until_s = 0.0  # another has had its chance
        if delta.controller or delta.brokers:
            self._happened.set()

    def _lose_office(self) -> None:
        self._committer.controller_epoch = NO_REVISION
        self._happened.set()

    async def _campaign(self) -> None:
        """C1. Nothing is decided before everything up to the election is known."""
        identity, epoch = self._session.identity, self._session.epoch
        compares = [
            Compare(CONTROLLER, mod_revision=NO_REVISION),
            Compare(live_key(identity.broker_id), create_revision=epoch),
        ]
        value = encode(broker=identity.broker_id, epoch=epoch)
        outcome = await self._elected(compares, Put(CONTROLLER, value, self._session.lease))
        await self._feed.applied(outcome.revision)
        if isinstance(outcome, Committed):
            await self._take_office(outcome.revision)

    async def _elected(self, compares: list[Compare], put: Put) -> Committed | Conflict:
        try:
            return await self._store.commit(compares, [put])
        except Ambiguous:
            entry = await self._store.read(CONTROLLER)
            if entry is None or (entry.value, entry.lease) != (put.value, put.lease):
                raise
            return Committed(entry.create_revision)

    async def _take_office(self, epoch: Revision) -> None:
        if self._feed.image.controller_epoch != epoch:
            return
        self._committer.controller_epoch = epoch
        _log.info("controller-elected broker=%d epoch=%d", self._session.identity.broker_id, epoch)
        await self._lifecycle.begin(is_cold=not self._has_taken_part)
