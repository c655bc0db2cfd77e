"""How a classic group passes from one generation to the next: prepare, complete, assign.

Each function moves the group and returns what must be done about it, in order.
"""

from typing import Final

from penstock.groups import entries
from penstock.groups.events import (
    CancelTimer,
    Effect,
    InitialDelayOver,
    JoinDeadline,
    Reply,
    SetTimer,
    SyncDeadline,
    Write,
)
from penstock.groups.state import ClassicGroup, Member, State
from penstock.groups.timers import JOIN_TIMER, SYNC_TIMER, session_key, session_timer
from penstock.model.errors import ErrorCode
from penstock.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from penstock.wire.messages.sync_group import SyncGroupResponse

_LEAST_WAIT_MS: Final = 1000  # for static members, none of whom is back: it may go on for long
_MOVABLE: Final = frozenset({State.EMPTY, State.COMPLETING, State.STABLE})


def rebalance_or_complete(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """The membership changed: begin a rebalance, or end the one that waited for just this."""
    if group.state in _MOVABLE:
        return prepare(group, now_ms)
    return complete_if_all_joined(group, now_ms)


def complete_if_all_joined(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """The first rebalance of a group waits for its delay instead."""
    if group.state is not State.PREPARING or group.initial or not group.is_complete:
        return []
    return complete_join(group, now_ms)


def prepare(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """Call everyone back; those who wait for an assignment that will not come are told at once."""
    effects: list[Effect] = []
    if group.state is State.COMPLETING:
        for member in group.members.values():
            member.assignment = b""
        effects += answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
    group.unsynced.clear()
    effects.append(CancelTimer(SYNC_TIMER))
    group.move_to(State.PREPARING, now_ms)
    if group.initial:
        group.newcomer = False
        return effects + _initial_delay(group, now_ms)
    if group.is_complete:
        return effects + complete_join(group, now_ms)
    effects.append(SetTimer(JOIN_TIMER, now_ms + group.rebalance_timeout_ms, JoinDeadline()))
    return effects


def _initial_delay(group: ClassicGroup, now_ms: int) -> list[Effect]:
    delay_ms = group.context.rules.initial_rebalance_delay_ms
    remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    over = InitialDelayOver(delay_ms, remaining_ms)
    return [SetTimer(JOIN_TIMER, now_ms + delay_ms, over)]


def initial_delay_over(group: ClassicGroup, event: InitialDelayOver, now_ms: int) -> list[Effect]:
    """Wait once more if someone came while we waited, but never beyond the rebalance timeout."""
    if group.state is not State.PREPARING:
        return []
    if not group.newcomer or not event.remaining_ms:
        return complete_join(group, now_ms)
    group.newcomer = False
    delay_ms = min(group.context.rules.initial_rebalance_delay_ms, event.remaining_ms)
    if not delay_ms:
        return complete_join(group, now_ms)
    again = InitialDelayOver(delay_ms, max(event.remaining_ms - event.delay_ms, 0))
    return [SetTimer(JOIN_TIMER, now_ms + delay_ms, again)]


def complete_join(group: ClassicGroup, now_ms: int) -> list[Effect]:
    """Close the join: a new generation of those present, and of static members, who may be late."""
    effects: list[Effect] = [CancelTimer(JOIN_TIMER)]
    if group.awaited:
        absent = [m for m in group.members.values() if m.join is None and m.instance_id is None]
        for member in absent:
            group.remove(member)
            effects.append(CancelTimer(session_key(member.id)))
    if group.members and not _elect_leader(group):  # only static members, and none is back
        later = now_ms + max(group.rebalance_timeout_ms, _LEAST_WAIT_MS)
        return [*effects, SetTimer(JOIN_TIMER, later, JoinDeadline())]
    return effects + _next_generation(group, now_ms)


def _elect_leader(group: ClassicGroup) -> bool:
    """The leader must be someone who joined. False if nobody did."""
    if group.leader is not None and group.members[group.leader].join is not None:
        return True
    joined = next((m.id for m in group.members.values() if m.join is not None), None)
    group.leader = joined or group.leader
    return joined is not None


def _next_generation(group: ClassicGroup, now_ms: int) -> list[Effect]:
    group.generation += 1
    group.unsynced.clear()
    if not group.members:
        group.protocol = None
        group.subscribed = group.compute_subscribed()
        group.move_to(State.EMPTY, now_ms)
        return [Write([entries.classic_group(group)])]
    group.protocol = group.chosen_protocol()
    group.subscribed = group.compute_subscribed()
    group.move_to(State.COMPLETING, now_ms)
    effects: list[Effect] = []
    for member in group.members.values():
        reply_to = group.release_join(member)
        if reply_to is not None:
            effects.append(Reply(reply_to, joined(group, member)))
        effects.append(session_timer(member, now_ms))
        member.is_new = False
        group.unsynced.add(member.id)
    deadline = SyncDeadline(group.generation)
    return [*effects, SetTimer(SYNC_TIMER, now_ms + group.rebalance_timeout_ms, deadline)]


def joined(
    group: ClassicGroup, member: Member, *, skip_assignment: bool = False
) -> JoinGroupResponse:
    """What a member learns of the current generation; its leader learns who else is in it."""
    members = []
    if member.id == group.leader:
        members = [
            JoinGroupResponseMember(
                member_id=other.id,
                group_instance_id=other.instance_id,
                metadata=other.metadata(group.protocol),
            )
            for other in group.members.values()
        ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol or "",
        leader=group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member.id,
        members=members,
    )


def assign(group: ClassicGroup, assignments: dict[str, bytes], now_ms: int) -> list[Effect]:
    """The leader has spoken: write the assignment down, then tell everyone who waits."""
    for member in group.members.values():
        member.assignment = assignments.get(member.id, b"")
    group.move_to(State.STABLE, now_ms)
    return [Write([entries.classic_group(group)]), *answer_syncs(group, ErrorCode.NONE, now_ms)]


def answer_syncs(group: ClassicGroup, error: ErrorCode, now_ms: int) -> list[Effect]:
    effects: list[Effect] = []
    for member in group.members.values():
        reply_to, member.sync = member.sync, None
        if reply_to is not None:
            message = SyncGroupResponse(error_code=error) if error else synced(group, member)
            effects += (Reply(reply_to, message), session_timer(member, now_ms))
    return effects


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        assignment=member.assignment,
    )


def sync_deadline(group: ClassicGroup, event: SyncDeadline, now_ms: int) -> list[Effect]:
    """Members that took their place and never asked for their work are removed."""
    if event.generation != group.generation or not group.unsynced:
        return []
    if group.state not in (State.COMPLETING, State.STABLE):
        return []
    effects: list[Effect] = []
    for member_id in sorted(group.unsynced):
        effects += drop(group, group.members[member_id])
    return effects + prepare(group, now_ms)


def drop(group: ClassicGroup, member: Member) -> list[Effect]:
    """Take a member out; whatever it has parked is answered: it may come back as someone new."""
    effects: list[Effect] = []
    reply_to = group.release_join(member)
    if reply_to is not None:
        gone = JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        effects.append(Reply(reply_to, gone))
    if member.sync is not None:
        reply_to, member.sync = member.sync, None
        unknown = SyncGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        effects.append(Reply(reply_to, unknown))
    group.remove(member)
    effects.append(CancelTimer(session_key(member.id)))
    return effects
