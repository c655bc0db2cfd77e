"""Leaders that run and do not serve: out of reach of their followers, or of the controller. Others lead in their place.

The word of one follower is not enough, for it may be the one that is cut off: all that are in sync and run must say
the same, or the controller itself must hear nothing from the leader. Pure.
"""

from collections.abc import Mapping
from typing import NamedTuple

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.partition_edits import Edits
from penstock.metadata.rules.partition_rules import (
    ElectionContext,
    ElectionSettings,
    settled,
    without,
)
from penstock.metadata.values import CHUNK_PARTITIONS, PartitionImage
from penstock.model.ids import TopicId

Place = tuple[TopicId, int]


class Evidence(NamedTuple):
    """What the controller has heard of late, and what it has not."""

    accusations: Mapping[int, frozenset[int]]  # of each that was heard: whom it cannot fetch from
    unheard: frozenset[int] = frozenset()  # they run, and are silent
    long_unheard: frozenset[int] = frozenset()
    spared: frozenset[Place] = frozenset()  # moved a short while ago

    @property
    def suspects(self) -> frozenset[int]:
        return self.long_unheard.union(self.unheard, *self.accusations.values())


class Moves(NamedTuple):
    decisions: list[Decision[None]]
    leaders: dict[Place, int]  # who led what is moved


def replace_unreachable_leaders(image: ClusterImage, rules: Rules, evidence: Evidence) -> Moves:
    """Decisions that move the lead from those who are out of reach to those who are not, where that helps."""
    context = ElectionContext(image, rules)
    edits = Edits(image)
    leaders: dict[Place, int] = {}
    for suspect in sorted(evidence.suspects):
        for topic_id, chunk in image.chunks_on(suspect):
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                continue
            settings = context.settings(topic)
            first = chunk * CHUNK_PARTITIONS
            for number, before in enumerate(image.chunk(topic_id, chunk), first):
                if before.leader == suspect and (topic_id, number) not in evidence.spared:
                    after = _replaced(before, evidence, context.able, settings)
                    if after is not before:
                        edits.put(topic, number, after)
                        leaders[topic_id, number] = suspect
    return Moves(edits.decisions(), leaders)


def _replaced(
    before: PartitionImage, evidence: Evidence, able: frozenset[int], settings: ElectionSettings
) -> PartitionImage:
    leader, heard = before.leader, evidence.accusations
    others = [it for it in before.replicas if it != leader and it in before.isr and it in able]
    accusers = [it for it in others if leader in heard.get(it, ())]
    sound = [
        it for it in others if it in heard and not any(it in heard.get(by, ()) for by in others)
    ]
    if others and accusers == others:
        if sound and len(others) >= settings.least(before):
            return settled(
                before, without(before, leader, settings)._replace(leader=sound[0]), settings
            )
        return before
    if leader in (evidence.unheard if accusers else evidence.long_unheard):
        fit = [it for it in sound if it not in accusers]  # where it goes on as a follower
        if fit:
            return settled(before, before._replace(leader=fit[0]), settings)
    return before
