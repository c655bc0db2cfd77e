"""Heartbeats of one connection, in both directions."""

from __future__ import annotations

MISSED_INTERVALS = 2


class Heartbeats:
    """Says when to send a heartbeat, and when the peer is silent for too long.

    Any byte counts as a sign of life. An interval of 0 turns heartbeats off.
    """

    __slots__ = ("_interval_ms", "_received_ms", "_sent_ms")

    def __init__(self, interval_ms: int, now_ms: int) -> None:
        self._interval_ms = interval_ms
        self._received_ms = self._sent_ms = now_ms

    @property
    def interval_ms(self) -> int:
        return self._interval_ms

    def received(self, now_ms: int) -> None:
        self._received_ms = now_ms

    def sent(self, now_ms: int) -> None:
        self._sent_ms = now_ms

    def must_send(self, now_ms: int) -> bool:
        return bool(self._interval_ms) and now_ms >= self._send_at_ms

    def is_peer_lost(self, now_ms: int) -> bool:
        return bool(self._interval_ms) and now_ms >= self._lost_at_ms

    @property
    def deadline_ms(self) -> int | None:
        """Return when to look again."""
        return min(self._send_at_ms, self._lost_at_ms) if self._interval_ms else None

    @property
    def _send_at_ms(self) -> int:
        return self._sent_ms + self._interval_ms // 2

    @property
    def _lost_at_ms(self) -> int:
        return self._received_ms + MISSED_INTERVALS * self._interval_ms
