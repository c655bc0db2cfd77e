"""A broker tells the controller how far it is, and in the end that it wishes to leave (C6, O1)."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock.broker.membership.peers import Peers
from penstock.broker.membership.session import Session
from penstock.broker.membership.view import View
from penstock.metadata.image import Delta
from penstock.metadata.store import NO_REVISION
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)

_log = logging.getLogger(__name__)

_LANE: Final = "heartbeat"
_TIMEOUT_MS: Final = 2_000
_LEAVING_PAUSE_S: Final = 0.05


Receive = Callable[[BrokerHeartbeatRequest], BrokerHeartbeatResponse]


class Heartbeats:
    """`receive` handles the heartbeat of this broker while it is the controller itself."""

    def __init__(self, view: View, session: Session, peers: Peers, receive: Receive) -> None:
        self._view = view
        self._session = session
        self._peers = peers
        self._receive = receive
        self.heard_s = 0.0  # when this controller last answered, or took office
        self._due = asyncio.Event()
        self._beating: asyncio.Timeout | None = None
        self._is_disabled: Callable[[], bool] = lambda: False
        self._unreachable: Callable[[], list[int]] = list
        view.on_change(self._notice)

    def withdraw_when(self, is_disabled: Callable[[], bool]) -> None:
        """While that is so, this broker lets others lead although it goes on (L4)."""
        self._is_disabled = is_disabled

    def accuse(self, unreachable: Callable[[], list[int]]) -> None:
        """The leaders that this broker cannot fetch from are told to the controller."""
        self._unreachable = unreachable

    async def send_for_ever(self) -> None:
        while True:
            await self._beat_until_news()
            try:
                async with asyncio.timeout(self._view.config.broker_heartbeat_interval_ms / 1000):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()

    async def _beat_until_news(self) -> None:
        try:
            async with asyncio.timeout(None) as self._beating:
                await self._beat()
        except TimeoutError:
            _log.debug("heartbeat-overtaken controller=%s", self._view.image.controller_id)
        finally:
            self._beating = None

    async def may_leave(self, limit_s: float) -> bool:
        """Asks until the controller has put others in our place and they all know; False if it did not."""
        try:
            async with asyncio.timeout(limit_s):
                while self._view.other_brokers():
                    answer = await self._beat(wants_to_leave=True)
                    if answer is not None and answer.should_shut_down:
                        return True
                    await asyncio.sleep(_LEAVING_PAUSE_S)
        except TimeoutError:
            _log.warning("not-handed-over broker=%d limit-s=%g", self._view.broker_id, limit_s)
        return False

    def _notice(self, delta: Delta) -> None:
        """Who waits to be admitted says at once that it knows of its registration; so does who hears of
        a new controller."""
        own = self._view.image.brokers.get(self._view.broker_id)
        waits = own is not None and (own.fenced or own.in_controlled_shutdown)
        if delta.controller:
            self.heard_s = asyncio.get_running_loop().time()
        if delta.controller and self._beating is not None and not self._beating.expired():
            self._beating.reschedule(0)  # whom it asks is not the one to tell
        if delta.controller or (waits and self._view.broker_id in delta.brokers):
            self._due.set()

    async def _beat(self, *, wants_to_leave: bool = False) -> BrokerHeartbeatResponse | None:
        """None when there is nobody to tell; the next one will do."""
        if self._session.epoch == NO_REVISION:
            return None
        image = self._view.image
        request = BrokerHeartbeatRequest(
            broker_id=self._view.broker_id,
            broker_epoch=self._session.epoch,
            current_metadata_offset=image.revision,
            want_shut_down=wants_to_leave,
            want_fence=self._is_disabled() and bool(self._view.other_brokers()),
            unreachable_leaders=self._unreachable(),
        )
        try:
            if image.controller_id == self._view.broker_id:
                return self._receive(request)
            if image.controller_id is None:
                return None
            return await self._sent(image.controller_id, request)
        except BrokerError as error:
            _log.debug("heartbeat-failed controller=%s error=%s", image.controller_id, error)
            return None

    async def _sent(
        self, controller_id: int, request: BrokerHeartbeatRequest
    ) -> BrokerHeartbeatResponse | None:
        answer = await self._peers.request(
            controller_id, request, BrokerHeartbeatResponse, timeout_ms=_TIMEOUT_MS, lane=_LANE
        )
        self.heard_s = asyncio.get_running_loop().time()
        return answer if answer.error_code == ErrorCode.NONE else None
