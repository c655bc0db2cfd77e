"""Elections that are asked for or due although nobody was lost: preferred leaders (E6), unclean ones (E5)."""

from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum

from penstock.metadata.image import ClusterImage, TopicImage
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.partition_edits import Answers, Edits
from penstock.metadata.rules.partition_rules import (
    NOBODY,
    ElectionContext,
    ElectionSettings,
    ElectionSettingsCache,
    elected,
    settled,
)
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition


class ElectionKind(Enum):
    """Kafka's numbers."""

    PREFERRED = 0
    UNCLEAN = 1


class _NotNeeded(BrokerError):
    code = ErrorCode.ELECTION_NOT_NEEDED


def elect_leaders(
    image: ClusterImage,
    rules: Rules,
    kind: ElectionKind,
    partitions: Iterable[TopicPartition] | None = None,
) -> Answers:
    """None: of all partitions, and only those where there was something to elect are answered."""
    context = ElectionContext(image, rules)
    edits = Edits(image)
    errors: dict[TopicPartition, BrokerError | None] = {}
    for at in _all(image) if partitions is None else partitions:
        try:
            topic, before = edits.find(at)
            settings = context.settings(topic)
            edits.put(topic, at.partition, _elect(at, kind, before, context, settings))
            errors[at] = None
        except _NotNeeded as error:
            if partitions is not None:
                errors[at] = error
        except BrokerError as error:
            errors[at] = error
    return Answers(edits.decisions(), errors)


def _all(image: ClusterImage) -> Iterator[TopicPartition]:
    for topic in image.topics.values():
        for number in range(len(topic.partitions)):
            yield TopicPartition(topic.name, number)


def _elect(
    at: TopicPartition,
    kind: ElectionKind,
    before: PartitionImage,
    context: ElectionContext,
    settings: ElectionSettings,
) -> PartitionImage:
    if kind is ElectionKind.PREFERRED:
        return _prefer(at, before, context, settings)
    if before.leader != NOBODY:
        raise _NotNeeded(f"{at} is led by broker {before.leader}")
    after = elected(before, context.able, unclean=True)
    if after.leader == NOBODY:
        raise BrokerError(
            f"none of the replicas {list(before.replicas)} of {at} can lead: start one of these brokers",
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )
    return settled(before, after, settings)


def _prefer(
    at: TopicPartition, before: PartitionImage, context: ElectionContext, settings: ElectionSettings
) -> PartitionImage:
    preferred = before.replicas[0]
    if before.leader == preferred:
        raise _NotNeeded(f"{at} is led by broker {preferred}, its preferred leader")
    if not _can_take_over(before, context.able):
        raise BrokerError(
            f"broker {preferred}, the preferred leader of {at}, cannot lead: it must run and be in the"
            f" ISR, {list(before.isr)}",
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        )
    return settled(before, before._replace(leader=preferred), settings)


def _can_take_over(partition: PartitionImage, able: frozenset[int]) -> bool:
    preferred = partition.replicas[0]
    return preferred in able and preferred in partition.isr


def balance_leaders(
    image: ClusterImage,
    rules: Rules,
    *,
    max_moves: int,
    tolerated_percent: int = 10,
    avoided: frozenset[int] = frozenset(),
) -> list[Decision[None]]:
    """E6: preferred leaders for brokers that lead too few of the partitions that prefer them.

    A broker may lack `tolerated_percent` of those. Partitions whose preferred leader cannot lead, or is
    one of those `avoided`, stay.
    """
    context = ElectionContext(image, rules)
    able = context.able - avoided
    preferred: Counter[int] = Counter()
    missing: dict[int, list[tuple[TopicImage, int]]] = {}
    for topic in image.topics.values():
        for number, partition in enumerate(topic.partitions):
            first = partition.replicas[0]
            preferred[first] += 1
            if partition.leader != first and _can_take_over(partition, able):
                missing.setdefault(first, []).append((topic, number))
    edits = Edits(image)
    moves = 0
    for broker_id, places in missing.items():
        if len(places) * 100 <= preferred[broker_id] * tolerated_percent:
            continue
        for topic, number in places[: max_moves - moves]:
            before = topic.partitions[number]
            after = settled(before, before._replace(leader=broker_id), context.settings(topic))
            edits.put(topic, number, after)
            moves += 1
    return edits.decisions()


def clear_stale_elrs(
    image: ClusterImage, settings_cache: ElectionSettingsCache, topics: Iterable[TopicImage]
) -> list[Decision[None]]:
    """What a milder min.insync.replicas does: who is not in sync may soon lack what is committed without it.

    `topics` as they shall be. Write them no later than the settings themselves.
    """
    edits = Edits(image)
    for topic in topics:
        for number, partition in enumerate(topic.partitions):
            if partition.elr:
                now = image.topics[topic.name]
                edits.put(now, number, settled(partition, partition, settings_cache.of(topic)))
    return edits.decisions()
