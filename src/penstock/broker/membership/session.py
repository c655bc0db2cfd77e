"""This broker's session: a key in the store that lives as long as its lease is kept.

Lost is a session whose key is gone or another's, or whose lease has ended (B4). What is lost is said at
once; that the store cannot be reached is no loss (B5).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import uuid4

from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.lease_renewer import LeaseRenewer
from penstock.metadata.image import BrokerInfo, Delta
from penstock.metadata.rules.feature_levels import UnsupportedLevel, check_levels
from penstock.metadata.store import (
    NO_REVISION,
    Ambiguous,
    Committed,
    Compare,
    Conflict,
    LeaseId,
    MetadataStore,
    Put,
    Revision,
    StoreError,
)
from penstock.metadata.values import (
    Endpoint,
    LiveBroker,
    decode,
    decode_live,
    encode_live,
    live_key,
)
from penstock.model.features import SUPPORTED, Ranges

_log = logging.getLogger(__name__)

_LOOKS: Final = 8  # at a broker that has our id, over two of its sessions: it may turn out dead
_CHECK_S: Final = 1.0
_CLEAN: Final = "clean"
_POWER_LOSS: Final = "power-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this broker is, and how its last run ended."""

    broker_id: int
    directory_id: str
    session_timeout_ms: int
    rack: str | None = None
    last_shutdown: str = _CLEAN
    previous_epoch: int = 0
    features: Ranges = field(default_factory=lambda: SUPPORTED)
    is_cordoned: bool = False  # by its own settings


class Session:
    def __init__(self, store: MetadataStore, feed: ImageFeed, identity: Identity) -> None:
        self.epoch = NO_REVISION  # none: not registered
        self.lease: LeaseId | None = None
        self.identity = identity
        self._settled = asyncio.Event()  # admitted, or sure that it never will be
        self._store = store
        self._feed = feed
        self._key: Final = live_key(identity.broker_id)
        self._listeners: Mapping[str, Endpoint] = {}
        self._last_shutdown = identity.last_shutdown
        self._previous_epoch = identity.previous_epoch
        self._heard = NO_REVISION  # the session that the controller has dealt with
        self._has_failed: Callable[[], bool] = lambda: False
        self._when_opened: list[Callable[[Revision], None]] = []
        self._when_registered: list[Callable[[Revision], None]] = []
        self._when_lost: list[Callable[[], None]] = []
        self._when_connection: list[Callable[[bool], None]] = []
        self._check_now = asyncio.Event()
        self._lease_renewer = LeaseRenewer(
            store,
            identity.session_timeout_ms,
            on_gone=self._lease_gone,
            on_stall=self._stalled,
            on_connection=self._connection_changed,
        )
        feed.listen(self._notice)

    @property
    def own(self) -> BrokerInfo:
        """This broker as it knows itself, whatever the others think."""
        identity, epoch = self.identity, self.epoch
        return BrokerInfo(
            identity.broker_id,
            epoch,
            self._listeners,
            identity.rack,
            epoch == NO_REVISION,
            identity.directory_id,
        )

    @property
    def is_connected(self) -> bool:
        """Whether the store has heard of us within the session's own time."""
        return self._lease_renewer.is_connected

    def withdraw_when(self, has_failed: Callable[[], bool]) -> None:
        """Once that is so, what this broker holds is not what it was (L4)."""
        self._has_failed = has_failed

    def on_opened(self, callback: Callable[[Revision], None]) -> None:
        self._when_opened.append(callback)

    def on_registered(self, callback: Callable[[Revision], None]) -> None:
        self._when_registered.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._when_lost.append(callback)

    def on_connection(self, callback: Callable[[bool], None]) -> None:
        self._when_connection.append(callback)

    async def admitted(self) -> None:
        """Returns when the controller lets this broker take part; raises if it cannot."""
        await self._settled.wait()
        check_levels(self._feed.image, self.identity.features)

    async def open(self, listeners: Mapping[str, Endpoint] | None = None) -> None:
        """Returns when the image holds the new session. The controller has yet to admit it."""
        self._listeners = self._listeners if listeners is None else listeners
        check_levels(self._feed.image, self.identity.features)
        self.lease = lease = await self._store.grant(self.identity.session_timeout_ms)
        self._lease_renewer.hold(lease)
        for _ in range(_LOOKS):
            outcome = await self._announce(lease)
            if isinstance(outcome, Committed):
                await self._opened(outcome.revision)
                return
            await self._displace()
        await self._store.revoke(lease)
        raise StoreError(
            f"broker id {self.identity.broker_id} is taken by another running broker: give this one another"
        )

    async def close(self) -> None:
        self.epoch = NO_REVISION
        await self._lease_renewer.stop()
        if self.lease is not None:
            await self._store.revoke(self.lease)

    async def check_for_ever(self) -> None:
        """That a lease was kept proves nothing: the key itself is read as well (B4)."""
        pause_s = min(_CHECK_S, self.identity.session_timeout_ms / 2000)
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._check_now.wait()
            except TimeoutError:
                pass
            self._check_now.clear()
            try:
                await self._check_key()
            except StoreError as error:
                _log.warning("session-unchecked error=%s", error)

    async def _check_key(self) -> None:
        epoch = self.epoch
        if epoch == NO_REVISION:
            return
        entry = await self._store.read(self._key)
        if self.epoch == epoch and (entry is None or entry.create_revision != epoch):
            self._lose()

    def _notice(self, delta: Delta) -> None:
        if self.identity.broker_id in delta.brokers and self.epoch != NO_REVISION:
            self._compare_with_image()
        if delta.features:
            self._compare_levels()

    def _compare_levels(self) -> None:
        """Levels are raised only to what every member supports: at most, we are not one yet."""
        try:
            check_levels(self._feed.image, self.identity.features)
        except UnsupportedLevel as error:
            _log.error("feature-unsupported broker=%d error=%s", self.identity.broker_id, error)
            self._settled.set()

    def _compare_with_image(self) -> None:
        image = self._feed.image
        known = image.brokers.get(self.identity.broker_id)
        if image.revision < self.epoch:
            return
        if known is None or known.epoch != self.epoch:
            self._lose()
        else:
            self._see_registration()
            if not known.fenced:
                self._settled.set()

    def _see_registration(self) -> None:
        """How our last runs ended has been heard once the controller has dealt with this session."""
        registered = self._feed.image.registrations.get(self.identity.broker_id)
        if registered is None or registered.epoch != self.epoch or self._heard == self.epoch:
            return
        self._heard = self.epoch
        self._last_shutdown = _CLEAN
        for callback in self._when_registered:
            callback(self.epoch)

    def _stalled(self) -> None:
        """We were away for so long that the session is over, as far as we know: others may lead by now."""
        others = self._feed.image.live.keys() - {self.identity.broker_id}
        if others and not self._lease_renewer.is_connected:
            self._lose()
        self._check_now.set()

    def _connection_changed(self, is_connected: bool) -> None:
        _log.warning("store-connection connected=%s", "yes" if is_connected else "no")
        for callback in self._when_connection:
            callback(is_connected)

    def _lease_gone(self, lease: LeaseId) -> None:
        if lease == self.lease:
            self._lose()

    def _lose(self) -> None:
        if self.epoch == NO_REVISION:
            return
        _log.warning("session-lost broker=%d epoch=%d", self.identity.broker_id, self.epoch)
        self.epoch = NO_REVISION
        self._settled.clear()
        for callback in self._when_lost:
            callback()

    # opening

    async def _announce(self, lease: LeaseId) -> Committed | Conflict:
        identity = self.identity
        live = LiveBroker(
            incarnation=uuid4().hex,
            listeners=self._listeners,
            rack=identity.rack,
            directory_id=identity.directory_id,
            lease=lease,
            last_shutdown=_POWER_LOSS if self._has_failed() else self._last_shutdown,
            previous_epoch=self._previous_epoch,
            features=identity.features,
            is_cordoned=identity.is_cordoned,
        )
        value = encode_live(live)
        absent = Compare(self._key, mod_revision=NO_REVISION)
        try:
            return await self._store.commit([absent], [Put(self._key, value, lease)])
        except Ambiguous:
            entry = await self._store.read(self._key)
            if entry is None or entry.value != value:
                raise
            return Committed(entry.create_revision)

    async def _opened(self, epoch: Revision) -> None:
        """What we hold from now on is as this session has it, until the process ends."""
        self.epoch = self._previous_epoch = epoch
        for callback in self._when_opened:
            callback(epoch)
        await self._feed.applied(epoch)
        self._compare_with_image()

    async def _displace(self) -> None:
        """Ends the session of an earlier run of ours: we hold the lock on its data. Else waits."""
        entry = await self._store.read(self._key)
        if entry is None:
            return
        other = decode_live(decode(self._key, entry.value))
        if other.directory_id == self.identity.directory_id and entry.lease is not None:
            await self._store.revoke(entry.lease)
        else:
            await asyncio.sleep(self.identity.session_timeout_ms / 4000)
