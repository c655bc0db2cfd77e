"""AlterPartition between its wire form and the controller's decisions, both ways."""

from collections.abc import Iterable, Sequence

from penstock.metadata.image import PartitionImage
from penstock.metadata.rules.isr_changes import IsrChange, Member
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicId
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    PartitionData,
    PartitionDataResponse,
    TopicDataResponse,
)


def asked_changes(request: AlterPartitionRequest) -> list[IsrChange]:
    """In the order of topics and partitions: those that share a key are decided together."""
    changes = [
        IsrChange(
            TopicId(topic.topic_id),
            partition.partition_index,
            partition.leader_epoch,
            partition.partition_epoch,
            _members(partition),
            bool(partition.leader_recovery_state),
        )
        for topic in request.topics
        for partition in topic.partitions
    ]
    return sorted(changes, key=lambda change: (change.topic_id, change.partition))


def answer(
    broker_id: int, changes: Sequence[IsrChange], outcomes: Iterable[PartitionImage | BrokerError]
) -> AlterPartitionResponse:
    topics: dict[bytes, TopicDataResponse] = {}
    for change, outcome in zip(changes, outcomes, strict=True):
        topic = topics.setdefault(change.topic_id, TopicDataResponse(topic_id=change.topic_id))
        topic.partitions.append(_answered(broker_id, change.partition, outcome))
    return AlterPartitionResponse(topics=list(topics.values()))


def _members(partition: PartitionData) -> tuple[Member, ...]:
    if partition.new_isr_with_epochs:
        return tuple(Member(it.broker_id, it.broker_epoch) for it in partition.new_isr_with_epochs)
    return tuple(Member(broker_id) for broker_id in partition.new_isr)


def _answered(
    broker_id: int, index: int, outcome: PartitionImage | BrokerError
) -> PartitionDataResponse:
    if isinstance(outcome, BrokerError):
        return PartitionDataResponse(partition_index=index, error_code=outcome.code)
    if outcome.leader != broker_id:
        return PartitionDataResponse(partition_index=index, error_code=ErrorCode.NEW_LEADER_ELECTED)
    return PartitionDataResponse(
        partition_index=index,
        leader_id=outcome.leader,
        leader_epoch=outcome.leader_epoch,
        isr=list(outcome.isr),
        leader_recovery_state=int(outcome.recovering),
        partition_epoch=outcome.partition_epoch,
    )
