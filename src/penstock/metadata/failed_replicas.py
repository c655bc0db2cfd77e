"""Replicas whose logs are damaged: out of the ISR and of the ELR at once, so that they never lead (L3)."""

from collections.abc import Iterable

from penstock.metadata.decisions import Rules
from penstock.metadata.image import ClusterImage
from penstock.metadata.isr_changes import check_session
from penstock.metadata.partition_edits import Answers, Edits
from penstock.metadata.partition_rules import Electorate, Law, elected, settled, without
from penstock.metadata.values import PartitionImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition


def fail_replicas(
    image: ClusterImage,
    rules: Rules,
    broker_id: int,
    broker_epoch: int,
    partitions: Iterable[TopicPartition],
) -> Answers:
    """What a broker says of its own logs. The last replica that can be had stays: there is none to rebuild it from."""
    check_session(image, broker_id, broker_epoch)
    electorate = Electorate(image, rules)
    edits = Edits(image)
    errors: dict[TopicPartition, BrokerError | None] = {}
    for at in partitions:
        try:
            topic, before = edits.find(at)
            law = electorate.law(topic)
            edits.put(topic, at.partition, _without(before, broker_id, electorate, law))
            errors[at] = None
        except BrokerError as error:
            errors[at] = error
    return Answers(edits.decisions(), errors)


def _without(
    before: PartitionImage, broker_id: int, electorate: Electorate, law: Law
) -> PartitionImage:
    after = deprived(before, broker_id, electorate.able, law)
    if after is None:
        raise BrokerError(
            f"no other replica of {list(before.replicas)} has all that is committed",
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        )
    return after


def deprived(
    before: PartitionImage, broker_id: int, able: frozenset[int], law: Law
) -> PartitionImage | None:
    """The partition without a replica whose data is not what it was; None where no other has all that is committed."""
    if broker_id not in (*before.isr, *before.elr):
        return before
    after = without(before, broker_id, law, intact=False)
    if not after.isr and not after.elr:
        return None
    after = after._replace(elr=tuple(it for it in after.elr if it != broker_id))
    if before.leader == broker_id or not after.isr:
        after = elected(after, able - {broker_id}, unclean=False)
    return settled(before, after, law)
