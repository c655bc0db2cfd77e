"""Brokers that metadata responses still list for a few seconds after they were lost.

librdkafka destroys a broker that disappears from metadata while it still moves that broker's
partitions to their new leaders. They then have no broker until its next refresh, a second later.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

from penstock.metadata.image import BrokerInfo, ClusterImage, Delta

_LINGERS_S: Final = 3.0  # clients look for new leaders at least once a second


class RecentlyLostBrokers:
    """`take` every change of the image."""

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        self._clock_s = clock_s
        self._usable: dict[int, BrokerInfo] = {}
        self._until_s: dict[int, tuple[float, BrokerInfo]] = {}

    def take(self, image: ClusterImage, delta: Delta) -> None:
        for broker_id in delta.brokers:
            now, before = image.brokers.get(broker_id), self._usable.pop(broker_id, None)
            if now is not None and not now.fenced:
                self._usable[broker_id] = now
                self._until_s.pop(broker_id, None)
            elif before is not None and not before.in_controlled_shutdown:
                self._until_s[broker_id] = self._clock_s() + _LINGERS_S, before

    def brokers(self) -> list[BrokerInfo]:
        """Return the brokers that were lost a moment ago without announcing a shutdown."""
        now_s = self._clock_s()
        self._until_s = {it: kept for it, kept in self._until_s.items() if kept[0] > now_s}
        return [broker for _, broker in self._until_s.values()]
