"""Unclean recovery (KIP-966): if all eligible replicas lost power, elect the one with most data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.partition_edits import Edits
from penstock.metadata.rules.partition_rules import NOBODY, ElectionContext, elected, settled
from penstock.metadata.store import Compare, Revision
from penstock.metadata.values import PartitionImage, live_key
from penstock.model.ids import TopicPartition

NONE = "none"
BALANCED = "balanced"


class LogEnd(NamedTuple):
    """Of two logs the one with the later epoch has more, then the longer one."""

    epoch: int  # of its last record
    offset: int  # one past its last record


class ReplicaLogEnds(NamedTuple):
    """Log ends as brokers reported them, each in one session."""

    sessions: Mapping[int, int]
    ends: Mapping[TopicPartition, Mapping[int, LogEnd]]


def partitions_to_recover(
    image: ClusterImage, rules: Rules
) -> dict[TopicPartition, tuple[int, ...]]:
    """Find leaderless partitions whose last eligible replicas are all back, with those brokers.

    No other replica can have more: records that none of them has are lost.
    """
    if rules.config.unclean_recovery_strategy != BALANCED or not image.leaderless_count:
        return {}
    able = ElectionContext(image, rules).able
    return {
        TopicPartition(topic.name, number): partition.last_known_elr
        for topic in image.topics.values()
        for number, partition in enumerate(topic.partitions)
        if partition.leader == NOBODY and _is_lost_everywhere(partition, able)
    }


def _is_lost_everywhere(partition: PartitionImage, able: frozenset[int]) -> bool:
    known = partition.last_known_elr
    return bool(known) and not partition.isr and not partition.elr and able.issuperset(known)


def recover_leaders(
    image: ClusterImage, rules: Rules, log_ends: ReplicaLogEnds
) -> list[Decision[None]]:
    """Elect the replica with the most data; valid in the reported sessions only."""
    context = ElectionContext(image, rules)
    edits = Edits(image)
    for at, asked in partitions_to_recover(image, rules).items():
        ends = log_ends.ends.get(at, {})
        if not all(broker_id in ends for broker_id in asked):
            continue
        topic, before = edits.find(at)
        best = max(asked, key=lambda broker_id, ends=ends: ends[broker_id])  # type: ignore[misc]
        after = elected(before, frozenset({best}), unclean=True)
        edits.put(topic, at.partition, settled(before, after, context.settings(topic)))
    in_session = [
        Compare(live_key(broker_id), create_revision=Revision(epoch))
        for broker_id, epoch in log_ends.sessions.items()
    ]
    return [replace(it, compares=[*it.compares, *in_session]) for it in edits.decisions()]
