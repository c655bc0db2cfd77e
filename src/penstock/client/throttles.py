"""How fast moves may copy, by Kafka's own settings, so that Kafka's tools see and remove them too.

A rate is a setting of the brokers; topics name the replicas that it holds for.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import ClientError
from penstock.client.pool import AnyBroker, Broker, Pool
from penstock.client.reassignments import Place
from penstock.client.settings import (
    BROKER,
    SET_FOR_BROKER,
    SET_FOR_TOPIC,
    TOPIC,
    Resource,
    Settings,
    change,
    describe,
)
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"


class Throttles(NamedTuple):
    """In force: the rates of brokers, the lists of topics."""

    brokers: dict[int, Settings]
    topics: dict[str, Settings]

    def __bool__(self) -> bool:
        return bool(self.brokers or self.topics)

    @property
    def rates(self) -> dict[int, int]:
        """Bytes a second by broker; the lower one where they differ."""
        return {broker_id: min(map(int, it.values())) for broker_id, it in self.brokers.items()}


async def set_throttles(
    pool: Pool,
    bytes_per_s: int,
    brokers: Iterable[int],
    moving: Mapping[TopicPartition, tuple[Place, Sequence[int]]],
) -> None:
    """For the copies that take these partitions from their places to these replicas."""
    changes: dict[Resource, dict[str, str | None]] = {
        (BROKER, str(broker_id)): dict.fromkeys(RATES, str(bytes_per_s))
        for broker_id in sorted(brokers)
    }
    for topic, lists in _replicas(moving).items():
        changes[TOPIC, topic] = dict(lists)
    await change(pool, changes)


def _replicas(
    moving: Mapping[TopicPartition, tuple[Place, Sequence[int]]],
) -> dict[str, dict[str, str]]:
    """By topic: any replica that is there may come to lead, and those that are new follow."""
    leaders: dict[str, list[str]] = {}
    followers: dict[str, list[str]] = {}
    for at, (place, target) in moving.items():
        new = [member for member in target if member not in place.original]
        old = place.original
        leaders.setdefault(at.topic, []).extend(f"{at.partition}:{member}" for member in old)
        followers.setdefault(at.topic, []).extend(f"{at.partition}:{member}" for member in new)
    return {
        topic: {LEADERS: ",".join(leaders[topic]), FOLLOWERS: ",".join(followers[topic])}
        for topic in leaders
        if followers[topic]
    }


async def throttles(pool: Pool, brokers: Iterable[int], topics: Iterable[str]) -> Throttles:
    """Those in force. A broker is asked for its own; one that does not answer is left out."""
    of_brokers: dict[int, Settings] = {}
    for broker_id in brokers:
        resource = (BROKER, str(broker_id))
        try:
            found = await describe(pool, Broker(broker_id), [resource], RATES, SET_FOR_BROKER)
        except ClientError as error:
            if not error.is_retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            continue
        if resource in found:
            of_brokers[broker_id] = found[resource]
    asked = [(TOPIC, topic) for topic in topics]
    keys = (LEADERS, FOLLOWERS)
    found = await describe(pool, AnyBroker(), asked, keys, SET_FOR_TOPIC) if asked else {}
    return Throttles(of_brokers, {topic: it for (_, topic), it in found.items()})


async def remove_throttles(pool: Pool, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Brokers that do not run have theirs removed too."""
    changes: dict[Resource, dict[str, str | None]] = {
        (BROKER, str(broker_id)): dict.fromkeys(RATES) for broker_id in brokers
    }
    changes.update({(TOPIC, topic): dict.fromkeys((LEADERS, FOLLOWERS)) for topic in topics})
    await change(pool, changes)


async def min_isrs(pool: Pool, topics: Iterable[str]) -> dict[str, int]:
    """min.insync.replicas as it holds for each topic."""
    key = "min.insync.replicas"
    asked = [(TOPIC, topic) for topic in topics]
    found = await describe(pool, AnyBroker(), asked, (key,)) if asked else {}
    return {topic: int(it[key]) for (_, topic), it in found.items() if key in it}
