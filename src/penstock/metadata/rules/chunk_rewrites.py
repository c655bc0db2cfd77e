"""One step taken for every partition of many chunks: the same case is worked out once, the most urgent chunks come first."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.metadata.image import ChunkId, ClusterImage
from penstock.metadata.rules.decisions import Decision, chunk_change
from penstock.metadata.rules.partition_rules import ElectionContext, ElectionSettings
from penstock.metadata.values import PartitionImage

Step = Callable[[PartitionImage, ElectionSettings], PartitionImage]

_UNTOUCHED: Final = 3


class _Case(NamedTuple):
    """What a step does to every partition in the same situation, whatever its epochs."""

    urgency: (
        int  # 0: new leader, and too few in sync; 1: new leader; 2: none of these; 3: no change
    )
    leader: int
    leader_epoch_step: int
    is_unclean: bool  # its new epoch begins without all that was committed
    rest: tuple[Any, ...]  # the fields from `replicas` up to the last unclean epoch


def rewrite(
    image: ClusterImage, chunks: Iterable[ChunkId], context: ElectionContext, step: Step
) -> list[Decision[None]]:
    """A decision for each chunk that changes: internal topics, then partitions without a leader, then the others.

    Its benchmark is benchmarks/elections.py.
    """
    memos: dict[ElectionSettings, dict[Any, _Case]] = {}
    ranked: list[list[Decision[None]]] = [[], [], [], []]
    for chunk in chunks:
        topic = image.topics_by_id.get(chunk[0])
        settings = context.settings(topic)
        memo = memos.setdefault(settings, {})
        urgency, partitions = _stepped(image.chunk(*chunk), settings, step, memo)
        if urgency < _UNTOUCHED:
            is_first = urgency < 2 and topic is not None and topic.is_internal
            rank = 0 if is_first else urgency + 1
            ranked[rank].append(chunk_change(image, chunk, partitions))
    return [decision for decisions in ranked for decision in decisions]


def _stepped(
    partitions: Sequence[PartitionImage],
    settings: ElectionSettings,
    step: Step,
    memo: dict[Any, _Case],
) -> tuple[int, list[PartitionImage]]:
    """The lowest urgency, and the partitions after the step."""
    after = []
    lowest = _UNTOUCHED
    for partition in partitions:
        situation = partition[0], partition[3:-1]
        case = memo.get(situation)
        if case is None:
            case = memo[situation] = _case(partition, settings, step)
        urgency, leader, leader_epoch_step, is_unclean, rest = case
        if urgency == _UNTOUCHED:
            after.append(partition)
            continue
        if urgency < lowest:
            lowest = urgency
        epoch = partition[1] + leader_epoch_step
        unclean_epoch = epoch if is_unclean else partition[-1]
        row = leader, epoch, partition[2] + 1, *rest, unclean_epoch
        after.append(PartitionImage._make(row))
    return lowest, after


def _case(before: PartitionImage, settings: ElectionSettings, step: Step) -> _Case:
    after = step(before, settings)
    if after is before:
        return _Case(_UNTOUCHED, 0, 0, False, ())
    if after.leader_epoch == before.leader_epoch:
        urgency = 2
    else:
        urgency = int(len(after.isr) >= settings.least(after))
    is_unclean = after.unclean_epoch != before.unclean_epoch
    epoch_step = after.leader_epoch - before.leader_epoch
    return _Case(urgency, after.leader, epoch_step, is_unclean, after[3:-1])
