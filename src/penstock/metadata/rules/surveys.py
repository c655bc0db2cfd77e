"""Who leads when every replica that had all that was committed has lost power: the one that still has the most (KIP-966)."""

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


class Survey(NamedTuple):
    """What brokers said of their logs, each in one session."""

    sessions: Mapping[int, int]
    ends: Mapping[TopicPartition, Mapping[int, LogEnd]]


def partitions_to_survey(
    image: ClusterImage, rules: Rules
) -> dict[TopicPartition, tuple[int, ...]]:
    """Partitions that nobody may lead although all who were in sync until they lost power are back: these brokers.

    Nothing better can come: what none of them has is nowhere.
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


def lead_by_survey(image: ClusterImage, rules: Rules, survey: Survey) -> list[Decision[None]]:
    """Holds only while the sessions of those who were asked do: a restart may lose more."""
    context = ElectionContext(image, rules)
    edits = Edits(image)
    for at, asked in partitions_to_survey(image, rules).items():
        ends = survey.ends.get(at, {})
        if not all(broker_id in ends for broker_id in asked):
            continue
        topic, before = edits.find(at)
        best = max(asked, key=lambda broker_id, ends=ends: ends[broker_id])  # type: ignore[misc]
        after = elected(before, frozenset({best}), unclean=True)
        edits.put(topic, at.partition, settled(before, after, context.settings(topic)))
    in_session = [
        Compare(live_key(broker_id), create_revision=Revision(epoch))
        for broker_id, epoch in survey.sessions.items()
    ]
    return [replace(it, compares=[*it.compares, *in_session]) for it in edits.decisions()]
