"""`penstock plan --from`: a measured cluster as the inputs of a plan."""

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.cli.arguments import CommandError, UsageError
from penstock.cli.output import counted
from penstock.cli.session import with_pool
from penstock.client.connection import parse_bootstrap
from penstock.client.traffic import ClusterTraffic, TopicTraffic, measure
from penstock.planner.inputs import Cluster, Inputs, Topic
from penstock.planner.quantities import DAY_S

_CENTURY_MS: Final = 100 * 365 * DAY_S * 1000
_UNKNOWN_MESSAGE: Final = 1000.0
_SEGMENT_LEAST: Final = 10_000


def measured_inputs(bootstrap: str, seconds: int) -> Inputs:
    try:
        parse_bootstrap(bootstrap)
    except ValueError as error:
        raise UsageError(f"--from: {error}") from None
    return inputs_of(with_pool(bootstrap, lambda pool: measure(pool, seconds)))


def inputs_of(traffic: ClusterTraffic) -> Inputs:
    """Make inputs of what was measured. Idle topics are one row for each number of replicas."""
    busy = [topic for topic in traffic.topics if topic.messages_s > 0]
    if not busy:
        raise CommandError(
            f"no messages were written in {traffic.seconds:.0f} s; measure longer with --seconds, "
            "or give the load with --rate"
        )
    idle = [topic for topic in traffic.topics if topic.messages_s == 0]
    topics = (*map(_topic, busy), *_idle(idle))
    return Inputs(topics, Cluster(zones=max(1, traffic.racks)), notes=tuple(_notes(traffic, busy)))


def _topic(topic: TopicTraffic) -> Topic:
    """Derive what is kept from rate and retention; without retention, take the size of today."""
    message = topic.message_bytes or _UNKNOWN_MESSAGE
    retention_s = topic.retention_ms / 1000 if _ends(topic) else 7.0 * DAY_S
    kept = 0.0
    if not (topic.deletes and _ends(topic)):
        kept = float(max(1, topic.size_bytes))
    if topic.deletes and topic.retention_bytes >= 0:
        most = float(max(1, topic.retention_bytes * topic.partitions))
        kept = min(most, kept or topic.messages_s * message * retention_s)
    return Topic(
        name=topic.name,
        rate=topic.messages_s,
        message=max(1.0, message),
        retention=retention_s,
        replication_factor=topic.replication_factor,
        min_insync_replicas=min(topic.min_insync_replicas, topic.replication_factor),
        groups=topic.groups,
        members=topic.members,
        partitions=topic.partitions,
        segment=float(max(_SEGMENT_LEAST, topic.segment_bytes)),
        kept=kept,
        framed=False,
    )


def _ends(topic: TopicTraffic) -> bool:
    return 0 < topic.retention_ms < _CENTURY_MS


def _idle(topics: Iterable[TopicTraffic]) -> Iterator[Topic]:
    by_factor: dict[int, list[TopicTraffic]] = {}
    for topic in topics:
        by_factor.setdefault(topic.replication_factor, []).append(topic)
    for factor, alike in sorted(by_factor.items()):
        yield Topic(
            name=f"{counted(len(alike), 'idle topic')}, RF {factor}",
            replication_factor=factor,
            min_insync_replicas=min(factor, *(topic.min_insync_replicas for topic in alike)),
            groups=0,
            members=0,
            partitions=sum(topic.partitions for topic in alike),
            kept=float(sum(topic.size_bytes for topic in alike)),
            framed=False,
        )


def _notes(traffic: ClusterTraffic, busy: list[TopicTraffic]) -> Iterator[str]:
    yield (
        f"Measured for {traffic.seconds:.0f} s on {counted(traffic.brokers, 'broker')}: an average "
        "only if the load is even. Give --peak for its highest rate."
    )
    yield "Message sizes are those in the log: what compression saves is in them."
    yield f"Batches are taken to hold {Topic().batch:g} messages; give --batch if they do not."
    endless = [t.name for t in busy if not (t.deletes and _ends(t)) and t.retention_bytes < 0]
    if endless:
        yield f"Retention does not bound {_names(endless)}: the size of today was taken."
    unknown = [topic.name for topic in busy if topic.message_bytes is None]
    if unknown:
        yield f"The message size of {_names(unknown)} could not be measured: 1 KB was taken."
    if traffic.without_leader:
        yield f"{counted(traffic.without_leader, 'partition')} without a leader were left out."
    if traffic.groups_left_out:
        yield f"{counted(traffic.groups_left_out, 'group')} could not be read."
    yield "A consumer group counts for a topic when it has committed offsets in it."


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
