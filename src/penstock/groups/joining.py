"""JoinGroup to a classic group: who is let in, under which id, and whether it means a rebalance."""

from penstock.groups import entries
from penstock.groups.events import (
    CancelTimer,
    Effect,
    Join,
    Reply,
    SessionExpired,
    SetTimer,
    Write,
)
from penstock.groups.rebalance import (
    complete_if_all_joined,
    joined,
    prepare,
    rebalance_or_complete,
)
from penstock.groups.state import (
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    ClassicGroup,
    Member,
    Protocols,
    State,
)
from penstock.groups.timers import session_key, session_timer
from penstock.model.errors import ErrorCode
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from penstock.wire.messages.sync_group import SyncGroupResponse

_MEMBER_ID_REQUIRED_FROM = 4  # KIP-394
_SKIP_ASSIGNMENT_FROM = 9  # KIP-814


def join(group: ClassicGroup, event: Join, now_ms: int) -> list[Effect]:
    request = event.request
    member_id = request.member_id
    if not _has_room(group, member_id):
        kicked = _kick_out(group, member_id, now_ms)
        return [*kicked, _refuse(event, ErrorCode.GROUP_MAX_SIZE_REACHED, "")]
    if not group.supports(request.protocol_type, protocols_of(request)):
        return [_refuse(event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)]
    if not member_id:
        return _join_nameless(group, event, now_ms)
    if member_id in group.pending and request.group_instance_id is None:
        return _admit(group, event, member_id, now_ms)
    error = group.refusal(member_id, request.group_instance_id)
    if error:
        return [_refuse(event, error, member_id)]
    return _rejoin(group, event, group.members[member_id], now_ms)


def protocols_of(request: JoinGroupRequest) -> Protocols:
    return [(protocol.name, protocol.metadata) for protocol in request.protocols]


def _refuse(event: Join, error: ErrorCode, member_id: str) -> Reply:
    return Reply(event.reply_to, JoinGroupResponse(error_code=error, member_id=member_id))


def _has_room(group: ClassicGroup, member_id: str) -> bool:
    """While a group assembles, places go to those who come first; later, to those who have one."""
    most = group.context.rules.max_size
    known = group.members.get(member_id)
    match group.state:
        case State.PREPARING:
            return (known is not None and known.join is not None) or group.waiting_count < most
        case State.COMPLETING | State.STABLE:
            return known is not None or len(group.members) < most
        case State.EMPTY | State.DEAD:
            return True


def _kick_out(group: ClassicGroup, member_id: str, now_ms: int) -> list[Effect]:
    """It came, or came back, too late for a group that is full: it is awaited no longer."""
    member = group.members.get(member_id)
    if member is not None:
        group.remove(member)
    elif member_id in group.pending:
        group.pending.discard(member_id)
    else:
        return []
    cancelled = CancelTimer(session_key(member_id))
    return [cancelled, *complete_if_all_joined(group, now_ms)]


# Newcomers ---------------------------------------------------------------------------------------


def _join_nameless(group: ClassicGroup, event: Join, now_ms: int) -> list[Effect]:
    instance_id = event.request.group_instance_id
    fresh_id = event.client.fresh_id
    if instance_id is not None:
        holder = group.static.get(instance_id)
        if holder is not None:
            return _replace_static(group, event, group.members[holder], now_ms)
        return _admit(group, event, fresh_id, now_ms)
    if event.client.version < _MEMBER_ID_REQUIRED_FROM:
        return _admit(group, event, fresh_id, now_ms)
    group.pending.add(fresh_id)
    deadline_ms = now_ms + event.request.session_timeout_ms
    return [
        SetTimer(session_key(fresh_id), deadline_ms, SessionExpired(fresh_id)),
        _refuse(event, ErrorCode.MEMBER_ID_REQUIRED, fresh_id),
    ]


def _admit(group: ClassicGroup, event: Join, member_id: str, now_ms: int) -> list[Effect]:
    """A new member. It cannot send heartbeats before its join is answered, so it gets more time."""
    request = event.request
    member = Member(
        member_id,
        instance_id=request.group_instance_id,
        client_id=event.client.id,
        client_host=event.client.host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=protocols_of(request),
    )
    member.is_new = True
    if group.state is State.PREPARING and group.initial:
        group.newcomer = True
    group.add(member, request.protocol_type)
    group.park_join(member, event.reply_to)
    deadline_ms = now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
    timer = SetTimer(session_key(member_id), deadline_ms, SessionExpired(member_id))
    return [timer, *rebalance_or_complete(group, now_ms)]


# Members that come back --------------------------------------------------------------------------


def _rejoin(group: ClassicGroup, event: Join, member: Member, now_ms: int) -> list[Effect]:
    unchanged = member.protocols == protocols_of(event.request)
    match group.state:
        case State.COMPLETING if unchanged:
            return [Reply(event.reply_to, joined(group, member))]  # our first answer was lost
        case State.STABLE if unchanged and member.id != group.leader:
            return [Reply(event.reply_to, joined(group, member))]
        case State.EMPTY | State.DEAD:
            return [_refuse(event, ErrorCode.UNKNOWN_MEMBER_ID, member.id)]
        case _:  # a leader that joins a stable group wants a rebalance: it sees the cluster change
            effects = _update(group, event, member)
            return effects + rebalance_or_complete(group, now_ms)


def _update(group: ClassicGroup, event: Join, member: Member) -> list[Effect]:
    """Take over what the member says of itself now. An older join of its own was given up by it."""
    request = event.request
    effects: list[Effect] = []
    older = group.release_join(member)
    if older is not None:
        again = JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.id)
        effects.append(Reply(older, again))
    group.change_protocols(member, protocols_of(request))
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    group.park_join(member, event.reply_to)
    return effects


def _replace_static(group: ClassicGroup, event: Join, member: Member, now_ms: int) -> list[Effect]:
    """A static member restarted: it takes its own place under a new id, and its old self is fenced."""
    old_leader = group.leader
    effects = _fence(group, member)
    effects.append(CancelTimer(session_key(member.id)))
    group.rename(member, event.client.fresh_id)
    member.client_id, member.client_host = event.client.id, event.client.host
    effects += _update(group, event, member)
    effects.append(session_timer(member, now_ms))
    match group.state:
        case State.STABLE if group.chosen_protocol() == group.protocol:
            return effects + _keep_place(group, event, member, old_leader)
        case State.STABLE | State.COMPLETING:
            # the leader may be computing an assignment for the id that is gone
            return effects + prepare(group, now_ms)
        case _:
            return effects + complete_if_all_joined(group, now_ms)


def _fence(group: ClassicGroup, member: Member) -> list[Effect]:
    effects: list[Effect] = []
    error = ErrorCode.FENCED_INSTANCE_ID
    reply_to = group.release_join(member)
    if reply_to is not None:
        effects.append(Reply(reply_to, JoinGroupResponse(error_code=error, member_id=member.id)))
    if member.sync is not None:
        reply_to, member.sync = member.sync, None
        effects.append(Reply(reply_to, SyncGroupResponse(error_code=error)))
    return effects


def _keep_place(
    group: ClassicGroup, event: Join, member: Member, old_leader: str | None
) -> list[Effect]:
    """No rebalance: write the new id down, and tell the member the generation that goes on.

    A leader must not assign anew. Older clients do so when they see themselves named as leader, so
    they are told the old id, which is nobody's any more; newer ones are told to skip it.
    """
    reply_to = group.release_join(member)
    assert reply_to is not None, "it was parked a moment ago"
    if event.client.version >= _SKIP_ASSIGNMENT_FROM:
        reply = joined(group, member, skip_assignment=member.id == group.leader)
    else:
        reply = joined(group, member)
        reply.members = []
        reply.leader = old_leader or ""
    return [Write([entries.classic_group(group)]), Reply(reply_to, reply)]
