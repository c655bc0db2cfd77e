"""This broker's place in the cluster: its session, and its turn at being the controller.

The keep-alive is a task of the event loop: a loop that hangs longer than the session lets others take
over (B3). With the embedded store nobody else may be there to do so, and then nothing is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

from penstock.broker.committer import Committer
from penstock.broker.image_feed import ImageFeed
from penstock.metadata.controller import register_broker, remove_orphans
from penstock.metadata.decisions import Decision
from penstock.metadata.image import BrokerInfo, Delta
from penstock.metadata.store import (
    NO_REVISION,
    Committed,
    Compare,
    LeaseId,
    MetadataStore,
    Put,
    Revision,
    StoreError,
)
from penstock.metadata.values import (
    CONTROLLER,
    Endpoint,
    LiveBroker,
    decode,
    decode_live,
    encode,
    encode_live,
    live_key,
)
from penstock.model.errors import BrokerError

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5
_LOOKS: Final = 8  # at a broker that has our id, over two of its sessions: it may turn out dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this broker is, and how its last run ended."""

    broker_id: int
    directory_id: str
    session_timeout_ms: int
    rack: str | None = None
    last_shutdown: str = "clean"
    previous_epoch: int = 0


class Membership:
    def __init__(
        self, store: MetadataStore, feed: ImageFeed, committer: Committer, identity: Identity
    ) -> None:
        self.epoch = NO_REVISION  # of the session; none: not registered
        self._store = store
        self._feed = feed
        self._committer = committer
        self._identity = identity
        self._listeners: dict[str, Endpoint] = {}
        self._lease: LeaseId | None = None
        self._something_happened = asyncio.Event()
        self._admitted = asyncio.Event()
        self._when_lost: list[Callable[[], None]] = []
        feed.listen(self._notice)

    @property
    def own(self) -> BrokerInfo:
        """This broker as it knows itself, whatever the others think."""
        identity, epoch = self._identity, self.epoch
        return BrokerInfo(
            identity.broker_id,
            epoch,
            self._listeners,
            identity.rack,
            epoch == NO_REVISION,
            identity.directory_id,
        )

    @property
    def is_controller(self) -> bool:
        return self._committer.controller_epoch != NO_REVISION

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._when_lost.append(callback)

    async def join(self, listeners: dict[str, Endpoint]) -> None:
        """Opens the session. The broker takes part once the controller has admitted it."""
        self._listeners = listeners
        await self._open_session()

    async def admitted(self) -> None:
        await self._admitted.wait()

    async def leave(self) -> None:
        """Ends the session, and with it the office."""
        self._committer.controller_epoch = self.epoch = NO_REVISION
        if self._lease is not None:
            await self._store.revoke(self._lease)

    async def keep_session(self) -> None:
        """For ever: tells the store that this broker lives, and opens a new session when the old one is lost."""
        pause_s = self._identity.session_timeout_ms / 4000
        while True:
            await asyncio.sleep(pause_s)
            try:
                if self._lease is not None and await self._store.keep_alive(self._lease) <= 0:
                    self._lose_session()
            except StoreError as error:  # go on serving: nobody else may lead meanwhile (B5)
                _log.warning("session-unrefreshed error=%s", error)

    async def do_duties(self) -> None:
        """For ever: a session, an office when it is vacant, and in office the admission of brokers."""
        while True:
            await self._something_happened.wait()
            self._something_happened.clear()
            try:
                await self.attend()
            except (StoreError, BrokerError) as error:
                _log.info("membership-retry error=%s", error)
                await asyncio.sleep(_RETRY_S)
                self._something_happened.set()

    async def attend(self) -> None:
        if self.epoch == NO_REVISION:
            await self._open_session()
        if self._feed.image.controller_id is None:
            await self._campaign()
        if self.is_controller:
            await self._admit_brokers()

    def _notice(self, delta: Delta) -> None:
        """B4: the session is lost when its key is gone or another's."""
        image = self._feed.image
        if self._identity.broker_id in delta.brokers and self.epoch != NO_REVISION:
            self._check_session()
        if delta.controller and image.controller_epoch != self._committer.controller_epoch:
            self._committer.controller_epoch = NO_REVISION
        if delta.controller or delta.brokers:
            self._something_happened.set()

    def _check_session(self) -> None:
        image = self._feed.image
        known = image.brokers.get(self._identity.broker_id)
        if image.revision < self.epoch:
            return
        if known is None or known.epoch != self.epoch:
            self._lose_session()
        elif not known.fenced:
            self._admitted.set()

    def _lose_session(self) -> None:
        if self.epoch == NO_REVISION:
            return
        _log.warning("session-lost broker=%d epoch=%d", self._identity.broker_id, self.epoch)
        self.epoch = self._committer.controller_epoch = NO_REVISION
        self._admitted.clear()
        for callback in self._when_lost:
            callback()
        self._something_happened.set()

    # the session

    async def _open_session(self) -> None:
        identity = self._identity
        self._lease = lease = await self._store.grant(identity.session_timeout_ms)
        live = LiveBroker(
            incarnation=uuid4().hex,
            listeners=self._listeners,
            rack=identity.rack,
            directory_id=identity.directory_id,
            lease=lease,
            last_shutdown=identity.last_shutdown,
            previous_epoch=identity.previous_epoch,
        )
        key = live_key(identity.broker_id)
        for _ in range(_LOOKS):
            absent = Compare(key, mod_revision=NO_REVISION)
            outcome = await self._store.commit([absent], [Put(key, encode_live(live), lease)])
            if isinstance(outcome, Committed):
                self.epoch = outcome.revision
                await self._feed.applied(outcome.revision)
                self._check_session()
                return
            await self._displace(key)
        await self._store.revoke(lease)
        raise StoreError(
            f"broker id {identity.broker_id} is taken by another running broker: give this one another"
        )

    async def _displace(self, key: str) -> None:
        """Ends the session of an earlier run of ours: we hold the lock on its data. Else waits."""
        entry = await self._store.read(key)
        if entry is None:
            return
        other = decode_live(decode(key, entry.value))
        if other.directory_id == self._identity.directory_id and entry.lease is not None:
            await self._store.revoke(entry.lease)
        else:
            await asyncio.sleep(self._identity.session_timeout_ms / 4000)

    # the office

    async def _campaign(self) -> None:
        """C1. Nothing is decided before everything up to the election is known."""
        identity = self._identity
        compares = [
            Compare(CONTROLLER, mod_revision=NO_REVISION),
            Compare(live_key(identity.broker_id), create_revision=self.epoch),
        ]
        value = encode(broker=identity.broker_id, epoch=self.epoch)
        outcome = await self._store.commit(compares, [Put(CONTROLLER, value, self._lease)])
        await self._feed.applied(outcome.revision)
        if isinstance(outcome, Committed):
            await self._take_office(outcome.revision)

    async def _take_office(self, epoch: Revision) -> None:
        if self._feed.image.controller_epoch != epoch:
            return
        self._committer.controller_epoch = epoch
        _log.info("controller-elected broker=%d epoch=%d", self._identity.broker_id, epoch)
        await self._committer.commit_all(lambda: remove_orphans(self._feed.image))

    async def _admit_brokers(self) -> None:
        for broker_id in list(self._feed.image.live):
            await self._admit(broker_id)

    async def _admit(self, broker_id: int) -> None:
        def decide() -> list[Decision[None]]:
            image = self._feed.image
            return register_broker(image, broker_id) if broker_id in image.live else []

        if await self._committer.commit_all(decide):
            _log.info("broker-admitted broker=%d", broker_id)
