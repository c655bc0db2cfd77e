"""How fast replicas that are not in sync may catch up: the rates of this broker, and which replicas they hold for.

Kafka's settings: `leader.replication.throttled.rate` and `follower.replication.throttled.rate` of a broker,
`leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` of a topic. Who is in
sync is never slowed down: producers would wait for it.
"""

from penstock.broker.membership.view import View
from penstock.broker.partitions.topic import Topic
from penstock.model.clock import Clock
from penstock.replication.throttle import Throttle

EVERYONE = "*"


class Throttles:
    """Only the event loop calls it."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._leader = Throttle()
        self._follower = Throttle()

    def may_send(self, topic: Topic, index: int) -> bool:
        """Whether this broker, which leads, may give a replica that is not in sync some of the partition now."""
        names = topic.config.leader_replication_throttled_replicas
        if not _names(names, index, self._view.broker_id):
            return True
        now_ms = self._clock.monotonic_ms()
        self._leader.set_rate(self._view.config.leader_replication_throttled_rate, now_ms)
        return self._leader.pause_ms(now_ms) == 0

    def sent(self, topic: Topic, index: int, size_bytes: int) -> None:
        names = topic.config.leader_replication_throttled_replicas
        if _names(names, index, self._view.broker_id):
            self._leader.spent(size_bytes, self._clock.monotonic_ms())

    def fetch_pause_ms(self, topic: Topic, index: int) -> int:
        """How long a follower that is not in sync must wait before it fetches the partition."""
        names = topic.config.follower_replication_throttled_replicas
        if not _names(names, index, self._view.broker_id):
            return 0
        now_ms = self._clock.monotonic_ms()
        self._follower.set_rate(self._view.config.follower_replication_throttled_rate, now_ms)
        return self._follower.pause_ms(now_ms)

    def fetched(self, topic: Topic, index: int, size_bytes: int) -> None:
        names = topic.config.follower_replication_throttled_replicas
        if _names(names, index, self._view.broker_id):
            self._follower.spent(size_bytes, self._clock.monotonic_ms())


def _names(replicas: frozenset[str], index: int, broker_id: int) -> bool:
    return bool(replicas) and (EVERYONE in replicas or f"{index}:{broker_id}" in replicas)
