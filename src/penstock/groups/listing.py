"""Groups as operators see them: listed, and described member by member."""

from typing import Final

from penstock.groups.assignment import NOTHING, Assignment, by_topic
from penstock.groups.consumer import ConsumerGroup, ConsumerMember
from penstock.groups.machine import Group
from penstock.groups.state import ClassicGroup, State
from penstock.model.errors import ErrorCode
from penstock.wire.messages import consumer_group_describe as described
from penstock.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from penstock.wire.messages.list_groups import ListedGroup

_MESSAGE_FROM: Final = 6  # DescribeGroups says that a group is not there, instead of Dead
_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1


def type_of(group: Group) -> str:
    return "Consumer" if isinstance(group, ConsumerGroup) else "Classic"


def listed(group: Group) -> ListedGroup:
    return ListedGroup(
        group_id=group.id,
        protocol_type=group.protocol_type or "",
        group_state=group.state.value,
        group_type=type_of(group),
    )


def describe_classic(group: Group | None, group_id: str, version: int) -> DescribedGroup:
    if isinstance(group, ClassicGroup):
        return DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            protocol_type=group.protocol_type or "",
            protocol_data=group.protocol or "" if group.state is State.STABLE else "",
            members=_classic_members(group),
        )
    dead = DescribedGroup(group_id=group_id, group_state=State.DEAD.value)
    if version >= _MESSAGE_FROM:
        dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        dead.error_message = f"there is no classic group '{group_id}'"
    return dead


def _classic_members(group: ClassicGroup) -> list[DescribedGroupMember]:
    """Metadata only in a stable group: before that, the protocol it belongs to is not known."""
    stable = group.state is State.STABLE
    return [
        DescribedGroupMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]


def describe_consumer(group: Group | None, group_id: str) -> described.DescribedGroup:
    if not isinstance(group, ConsumerGroup):
        return described.DescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"there is no consumer group '{group_id}'",
        )
    return described.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(),
        members=[_consumer_member(group, member) for member in group.members.values()],
    )


def _consumer_member(group: ConsumerGroup, member: ConsumerMember) -> described.Member:
    profile = member.profile
    return described.Member(
        member_id=member.id,
        instance_id=profile.instance_id,
        rack_id=profile.rack_id,
        member_epoch=member.epoch,
        client_id=profile.client_id,
        client_host=profile.client_host,
        subscribed_topic_names=sorted(profile.topics),
        subscribed_topic_regex=profile.pattern,
        assignment=_assignment(group, member.assigned),
        target_assignment=_assignment(group, group.target.get(member.id, NOTHING)),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(group: ConsumerGroup, assignment: Assignment) -> described.Assignment:
    topics = []
    for topic_id, numbers in by_topic(assignment).items():
        name = group.context.topics.name_of(topic_id)
        if name is not None:
            topics.append(
                described.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=numbers)
            )
    return described.Assignment(topic_partitions=topics)


def matches_filters(group: ListedGroup, states: frozenset[str], types: frozenset[str]) -> bool:
    """Filters are in lower case; an empty one lets everything through."""
    return (not states or group.group_state.lower() in states) and (
        not types or group.group_type.lower() in types
    )
