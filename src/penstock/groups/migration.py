"""Groups that change their kind while they live: classic to consumer, and back (KIP-848).

A classic group becomes a consumer group when the first member with the new protocol joins it; it becomes
classic again when the last one of those is gone.
"""

from typing import TYPE_CHECKING

from penstock.groups import entries
from penstock.groups.assignment import NOTHING, Assignment, TopicIndex
from penstock.groups.consumer import (
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    Profile,
)
from penstock.groups.events import (
    CancelTimer,
    Effect,
    Reply,
    Write,
)
from penstock.groups.protocol import (
    CONSUMER_PROTOCOL,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    subscription_version,
)
from penstock.groups.rebalance import prepare
from penstock.groups.state import ClassicGroup, Member, State
from penstock.groups.timers import (
    JOIN_TIMER,
    SYNC_TIMER,
    cancel_timers,
    restart_timers,
    session_key,
    session_timer,
)
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupResponse
from penstock.wire.messages.sync_group import SyncGroupResponse
from penstock.wire.primitives import MalformedMessage

if TYPE_CHECKING:
    from penstock.groups.machine import Group

# Classic to consumer -----------------------------------------------------------------------------


def upgrade(
    classic: ClassicGroup, request: ConsumerGroupHeartbeatRequest, now_ms: int
) -> tuple[ConsumerGroup, list[Effect]]:
    """The consumer group that it becomes, ready for the member that joins. Raises if it cannot."""
    _check_upgrade(classic, request)
    group = _to_consumer(classic)
    written = [entries.no_classic_group(classic.id)]
    if classic.members:
        written += entries.whole_consumer_group(group)
    return group, [*_dismiss(classic), Write(written), *restart_timers(group, now_ms)]


def _check_upgrade(classic: ClassicGroup, request: ConsumerGroupHeartbeatRequest) -> None:
    if request.member_epoch != 0:
        raise _not_found(f"group '{classic.id}' is a classic group")
    if classic.members and not classic.is_consumer:
        raise _not_found(
            f"group '{classic.id}' is in use with protocol type '{classic.protocol_type}'"
        )
    most = classic.context.rules.consumer_max_size
    if len(classic.members) >= most:
        raise BrokerError(
            f"group '{classic.id}' has {len(classic.members)} members; "
            f"the limit is {most} (group.consumer.max.size)",
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        )


def _not_found(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.GROUP_ID_NOT_FOUND)


def _dismiss(classic: ClassicGroup) -> list[Effect]:
    """Whoever waits rejoins, and finds a consumer group."""
    again = ErrorCode.REBALANCE_IN_PROGRESS
    effects: list[Effect] = [CancelTimer(JOIN_TIMER), CancelTimer(SYNC_TIMER)]
    effects += [CancelTimer(session_key(member_id)) for member_id in sorted(classic.pending)]
    for member in classic.members.values():
        reply_to = classic.release_join(member)
        if reply_to is not None:
            join = JoinGroupResponse(error_code=again, member_id=member.id)
            effects.append(Reply(reply_to, join))
        if member.sync is not None:
            reply_to, member.sync = member.sync, None
            effects.append(Reply(reply_to, SyncGroupResponse(error_code=again)))
    return effects


def _to_consumer(classic: ClassicGroup) -> ConsumerGroup:
    """The same members with the same work, at an epoch that is the generation."""
    group = ConsumerGroup(classic.id, classic.context)
    group.epoch = group.assignment_epoch = classic.generation
    try:
        for old in classic.members.values():
            member = _consumer_member(classic, old)
            group.put(member)
            group.claim(member)
            group.target[member.id] = member.assigned
    except MalformedMessage as error:
        raise _not_found(
            f"group '{classic.id}' cannot be converted: what its members say cannot be read ({error})"
        ) from error
    return group


def _consumer_member(classic: ClassicGroup, old: Member) -> ConsumerMember:
    protocol = classic.protocol or old.protocols[0][0]
    subscription = decode_subscription(old.metadata(protocol))
    profile = Profile(
        instance_id=old.instance_id,
        rack_id=subscription.rack_id,
        client_id=old.client_id,
        client_host=old.client_host,
        rebalance_timeout_ms=old.rebalance_timeout_ms,
        topics=frozenset(subscription.topics),
        classic=ClassicSide(old.session_timeout_ms, old.protocols),
    )
    member = ConsumerMember(old.id, profile)
    member.epoch = member.previous_epoch = classic.generation
    member.assigned = _partitions(classic, old.assignment)
    return member


def _partitions(classic: ClassicGroup, assignment: bytes) -> Assignment:
    found: set[TopicIndex] = set()
    for topic, numbers in decode_assignment(assignment).items():
        shape = classic.context.topics.get(topic)
        if shape is not None:
            found.update((shape.id, number) for number in numbers)
    return frozenset(found)


# Consumer to classic -----------------------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, leaving: list[ConsumerMember]) -> bool:
    """Whether those who stay all speak the classic protocol, and the last who did not is leaving."""
    gone = {member.id for member in leaving}
    staying = [m for m in group.members.values() if m.id not in gone]
    return (
        0 < len(staying) <= group.context.rules.max_size
        and all(member.is_classic for member in staying)
        and (not leaving or any(not member.is_classic for member in leaving))
    )


def downgrade(
    group: ConsumerGroup,
    leaving: list[ConsumerMember],
    now_ms: int,
    *,
    rebalance: bool = True,
) -> tuple["Group", list[Effect]]:
    effects: list[Effect] = []
    everyone = list(group.members)
    for member_id in everyone:
        effects += cancel_timers(member_id)
    for member in leaving:
        group.remove(member)
    effects.append(Write(entries.no_consumer_group(group, everyone)))
    classic = _to_classic(group, now_ms)
    effects += [session_timer(member, now_ms) for member in classic.members.values()]
    effects.append(Write([entries.classic_group(classic)]))
    if rebalance:
        effects += prepare(classic, now_ms)
    return classic, effects


def _to_classic(group: ConsumerGroup, now_ms: int) -> ClassicGroup:
    classic = ClassicGroup(group.id, group.context, now_ms=now_ms)
    for old in group.members.values():
        side = old.profile.classic
        assert side is not None, "all who stay speak the classic protocol"
        member = Member(
            old.id,
            instance_id=old.profile.instance_id,
            client_id=old.profile.client_id,
            client_host=old.profile.client_host,
            session_timeout_ms=side.session_timeout_ms,
            rebalance_timeout_ms=old.profile.rebalance_timeout_ms,
            protocols=side.protocols,
        )
        classic.add(member, CONSUMER_PROTOCOL)
    classic.restore(State.STABLE, group.epoch)
    classic.protocol = classic.chosen_protocol()
    classic.subscribed = classic.compute_subscribed()
    for member in classic.members.values():
        member.assignment = _assignment(group, member, classic.protocol)
    return classic


def _assignment(group: ConsumerGroup, member: Member, protocol: str) -> bytes:
    named: dict[str, list[int]] = {}
    for topic_id, number in group.target.get(member.id, NOTHING):
        name = group.context.topics.name_of(topic_id)
        if name is not None:
            named.setdefault(name, []).append(number)
    return encode_assignment(named, subscription_version(member.metadata(protocol)))
