"""The timers of groups: what they are about, when they go off, and what happens then."""

from typing import Final

from penstock.groups.consumer import ConsumerGroup, ConsumerMember, Phase
from penstock.groups.events import (
    CancelTimer,
    Effect,
    MemberDeadline,
    RevocationDeadline,
    SessionExpired,
    SetTimer,
    TimerKey,
)
from penstock.groups.state import Member

JOIN_TIMER: Final[TimerKey] = ("join", "")  # of a classic group that waits for its members
SYNC_TIMER: Final[TimerKey] = ("sync", "")  # and then for their questions
_OF_A_MEMBER: Final = ("session", "revoke", "member-join", "member-sync")


def session_key(member_id: str) -> TimerKey:
    return ("session", member_id)


def session_timer(member: Member, now_ms: int) -> SetTimer:
    """The member was heard of: its session begins anew."""
    return SetTimer(("session", member.id), now_ms + member.session_timeout_ms, member.expiry)


def consumer_session_timer(group: ConsumerGroup, member: ConsumerMember, now_ms: int) -> SetTimer:
    classic = member.profile.classic
    timeout_ms = (
        group.context.times_of(group.id).session_timeout_ms
        if classic is None
        else classic.session_timeout_ms
    )
    return SetTimer(("session", member.id), now_ms + timeout_ms, SessionExpired(member.id))


def revocation_timer(member: ConsumerMember, now_ms: int) -> SetTimer:
    at_ms = now_ms + member.profile.rebalance_timeout_ms
    return SetTimer(("revoke", member.id), at_ms, RevocationDeadline(member.id, member.epoch))


def rejoin_timer(member: ConsumerMember, now_ms: int) -> SetTimer:
    """Told to rejoin, it has its rebalance timeout for it; being told again gives it no more."""
    at_ms = now_ms + member.profile.rebalance_timeout_ms
    event = MemberDeadline(member.id)
    return SetTimer(("member-join", member.id), at_ms, event, keep_earlier=True)


def resync_timer(member: ConsumerMember, now_ms: int) -> SetTimer:
    at_ms = now_ms + member.profile.rebalance_timeout_ms
    return SetTimer(("member-sync", member.id), at_ms, MemberDeadline(member.id))


def restart_timers(group: ConsumerGroup, now_ms: int) -> list[Effect]:
    """Everyone gets a whole session to show themselves."""
    effects: list[Effect] = []
    for member in group.members.values():
        effects.append(consumer_session_timer(group, member, now_ms))
        if member.phase is Phase.REVOKING and not member.is_classic:
            effects.append(revocation_timer(member, now_ms))
    return effects


def cancel_timers(member_id: str) -> list[Effect]:
    return [CancelTimer((kind, member_id)) for kind in _OF_A_MEMBER]
