"""Fast failover: a broker whose own address refuses connections is dead; end its session at once.

The controller holds a connection to every broker, and every broker one to the controller: a process that
dies closes them. To be wrong here costs a session, never data: epochs fence whoever still runs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.membership.peers import Peers
from penstock.broker.membership.probe import Reach, probe
from penstock.broker.membership.session import Session
from penstock.broker.membership.view import View, inter_broker
from penstock.client.errors import ClientError
from penstock.metadata.image import Delta
from penstock.metadata.store import MetadataStore, StoreError
from penstock.metadata.values import decode, decode_live, live_key

_log = logging.getLogger(__name__)

_PROBES: Final = 2
_PROBE_PAUSE_S: Final = 0.02
_PROBE_TIMEOUT_S: Final = 1.0
_OPEN_TIMEOUT_MS: Final = 5_000
_RETRY_S: Final = 0.2

Start = Callable[..., "asyncio.Task[None]"]


class RefusedConnectionDetector:
    def __init__(
        self, store: MetadataStore, view: View, session: Session, peers: Peers, spawn: Start
    ) -> None:
        self._store = store
        self._view = view
        self._session = session
        self._peers = peers
        self._spawn = spawn
        self._watched: dict[int, asyncio.Task[None]] = {}
        self._suspected: dict[int, asyncio.Task[None]] = {}

    def begin(self) -> None:
        if self._view.config.penstock_refused_means_dead:
            self._peers.on_refused(self._suspect)
            self._view.on_change(self._notice)
            self._watch_the_right_ones()

    async def stop(self) -> None:
        tasks = [*self._watched.values(), *self._suspected.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _notice(self, delta: Delta) -> None:
        if delta.brokers or delta.controller:
            self._watch_the_right_ones()

    def _watch_the_right_ones(self) -> None:
        image, me = self._view.image, self._view.broker_id
        if image.controller_id == me:
            wanted = {broker_id for broker_id in image.live if broker_id != me}
        else:
            wanted = {it for it in image.live if it == image.controller_id}
        for broker_id in set(self._watched) - wanted:
            self._watched.pop(broker_id).cancel()
        for broker_id in sorted(wanted - set(self._watched)):
            task = self._spawn(self._watch(broker_id), f"watch-broker-{broker_id}")
            self._watched[broker_id] = task

    async def _watch(self, broker_id: int) -> None:
        """For ever: a connection whose end tells that the broker's process may have ended."""
        while True:
            try:
                connection = await self._peers.connection(broker_id, timeout_ms=_OPEN_TIMEOUT_MS)
            except ClientError:
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                await connection.closed()
            finally:
                await connection.close()

    def _suspect(self, broker_id: int) -> None:
        suspected = self._suspected.get(broker_id)
        if suspected is None or suspected.done():
            task = self._spawn(self._investigate(broker_id), f"suspect-broker-{broker_id}")
            self._suspected[broker_id] = task

    async def _investigate(self, broker_id: int) -> None:
        """The first refusal brought us here. One more, twice, from the address of the session as it is now."""
        try:
            key = live_key(broker_id)
            entry = await self._store.read(key)
            if entry is None or entry.lease is None or not self._session.epoch:
                return
            live = decode_live(decode(key, entry.value))
            address = inter_broker(live.listeners, self._view.config)
            if address is None:
                return
            for _ in range(_PROBES):
                await asyncio.sleep(_PROBE_PAUSE_S)
                if await probe(address, _PROBE_TIMEOUT_S) is not Reach.REFUSED:
                    return
            _log.warning(
                "broker-dead broker=%d host=%s port=%d", broker_id, address.host, address.port
            )
            await self._store.revoke(entry.lease)
        except StoreError as error:
            _log.warning("broker-not-ended broker=%d error=%s", broker_id, error)
