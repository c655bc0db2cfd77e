"""What a group is, as records for its log: one function for each kind of record, and the tombstones."""

from collections.abc import Iterable

from penstock.groups.assignment import Assignment, by_topic
from penstock.groups.consumer import ConsumerGroup, ConsumerMember
from penstock.groups.records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    Entry,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    TopicMetadata,
    TopicPartitions,
)
from penstock.groups.state import ClassicGroup

# Classic groups ----------------------------------------------------------------------------------


def classic_group(group: ClassicGroup) -> Entry:
    """The whole group, as it is at this moment, in one record."""
    members = [
        MemberMetadata(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol),
            assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        members=members,
    )
    return Entry(GroupMetadataKey(group=group.id), value)


def no_classic_group(group_id: str) -> Entry:
    return Entry(GroupMetadataKey(group=group_id), None)


# Consumer groups ---------------------------------------------------------------------------------


def epoch(group: ConsumerGroup) -> Entry:
    key = ConsumerGroupMetadataKey(group_id=group.id)
    return Entry(key, ConsumerGroupMetadataValue(epoch=group.epoch))


def topic_shapes(group: ConsumerGroup) -> Entry:
    topics = [
        TopicMetadata(topic_id=shape.id, topic_name=name, num_partitions=shape.partition_count)
        for name, shape in sorted(group.shapes.items())
    ]
    key = ConsumerGroupPartitionMetadataKey(group_id=group.id)
    return Entry(key, ConsumerGroupPartitionMetadataValue(topics=topics))


def profile(group: ConsumerGroup, member: ConsumerMember) -> Entry:
    said = member.profile
    classic = None
    if said.classic is not None:
        classic = ClassicMemberMetadata(
            session_timeout_ms=said.classic.session_timeout_ms,
            supported_protocols=[
                ClassicProtocol(name=name, metadata=metadata)
                for name, metadata in said.classic.protocols
            ],
        )
    value = ConsumerGroupMemberMetadataValue(
        instance_id=said.instance_id,
        rack_id=said.rack_id,
        client_id=said.client_id,
        client_host=said.client_host,
        subscribed_topic_names=sorted(said.topics),
        subscribed_topic_regex=said.pattern,
        rebalance_timeout_ms=said.rebalance_timeout_ms,
        server_assignor=said.assignor,
        classic_member_metadata=classic,
    )
    return Entry(ConsumerGroupMemberMetadataKey(group_id=group.id, member_id=member.id), value)


def assignment_epoch(group: ConsumerGroup) -> Entry:
    value = ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=group.assignment_epoch)
    return Entry(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.id), value)


def target(group: ConsumerGroup, member_id: str) -> Entry:
    partitions = _topic_partitions(group.target[member_id])
    value = ConsumerGroupTargetAssignmentMemberValue(topic_partitions=partitions)
    return Entry(
        ConsumerGroupTargetAssignmentMemberKey(group_id=group.id, member_id=member_id), value
    )


def current(group: ConsumerGroup, member: ConsumerMember) -> Entry:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.phase,
        assigned_partitions=_topic_partitions(member.assigned),
        partitions_pending_revocation=_topic_partitions(member.revoking),
    )
    return Entry(
        ConsumerGroupCurrentMemberAssignmentKey(group_id=group.id, member_id=member.id), value
    )


def pattern(group: ConsumerGroup, text: str) -> Entry:
    topics = group.matches.get(text)
    value = None
    if topics is not None:
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(topics), version=max(group.topics_version, 0)
        )
    return Entry(
        ConsumerGroupRegularExpressionKey(group_id=group.id, regular_expression=text), value
    )


def _topic_partitions(assignment: Assignment) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic_id=topic, partitions=numbers)
        for topic, numbers in by_topic(assignment).items()
    ]


def no_member(group_id: str, member_id: str) -> list[Entry]:
    return [
        Entry(
            ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None
        ),
        Entry(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        Entry(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def whole_consumer_group(group: ConsumerGroup) -> list[Entry]:
    """Everything, for a group that has just become one."""
    members = group.members.values()
    return [
        *(profile(group, member) for member in members),
        epoch(group),
        *(target(group, member.id) for member in members),
        assignment_epoch(group),
        *(current(group, member) for member in members),
    ]


def no_consumer_group(group: ConsumerGroup, members: Iterable[str]) -> list[Entry]:
    """Members first, as Kafka does: a group's epoch is the last thing to go."""
    gone = [entry for member_id in members for entry in no_member(group.id, member_id)]
    patterns = [
        Entry(ConsumerGroupRegularExpressionKey(group_id=group.id, regular_expression=text), None)
        for text in sorted(group.matches)
    ]
    return [
        *gone,
        *patterns,
        Entry(ConsumerGroupTargetAssignmentMetadataKey(group_id=group.id), None),
        Entry(ConsumerGroupPartitionMetadataKey(group_id=group.id), None),
        Entry(ConsumerGroupMetadataKey(group_id=group.id), None),
    ]
