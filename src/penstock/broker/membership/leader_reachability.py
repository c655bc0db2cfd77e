"""The controller's record of which brokers send heartbeats and which leaders are reachable.

A leader that its followers cannot fetch from is replaced by one of them. A controller that receives
heartbeats from too few brokers is isolated itself and resigns.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

from penstock.broker.membership.view import View
from penstock.metadata.rules.decisions import Decision
from penstock.metadata.rules.gray_failures import (
    Evidence,
    Moves,
    Place,
    replace_unreachable_leaders,
)

_log = logging.getLogger(__name__)

Decide = Callable[[], Sequence[Decision[None]]]
Commit = Callable[[Decide], Awaitable[Sequence[Decision[None]]]]

_FRESH_S: Final = 2.0  # in which what a broker said still holds
_UNHEARD_TTLS: Final = 1.25  # sessions that could have ended meanwhile
_LONG_UNHEARD_TTLS: Final = 5.0
_AGAIN_S: Final = 30.0  # the same partition
_WARY_S: Final = 60.0  # in which who was out of reach is given nothing back
_LOOK_S: Final = 0.4
_STALL_S: Final = 1.5  # a look that is so late was late by our own fault


class _Heard(NamedTuple):
    """The last heartbeat of a broker."""

    epoch: int
    at_s: float
    unreachable: frozenset[int]


class LeaderReachability:
    """Only the controller uses it, from the event loop.

    `commit` puts the controller's decisions into the store; `wake` brings about the next `attend`.
    """

    def __init__(self, view: View, commit: Commit, wake: Callable[[], None]) -> None:
        self._view = view
        self._commit = commit
        self._wake = wake
        self._heard: dict[int, _Heard] = {}
        self._moved_s: dict[Place, float] = {}
        self._wary_until_s: dict[int, float] = {}
        self._since_s = 0.0  # before which nothing could be heard
        self._looked_s = 0.0

    def begin(self) -> None:
        """The office is ours: all are heard from now on."""
        self._heard.clear()
        self._since_s = self._looked_s = self._now_s()

    def heard(self, broker_id: int, epoch: int, unreachable: Iterable[int]) -> None:
        """A heartbeat, with whom that broker cannot fetch from."""
        now_s, before = self._now_s(), self._heard.get(broker_id)
        self._heard[broker_id] = said = _Heard(epoch, now_s, frozenset(unreachable))
        is_news = said.unreachable != (before.unreachable if before is not None else frozenset())
        if now_s - self._looked_s > _STALL_S:
            self._since_s = now_s
        elif now_s - self._looked_s < _LOOK_S and not is_news:
            return
        self._looked_s = now_s
        if self.is_cut_off or self._moves().leaders:
            self._wake()

    @property
    def is_cut_off(self) -> bool:
        """Whether this broker hears from fewer than half of those that run, although there are several."""
        others = self._others()
        silent = [it for it in others if self._silence_ttls(it) >= _UNHEARD_TTLS]
        return len(others) > 1 and len(silent) * 2 > len(others)

    @property
    def avoided(self) -> frozenset[int]:
        """Who shall not be given partitions to lead while others can."""
        now_s = self._now_s()
        return frozenset(it for it, until_s in self._wary_until_s.items() if now_s < until_s)

    def silence_s(self, broker_id: int) -> float:
        """How long it has said nothing."""
        said = self._heard.get(broker_id)
        heard_s = said.at_s if said is not None and self._is_of_now(broker_id, said) else 0.0
        return self._now_s() - max(self._since_s, heard_s)

    def is_accused(self, broker_id: int) -> bool:
        return any(broker_id in it.unreachable for it in self._heard.values())

    async def attend(self) -> None:
        if not self._moves().leaders:
            return
        moves = Moves([], {})

        def decide() -> list[Decision[None]]:
            nonlocal moves
            moves = self._moves()
            return moves.decisions or [Decision(None)]

        await self._commit(decide)
        now_s = self._now_s()
        self._moved_s |= dict.fromkeys(moves.leaders, now_s)
        for broker_id, count in Counter(moves.leaders.values()).items():
            self._wary_until_s[broker_id] = now_s + _WARY_S
            _log.warning("leader-out-of-reach broker=%d partitions=%d", broker_id, count)

    def _moves(self) -> Moves:
        evidence = self._evidence()
        if not evidence.suspects:
            return Moves([], {})
        return replace_unreachable_leaders(self._view.image, self._view.rules, evidence)

    def _evidence(self) -> Evidence:
        now_s, image = self._now_s(), self._view.image
        self._moved_s = {it: at_s for it, at_s in self._moved_s.items() if now_s - at_s < _AGAIN_S}
        accusations = {
            broker_id: said.unreachable & image.live.keys()
            for broker_id, said in self._heard.items()
            if now_s - said.at_s <= _FRESH_S and self._is_of_now(broker_id, said)
        }
        silences = {it: self._silence_ttls(it) for it in self._others()}
        return Evidence(
            accusations,
            frozenset(it for it, ttls in silences.items() if ttls >= _UNHEARD_TTLS),
            frozenset(it for it, ttls in silences.items() if ttls >= _LONG_UNHEARD_TTLS),
            frozenset(self._moved_s),
        )

    def _others(self) -> list[int]:
        brokers, me = self._view.image.usable_brokers(), self._view.broker_id
        return [it.id for it in brokers if it.id != me and it.id in self._view.image.live]

    def _silence_ttls(self, broker_id: int) -> float:
        """How long it has said nothing, in session timeouts."""
        return self.silence_s(broker_id) * 1000 / self._view.config.broker_session_timeout_ms

    def _is_of_now(self, broker_id: int, said: _Heard) -> bool:
        broker = self._view.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == said.epoch

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()
