"""Members that still speak the classic protocol in a consumer group: live migration (KIP-848).

They join, sync and send heartbeats as ever; generation means member epoch, nobody is leader, and a
rebalance is something that happens to one member at a time.
"""

from typing import TYPE_CHECKING

from penstock.groups import entries, migration
from penstock.groups.assignment import Assignment, TopicIndex, by_topic
from penstock.groups.consumer import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    Phase,
    Profile,
)
from penstock.groups.events import (
    CancelTimer,
    Effect,
    Heartbeat,
    Join,
    Leave,
    Reply,
    Sync,
    Write,
    sees_all,
)
from penstock.groups.heartbeats import (
    advance,
    check_room,
    fenced_instance,
    remove,
    replace_static,
    unknown_member,
)
from penstock.groups.joining import protocols_of
from penstock.groups.protocol import (
    CONSUMER_PROTOCOL,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from penstock.groups.reconcile import waits_for_others
from penstock.groups.records import Entry
from penstock.groups.subscriptions import refresh
from penstock.groups.timers import consumer_session_timer, rejoin_timer, resync_timer
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.messages.leave_group import (
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from penstock.wire.messages.sync_group import SyncGroupResponse
from penstock.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from penstock.groups.machine import Group

_MEMBER_ID_REQUIRED_FROM = 4


# Join --------------------------------------------------------------------------------------------


def join(group: ConsumerGroup, event: Join, now_ms: int) -> tuple["Group", list[Effect]]:
    request = event.request
    try:
        subscription = _check_join(group, request)
        nameless = not request.member_id and request.group_instance_id is None
        if nameless and event.client.version >= _MEMBER_ID_REQUIRED_FROM:
            raise BrokerError("join again with this id", ErrorCode.MEMBER_ID_REQUIRED)
        return _join(group, event, subscription, now_ms)
    except BrokerError as error:
        told = event.client.fresh_id if error.code is ErrorCode.MEMBER_ID_REQUIRED else ""
        response = JoinGroupResponse(error_code=error.code, member_id=request.member_id or told)
        return group, [Reply(event.reply_to, response)]


def _check_join(group: ConsumerGroup, request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    check_room(group, request.member_id)
    classic_count, support = group.classic_protocol_counts()
    names = {protocol.name for protocol in request.protocols}
    common = any(support.get(name, 0) == classic_count for name in names)
    if request.protocol_type != CONSUMER_PROTOCOL or not common:
        raise BrokerError(
            f"group '{group.id}' has members with other protocols than {', '.join(sorted(names))}",
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        )
    try:
        return decode_subscription(request.protocols[0].metadata)
    except MalformedMessage as error:
        raise BrokerError(str(error), ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error


def _join(
    group: ConsumerGroup, event: Join, subscription: ConsumerProtocolSubscription, now_ms: int
) -> tuple["Group", list[Effect]]:
    request = event.request
    holder = group.static_member(request.group_instance_id)
    replaced = None if holder is None or request.member_id else holder
    member, effects, written = _find_or_admit(group, event, holder)
    said = _profile_of(member.profile, event, subscription)
    changed = member.is_new or said.topics != member.profile.topics
    if member.is_new or said != member.profile:
        member.profile = said
        group.put(member)
        written.append(entries.profile(group, member))
    written += refresh(group, now_ms, changed=changed, may_see=sees_all)
    effects += advance(group, member, _owned(group, subscription), written, now_ms)
    effects.append(CancelTimer(("revoke", member.id)))
    response = JoinGroupResponse(
        generation_id=member.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=request.protocols[0].name,
        member_id=member.id,
    )
    if replaced is not None and migration.can_downgrade(group, []):
        effects.append(Write(written))
        classic, more = migration.downgrade(group, [], now_ms, rebalance=False)
        return classic, [*effects, *more, Reply(event.reply_to, response)]
    effects += (
        CancelTimer(("member-join", member.id)),
        consumer_session_timer(group, member, now_ms),
        resync_timer(member, now_ms),
        Write(written),
        Reply(event.reply_to, response),
    )
    return group, effects


def _find_or_admit(
    group: ConsumerGroup, event: Join, holder: ConsumerMember | None
) -> tuple[ConsumerMember, list[Effect], list[Entry]]:
    request = event.request
    if request.group_instance_id is not None and request.member_id:
        if holder is None:
            raise unknown_member(f"instance id '{request.group_instance_id}'", group)
        if holder.id != request.member_id:
            raise fenced_instance(holder)
        return holder, [], []
    member_id = request.member_id or event.client.fresh_id
    if holder is not None:
        return replace_static(group, holder, member_id)
    member = group.members.get(member_id)
    if member is None:
        member = ConsumerMember(member_id)
        group.put(member)
    return member, [], []


def _profile_of(known: Profile, event: Join, subscription: ConsumerProtocolSubscription) -> Profile:
    request = event.request
    instance_id = request.group_instance_id
    return Profile(
        instance_id=known.instance_id if instance_id is None else instance_id,
        rack_id=subscription.rack_id or known.rack_id,
        client_id=event.client.id,
        client_host=event.client.host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        assignor=known.assignor,
        topics=frozenset(subscription.topics),
        pattern=None,
        classic=ClassicSide(request.session_timeout_ms, protocols_of(request)),
    )


def _owned(group: ConsumerGroup, subscription: ConsumerProtocolSubscription) -> Assignment:
    """By topic id; of topics that are gone nobody can own anything."""
    owned: set[TopicIndex] = set()
    for topic in subscription.owned_partitions:
        shape = group.context.topics.get(topic.topic)
        if shape is not None:
            owned.update((shape.id, number) for number in topic.partitions)
    return frozenset(owned)


# Sync and heartbeat ------------------------------------------------------------------------------


def sync(group: ConsumerGroup, event: Sync, now_ms: int) -> list[Effect]:
    request = event.request
    try:
        member, classic = _speaker(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        name, metadata = classic.protocols[0]
        if request.protocol_type not in (None, CONSUMER_PROTOCOL) or request.protocol_name not in (
            None,
            name,
        ):
            raise BrokerError("another protocol", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    except BrokerError as error:
        return [Reply(event.reply_to, SyncGroupResponse(error_code=error.code))]
    if group.epoch > member.epoch and member.phase is not Phase.REVOKING:
        again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        return [rejoin_timer(member, now_ms), Reply(event.reply_to, again)]
    response = SyncGroupResponse(
        protocol_type=CONSUMER_PROTOCOL,
        protocol_name=name,
        assignment=encode_assignment(
            by_name(group, member.assigned), subscription_version(metadata)
        ),
    )
    return [
        CancelTimer(("member-sync", member.id)),
        consumer_session_timer(group, member, now_ms),
        Reply(event.reply_to, response),
    ]


def by_name(group: ConsumerGroup, assignment: Assignment) -> dict[str, list[int]]:
    """By topic name; partitions of deleted topics are left out."""
    named = {}
    for topic_id, numbers in by_topic(assignment).items():
        name = group.context.topics.name_of(topic_id)
        if name is not None:
            named[name] = numbers
    return named


def heartbeat(group: ConsumerGroup, event: Heartbeat, now_ms: int) -> list[Effect]:
    """Told to rejoin when it is behind, must give something up, or could have more."""
    request = event.request
    try:
        member, _ = _speaker(group, request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
    except BrokerError as error:
        return [Reply(event.reply_to, HeartbeatResponse(error_code=error.code))]
    effects: list[Effect] = [consumer_session_timer(group, member, now_ms)]
    code = ErrorCode.NONE
    if (
        member.epoch < group.epoch
        or group.topics_version != group.context.topics.version
        or member.phase is Phase.REVOKING
        or (member.phase is Phase.WAITING and not waits_for_others(group, member))
    ):
        code = ErrorCode.REBALANCE_IN_PROGRESS
        effects.append(rejoin_timer(member, now_ms))
    return [*effects, Reply(event.reply_to, HeartbeatResponse(error_code=code))]


def _speaker(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicSide]:
    if instance_id is not None:
        holder = group.static_member(instance_id)
        if holder is not None and holder.id != member_id:
            raise fenced_instance(holder)
    member = group.members.get(member_id)
    if member is None or member.profile.classic is None:
        raise unknown_member(f"classic member '{member_id}'", group)
    return member, member.profile.classic


def _check_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.epoch:
        raise BrokerError(
            f"member '{member.id}' is at epoch {member.epoch}, not {generation}",
            ErrorCode.ILLEGAL_GENERATION,
        )


# Leave -------------------------------------------------------------------------------------------


def leave(group: ConsumerGroup, event: Leave, now_ms: int) -> tuple["Group", list[Effect]]:
    leaving: dict[str, ConsumerMember] = {}
    responses = []
    for identity in event.request.members:
        code = ErrorCode.NONE
        try:
            member = _leaver(group, identity)
            leaving[member.id] = member
        except BrokerError as error:
            code = error.code
        responses.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=code,
            )
        )
    left: Group = group
    effects: list[Effect] = []
    if leaving:
        left, effects = remove(group, list(leaving.values()), now_ms)
    return left, [*effects, Reply(event.reply_to, LeaveGroupResponse(members=responses))]


def _leaver(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        holder = group.static_member(identity.group_instance_id)
        member_id = "" if holder is None else holder.id
    return _speaker(group, member_id, identity.group_instance_id)[0]
