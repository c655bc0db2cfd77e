"""Where replicas are moved to (O2): what operators ask for, and the growth of internal topics (O7)."""

from collections.abc import Iterable, Mapping, Sequence

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.cordons import CORDON, cordoned
from penstock.metadata.rules.decisions import Decision, Rules
from penstock.metadata.rules.partition_edits import Answers, Edits
from penstock.metadata.rules.partition_rules import (
    ElectionContext,
    ElectionSettings,
    elected,
    settled,
)
from penstock.metadata.rules.reassignment_rules import completed, is_moving
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition


def reassignments(
    image: ClusterImage, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, PartitionImage]:
    """The partitions that are being moved, of those asked for; None: of all."""
    moving = image.moving_partitions()
    if partitions is None:
        return moving
    return {at: moving[at] for at in partitions if at in moving}


def alter_reassignments(
    image: ClusterImage,
    rules: Rules,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    *,
    allow_factor_change: bool = True,
) -> Answers:
    """Moves partitions to other replicas, the first being the preferred leader; None calls a move off.

    What can be done at once is done at once: a new order, and replicas that are only taken away.
    """
    context = ElectionContext(image, rules)
    edits = Edits(image)
    errors: dict[TopicPartition, BrokerError | None] = {}
    for at, replicas in targets.items():
        try:
            topic, before = edits.find(at)
            settings = context.settings(topic)
            if replicas is None:
                after = _called_off(at, before, context.able, settings)
            else:
                _check_target(image, at, before, replicas)
                if not allow_factor_change:
                    _check_factor(at, before, replicas)
                after = _sent(at, before, tuple(replicas), context.able, settings)
            edits.put(topic, at.partition, after)
            errors[at] = None
        except BrokerError as error:
            errors[at] = error
    edits.recompute_elrs(context.settings_cache)
    return Answers(edits.decisions(), errors)


def complete_reassignments(image: ClusterImage, rules: Rules) -> list[Decision[None]]:
    """Ends the moves that can be ended; most are by the change of the ISR that they waited for."""
    context = ElectionContext(image, rules)
    edits = Edits(image)
    for at, partition in image.moving_partitions().items():
        topic = image.topics[at.topic]
        settings = context.settings(topic)
        edits.put(topic, at.partition, completed(partition, partition, context.able, settings))
    edits.recompute_elrs(context.settings_cache)
    return edits.decisions()


def _original(partition: PartitionImage) -> tuple[int, ...]:
    return tuple(member for member in partition.replicas if member not in partition.adding)


def _sent(
    at: TopicPartition,
    before: PartitionImage,
    replicas: tuple[int, ...],
    able: frozenset[int],
    settings: ElectionSettings,
) -> PartitionImage:
    original = _original(before)
    removing = tuple(member for member in original if member not in replicas)
    adding = tuple(member for member in replicas if member not in original)
    kept = _kept(at, before, (*replicas, *removing), able)
    after = kept._replace(adding=adding, removing=removing)
    return completed(before, after, able, settings)


def _called_off(
    at: TopicPartition, before: PartitionImage, able: frozenset[int], settings: ElectionSettings
) -> PartitionImage:
    if not is_moving(before):
        raise BrokerError(
            f"{at} is not being moved; its replicas are {list(before.replicas)}",
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
        )
    kept = _kept(at, before, _original(before), able)
    return settled(before, kept._replace(adding=(), removing=()), settings)


def _kept(
    at: TopicPartition, before: PartitionImage, replicas: tuple[int, ...], able: frozenset[int]
) -> PartitionImage:
    """With these replicas. The additions of an earlier move that are not among them go at once."""
    isr = tuple(member for member in before.isr if member in replicas)
    kept = before._replace(replicas=replicas, isr=isr)
    whole = before.isr or before.elr
    stay = able.intersection(whole, replicas) or set(whole) <= set(replicas)
    if not stay:
        raise _invalid(
            f"only brokers {list(whole)} have all data of {at}, and none of these that runs is among"
            f" {list(replicas)}: wait for one, or name one"
        )
    if before.leader >= 0 and before.leader not in isr:
        kept = elected(kept, able, unclean=False)
        if kept.leader < 0:
            raise _invalid(
                f"{at} is led by broker {before.leader}, and none of {list(isr)} can take over: start one"
            )
    return kept


def _check_target(
    image: ClusterImage, at: TopicPartition, before: PartitionImage, replicas: Sequence[int]
) -> None:
    if not replicas:
        raise _invalid(f"the list of replicas for {at} is empty")
    if len(set(replicas)) < len(replicas):
        raise _invalid(f"a broker is named twice for {at}: {list(replicas)}")
    unknown = [broker_id for broker_id in replicas if broker_id not in image.registrations]
    if unknown:
        raise _invalid(
            f"{at} cannot be on brokers {unknown}: registered are {sorted(image.registrations)}"
        )
    closed = cordoned(image, [it for it in replicas if it not in before.replicas])
    if closed:
        raise _invalid(f"{at} cannot go to brokers {closed}: they get no new replicas ({CORDON})")


def _check_factor(at: TopicPartition, before: PartitionImage, replicas: Sequence[int]) -> None:
    factor = len(_original(before))
    if len(replicas) != factor:
        raise BrokerError(
            f"{len(replicas)} replicas for {at} would change its replication factor, {factor}",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
