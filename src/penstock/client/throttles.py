"""How fast moves may copy, by Kafka's own settings, so that Kafka's tools see and remove them too.

A rate is a setting of the brokers; topics name the replicas that it holds for.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import ClientError, check
from penstock.client.pool import AnyBroker, Broker, Controller, Pool
from penstock.client.reassignments import Place
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import describe_configs as described
from penstock.wire.messages import incremental_alter_configs as alter

RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
LEADERS: Final = "leader.replication.throttled.replicas"
FOLLOWERS: Final = "follower.replication.throttled.replicas"

_TOPIC: Final = 2  # kinds of resources
_BROKER: Final = 4
_SET: Final = 0
_DELETE: Final = 1
_SET_FOR_TOPIC: Final = 1  # sources of settings
_SET_FOR_BROKER: Final = 2

Resource = tuple[int, str]
Settings = dict[str, str]


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
        (_BROKER, str(broker_id)): dict.fromkeys(RATES, str(bytes_per_s))
        for broker_id in sorted(brokers)
    }
    for topic, lists in _replicas(moving).items():
        changes[_TOPIC, topic] = dict(lists)
    await _alter(pool, changes)


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
        resource = (_BROKER, str(broker_id))
        try:
            found = await _describe(pool, Broker(broker_id), [resource], RATES, _SET_FOR_BROKER)
        except ClientError as error:
            if not error.is_retriable and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            continue
        if resource in found:
            of_brokers[broker_id] = found[resource]
    asked = [(_TOPIC, topic) for topic in topics]
    keys = (LEADERS, FOLLOWERS)
    found = await _describe(pool, AnyBroker(), asked, keys, _SET_FOR_TOPIC) if asked else {}
    return Throttles(of_brokers, {topic: it for (_, topic), it in found.items()})


async def remove_throttles(pool: Pool, brokers: Iterable[int], topics: Iterable[str]) -> None:
    """Brokers that do not run have theirs removed too."""
    changes: dict[Resource, dict[str, str | None]] = {
        (_BROKER, str(broker_id)): dict.fromkeys(RATES) for broker_id in brokers
    }
    changes.update({(_TOPIC, topic): dict.fromkeys((LEADERS, FOLLOWERS)) for topic in topics})
    await _alter(pool, changes)


async def min_isrs(pool: Pool, topics: Iterable[str]) -> dict[str, int]:
    """min.insync.replicas as it holds for each topic."""
    key = "min.insync.replicas"
    asked = [(_TOPIC, topic) for topic in topics]
    found = await _describe(pool, AnyBroker(), asked, (key,)) if asked else {}
    return {topic: int(it[key]) for (_, topic), it in found.items() if key in it}


async def _describe(
    pool: Pool,
    target: AnyBroker | Broker,
    resources: Iterable[Resource],
    keys: Sequence[str],
    source: int | None = None,
) -> dict[Resource, Settings]:
    """The settings that were made in one place (None: anywhere). A topic that is gone is left out."""
    asked = [
        described.DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=list(keys)
        )
        for kind, name in resources
    ]
    answer = await pool.ask(
        target,
        described.DescribeConfigsRequest(resources=asked),
        described.DescribeConfigsResponse,
        timeout_ms=10_000,
    )
    found: dict[Resource, Settings] = {}
    for result in answer.results:
        if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            continue
        check(result.error_code, result.error_message, result.resource_name)
        settings = {
            row.name: row.value
            for row in result.configs
            if row.value and source in (None, row.config_source)
        }
        if settings:
            found[result.resource_type, result.resource_name] = settings
    return found


async def _alter(pool: Pool, changes: Mapping[Resource, Mapping[str, str | None]]) -> None:
    """None: back to the default."""
    if not changes:
        return
    resources = [
        alter.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                alter.AlterableConfig(
                    name=key, config_operation=_DELETE if value is None else _SET, value=value
                )
                for key, value in settings.items()
            ],
        )
        for (kind, name), settings in changes.items()
    ]

    def accept(answer: alter.IncrementalAlterConfigsResponse) -> None:
        for result in answer.responses:
            if result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                check(result.error_code, result.error_message, result.resource_name)

    await pool.ask(
        Controller(),
        alter.IncrementalAlterConfigsRequest(resources=resources),
        alter.IncrementalAlterConfigsResponse,
        check=accept,
    )
