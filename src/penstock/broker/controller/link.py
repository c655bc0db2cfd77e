"""Asking the controller, wherever it is: the one that holds the office now, or the next one, within the time given."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from penstock.broker.membership.image_feed import ImageFeed
from penstock.broker.membership.peers import CONTROL, Peers
from penstock.client.errors import ClientError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.schema import Message

R = TypeVar("R", bound=Message)

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 0.5


class ControllerLink:
    def __init__(self, feed: ImageFeed, peers: Peers, is_controller: Callable[[], bool]) -> None:
        self._feed = feed
        self._peers = peers
        self._is_controller = is_controller

    async def ask(
        self, message: Message, response: type[R], *, timeout_ms: int, lane: str = CONTROL
    ) -> R | None:
        """The controller's answer; None once this broker is the controller itself.

        A request whose answer was lost is made again: the controller may see it twice.
        """
        loop = asyncio.get_running_loop()
        end_s, pause_s = loop.time() + timeout_ms / 1000, _FIRST_PAUSE_S
        while not self._is_controller():
            left_ms = round((end_s - loop.time()) * 1000)
            reason = "there is no controller at the moment"
            try:
                answer = await self._ask_once(message, response, max(left_ms, 1), lane)
                if answer is not None:
                    return answer
            except ClientError as error:
                reason = str(error)
            if loop.time() + pause_s >= end_s:
                raise BrokerError(
                    f"the controller did not answer within {timeout_ms} ms: {reason}",
                    ErrorCode.REQUEST_TIMED_OUT,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        return None

    async def _ask_once(
        self, message: Message, response: type[R], timeout_ms: int, lane: str
    ) -> R | None:
        """None when the broker that held the office holds it no more."""
        controller_id = self._feed.image.controller_id
        if controller_id is None:
            return None
        answer = await self._peers.request(
            controller_id, message, response, timeout_ms=timeout_ms, lane=lane
        )
        gone = getattr(answer, "error_code", ErrorCode.NONE) == ErrorCode.NOT_CONTROLLER
        return None if gone else answer
