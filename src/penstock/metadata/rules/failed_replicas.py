"""Replicas whose logs are damaged: out of the ISR and of the ELR at once, so that they never lead (L3).

Where a log is to be built anew a new epoch begins, under the same leader if need be: it forgets what the replica
had, and counts it once it has fetched again.
"""

from collections.abc import Mapping

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.decisions import Rules
from penstock.metadata.rules.isr_changes import check_session
from penstock.metadata.rules.partition_edits import Answers, Edits
from penstock.metadata.rules.partition_rules import (
    ElectionContext,
    ElectionSettings,
    elected,
    settled,
    without,
)
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition


def fail_replicas(
    image: ClusterImage,
    rules: Rules,
    broker_id: int,
    broker_epoch: int,
    partitions: Mapping[TopicPartition, bool],
) -> Answers:
    """What a broker says of its own logs, and whether it builds them anew.

    The last replica that can be had stays: there is none to rebuild it from.
    """
    check_session(image, broker_id, broker_epoch)
    context = ElectionContext(image, rules)
    edits = Edits(image)
    errors: dict[TopicPartition, BrokerError | None] = {}
    for at, is_lost in partitions.items():
        try:
            topic, before = edits.find(at)
            able, settings = context.able, context.settings(topic)
            if before.leader == broker_id and not is_lost:
                _check_others(at, before, broker_id, settings)
            after = deprived(before, broker_id, able, settings, reelected=is_lost)
            if after is None:
                raise BrokerError(
                    f"no other replica of {list(before.replicas)} has all that is committed",
                    ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                )
            edits.put(topic, at.partition, after)
            errors[at] = None
        except BrokerError as error:
            errors[at] = error
    return Answers(edits.decisions(), errors)


def _check_others(
    at: TopicPartition, before: PartitionImage, broker_id: int, settings: ElectionSettings
) -> None:
    """A leader that yields has all that is committed: with too few others in sync it must stay eligible."""
    others = [it for it in before.isr if it != broker_id]
    least = settings.least(before)
    if len(others) < least:
        raise BrokerError(
            f"{at} keeps its leader, broker {broker_id}: without it {others} are in sync, and"
            f" min.insync.replicas is {least}",
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )


def deprived(
    before: PartitionImage,
    broker_id: int,
    able: frozenset[int],
    settings: ElectionSettings,
    *,
    reelected: bool = False,
) -> PartitionImage | None:
    """The partition without a replica whose data is not what it was; None where no other has all that is committed."""
    if broker_id not in (*before.isr, *before.elr):
        return settled(before, before, settings, reelected=reelected)
    after = without(before, broker_id, settings, intact=False)
    if not after.isr and not after.elr:
        return None
    after = after._replace(elr=tuple(it for it in after.elr if it != broker_id))
    if before.leader == broker_id or not after.isr:
        after = elected(after, able - {broker_id}, unclean=False)
    return settled(before, after, settings, reelected=reelected)
