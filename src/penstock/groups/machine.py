"""The group protocol as one function: step(group, event, now_ms). `step` chooses, helpers compute.

Nothing here does I/O, so a test is a list of events, and a crash between any two of them is a test too.
Groups are changed in place; when one becomes a group of the other kind, it is another object.
"""

from typing import TypeAlias, assert_never

from penstock.groups import bridge, heartbeats, migration
from penstock.groups.consumer import ConsumerGroup
from penstock.groups.events import (
    CancelTimer,
    ConsumerHeartbeat,
    Effect,
    Event,
    Heartbeat,
    InitialDelayOver,
    Join,
    JoinDeadline,
    Leave,
    Loaded,
    MemberDeadline,
    Reply,
    RevocationDeadline,
    SessionExpired,
    Sync,
    SyncDeadline,
    TimeEvent,
)
from penstock.groups.joining import join
from penstock.groups.rebalance import (
    assign,
    complete_if_all_joined,
    complete_join,
    drop,
    initial_delay_over,
    prepare,
    rebalance_or_complete,
    sync_deadline,
    synced,
)
from penstock.groups.state import ClassicGroup, State
from penstock.groups.subscriptions import recognise
from penstock.groups.timers import SYNC_TIMER, restart_timers, session_key, session_timer
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.leave_group import (
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from penstock.wire.messages.sync_group import SyncGroupResponse

Group: TypeAlias = ClassicGroup | ConsumerGroup


def step(group: Group, event: Event, now_ms: int) -> tuple[Group, list[Effect]]:
    """What the group becomes after `event`, and what must be done about it, in order."""
    if isinstance(group, ConsumerGroup):
        return _step_consumer(group, event, now_ms)
    match event:
        case Heartbeat():
            return group, _heartbeat(group, event, now_ms)
        case Join():
            return group, join(group, event, now_ms)
        case Sync():
            return group, _sync(group, event, now_ms)
        case Leave():
            return group, _leave(group, event, now_ms)
        case ConsumerHeartbeat():
            return _upgrade(group, event, now_ms)
        case _:
            return group, _pass_time(group, event, now_ms)


def _pass_time(group: ClassicGroup, event: TimeEvent, now_ms: int) -> list[Effect]:
    match event:
        case SessionExpired():
            return _session_expired(group, event, now_ms)
        case InitialDelayOver():
            return initial_delay_over(group, event, now_ms)
        case JoinDeadline():
            return complete_join(group, now_ms) if group.state is State.PREPARING else []
        case SyncDeadline():
            return sync_deadline(group, event, now_ms)
        case RevocationDeadline() | MemberDeadline():
            return []  # of the consumer group that this one was
        case Loaded():
            return _loaded(group, now_ms)
        case unreachable:
            assert_never(unreachable)


def _upgrade(
    classic: ClassicGroup, event: ConsumerHeartbeat, now_ms: int
) -> tuple[Group, list[Effect]]:
    """A member with the new protocol joins a classic group, which becomes a consumer group."""
    try:
        group, effects = migration.upgrade(classic, event.request, now_ms)
    except BrokerError as error:
        return classic, [Reply(event.reply_to, heartbeats.refused(error))]
    left, more = heartbeats.heartbeat(group, event, now_ms)
    return left, effects + more


def _step_consumer(group: ConsumerGroup, event: Event, now_ms: int) -> tuple[Group, list[Effect]]:
    match event:
        case ConsumerHeartbeat():
            return heartbeats.heartbeat(group, event, now_ms)
        case Heartbeat():
            return group, bridge.heartbeat(group, event, now_ms)
        case Join():
            return bridge.join(group, event, now_ms)
        case Sync():
            return group, bridge.sync(group, event, now_ms)
        case Leave():
            return bridge.leave(group, event, now_ms)
        case SessionExpired() | MemberDeadline():
            return heartbeats.remove_silent(group, event.member, now_ms)
        case RevocationDeadline():
            return heartbeats.revocation_deadline(group, event, now_ms)
        case Loaded():
            recognise(group)
            return group, restart_timers(group, now_ms)
        case InitialDelayOver() | JoinDeadline() | SyncDeadline():
            return group, []  # of the classic group that this one was
        case unreachable:
            assert_never(unreachable)


def _heartbeat(group: ClassicGroup, event: Heartbeat, now_ms: int) -> list[Effect]:
    request = event.request
    error = group.refusal(request.member_id, request.group_instance_id)
    if not error and request.generation_id != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    if error:
        return [Reply(event.reply_to, HeartbeatResponse(error_code=error))]
    if group.state is State.PREPARING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    member = group.members[request.member_id]
    return [
        session_timer(member, now_ms),
        Reply(event.reply_to, HeartbeatResponse(error_code=error)),
    ]


def _sync(group: ClassicGroup, event: Sync, now_ms: int) -> list[Effect]:
    request = event.request
    error = _sync_refusal(group, event)
    if not error and group.state is State.PREPARING:
        error = ErrorCode.REBALANCE_IN_PROGRESS
    if error:
        return [Reply(event.reply_to, SyncGroupResponse(error_code=error))]
    member = group.members[request.member_id]
    group.unsynced.discard(member.id)
    effects: list[Effect] = [] if group.unsynced else [CancelTimer(SYNC_TIMER)]
    if group.state is State.STABLE:
        return [
            *effects,
            session_timer(member, now_ms),
            Reply(event.reply_to, synced(group, member)),
        ]
    older, member.sync = member.sync, event.reply_to
    if older is not None:
        again = SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS)
        effects.append(Reply(older, again))
    if member.id == group.leader:
        assignments = {given.member_id: given.assignment for given in request.assignments}
        effects += assign(group, assignments, now_ms)
    return effects


def _sync_refusal(group: ClassicGroup, event: Sync) -> ErrorCode:
    request = event.request
    error = group.refusal(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or (
        group.protocol is not None and request.protocol_name not in (None, group.protocol)
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.NONE


def _leave(group: ClassicGroup, event: Leave, now_ms: int) -> list[Effect]:
    """Members leave, or are removed by their instance id. One rebalance for all of them."""
    effects: list[Effect] = []
    responses = []
    for identity in event.request.members:
        error = _leave_one(group, identity, effects)
        responses.append(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=error,
            )
        )
    if any(not response.error_code for response in responses):
        if group.state in (State.STABLE, State.COMPLETING):
            effects += rebalance_or_complete(group, now_ms)
        else:
            effects += complete_if_all_joined(group, now_ms)
    return [*effects, Reply(event.reply_to, LeaveGroupResponse(members=responses))]


def _leave_one(group: ClassicGroup, identity: MemberIdentity, effects: list[Effect]) -> ErrorCode:
    member_id = identity.member_id
    if not member_id and identity.group_instance_id is not None:
        member_id = group.static.get(identity.group_instance_id, "")
    if member_id in group.pending:
        group.pending.discard(member_id)
        effects.append(CancelTimer(session_key(member_id)))
        return ErrorCode.NONE
    error = group.refusal(member_id, identity.group_instance_id)
    if not error:
        effects += drop(group, group.members[member_id])
    return error


def _session_expired(group: ClassicGroup, event: SessionExpired, now_ms: int) -> list[Effect]:
    if event.member in group.pending:
        group.pending.discard(event.member)
        return complete_if_all_joined(group, now_ms)
    member = group.members.get(event.member)
    if member is None or member.is_excused:
        return []
    effects = drop(group, member)
    if group.state in (State.STABLE, State.COMPLETING):
        return effects + prepare(group, now_ms)
    return effects + complete_if_all_joined(group, now_ms)


def _loaded(group: ClassicGroup, now_ms: int) -> list[Effect]:
    effects: list[Effect] = [session_timer(m, now_ms) for m in group.members.values()]
    if len(group.members) > group.context.rules.max_size:  # the limit was lowered
        effects += prepare(group, now_ms)
    return effects
