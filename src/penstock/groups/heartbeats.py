"""ConsumerGroupHeartbeat: joining, living and leaving of members that speak the consumer protocol (KIP-848).

A heartbeat that changes nothing costs the same in a group of one and of a thousand.
"""

from typing import TYPE_CHECKING, Final

from penstock.groups import entries, migration
from penstock.groups.assignment import NOTHING, Assignment, by_topic
from penstock.groups.consumer import (
    LEAVING,
    LEAVING_FOR_A_WHILE,
    ConsumerGroup,
    ConsumerMember,
    Phase,
    Profile,
)
from penstock.groups.events import (
    CancelTimer,
    ConsumerHeartbeat,
    Effect,
    Reply,
    RevocationDeadline,
    Write,
)
from penstock.groups.patterns import Pattern
from penstock.groups.reconcile import reconcile
from penstock.groups.records import Entry
from penstock.groups.state import Rules
from penstock.groups.subscriptions import member_gone, refresh
from penstock.groups.timers import cancel_timers, consumer_session_timer, revocation_timer
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import (
    Assignment as AssignmentMessage,
)
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from penstock.groups.machine import Group

_CLIENT_NAMES_ITSELF_FROM: Final = 1  # KIP-1082
_AS_BEFORE: Final = -1  # a timeout that is left out


# What is asked -----------------------------------------------------------------------------------


def check(request: ConsumerGroupHeartbeatRequest, version: int, rules: Rules) -> None:
    """Raise if the request makes no sense, whatever the group is."""
    for name in ("instance_id", "rack_id"):
        value = getattr(request, name)
        if value is not None and not value.strip():
            raise _invalid(f"{name} is empty; leave it out or give one")
    joins = request.member_epoch == 0
    if not request.member_id and (not joins or version >= _CLIENT_NAMES_ITSELF_FROM):
        raise _invalid("member_id is empty; a member chooses its id and keeps it")
    timeout_ms = request.rebalance_timeout_ms
    if request.member_epoch >= 0 and timeout_ms < 1 and timeout_ms != _AS_BEFORE:
        raise _invalid(
            f"rebalance_timeout_ms is {timeout_ms}; nobody can give up a partition in that time"
        )
    if joins:
        _check_join(request)
    elif request.member_epoch == LEAVING_FOR_A_WHILE and request.instance_id is None:
        raise _invalid("only a member with an instance_id can leave for a while (epoch -2)")
    elif request.member_epoch < LEAVING_FOR_A_WHILE:
        raise _invalid(f"member_epoch {request.member_epoch} has no meaning")
    if (
        request.server_assignor is not None
        and request.server_assignor not in rules.consumer_assignors
    ):
        raise BrokerError(
            f"assignor '{request.server_assignor}' is not offered; "
            f"choose from {', '.join(rules.consumer_assignors)}",
            ErrorCode.UNSUPPORTED_ASSIGNOR,
        )
    if request.subscribed_topic_regex:
        Pattern(request.subscribed_topic_regex)


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == _AS_BEFORE:
        raise _invalid("rebalance_timeout_ms is needed when joining")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("topic_partitions must be there and empty when joining")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("subscribed_topic_names or subscribed_topic_regex is needed when joining")


def _invalid(message: str) -> BrokerError:
    return BrokerError(message, ErrorCode.INVALID_REQUEST)


# A member is heard of ----------------------------------------------------------------------------


def heartbeat(
    group: ConsumerGroup, event: ConsumerHeartbeat, now_ms: int
) -> tuple["Group", list[Effect]]:
    try:
        if event.request.member_epoch in (LEAVING, LEAVING_FOR_A_WHILE):
            return _leave(group, event, now_ms)
        return group, _beat(group, event, now_ms)
    except BrokerError as error:
        return group, [Reply(event.reply_to, refused(error))]


def refused(error: BrokerError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=str(error))


def _beat(group: ConsumerGroup, event: ConsumerHeartbeat, now_ms: int) -> list[Effect]:
    request = event.request
    member, effects, written = _find_or_admit(group, event)
    said = _profile_of(member.profile, event)
    changed = member.is_new
    if member.is_new or said != member.profile:
        known = (member.profile.topics, member.profile.pattern)
        changed = changed or (said.topics, said.pattern) != known
        member.profile = said
        group.put(member)
        written.append(entries.profile(group, member))
    written += refresh(group, now_ms, changed=changed, may_see=event.may_see)
    before = member.assigned
    effects += advance(group, member, _owned(request), written, now_ms)
    effects.append(consumer_session_timer(group, member, now_ms))
    if written:
        effects.append(Write(written))
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=group.heartbeat_interval_ms(member, now_ms),
    )
    if _is_full(request) or member.assigned != before:
        response.assignment = _assignment_message(member.assigned)
    return [*effects, Reply(event.reply_to, response)]


def _is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """The member says everything, as it does after an error: it wants to hear everything too."""
    if request.member_epoch == 0:
        return True
    subscribes = (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
    return (
        subscribes
        and request.rebalance_timeout_ms != _AS_BEFORE
        and request.topic_partitions is not None
    )


def advance(
    group: ConsumerGroup,
    member: ConsumerMember,
    owned: Assignment | None,
    written: list[Entry],
    now_ms: int,
) -> list[Effect]:
    """Reconcile the member; while it has to give something up, there is a time limit for that."""
    if not reconcile(group, member, owned):
        return []
    written.append(entries.current(group, member))
    if member.is_classic:
        return []
    if member.phase is Phase.REVOKING:
        return [revocation_timer(member, now_ms)]
    return [CancelTimer(("revoke", member.id))]


def _profile_of(known: Profile, event: ConsumerHeartbeat) -> Profile:
    """What the member says of itself; what it leaves out is as before."""
    request = event.request
    names, pattern = request.subscribed_topic_names, request.subscribed_topic_regex
    timeout_ms = request.rebalance_timeout_ms
    return Profile(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=event.client.id,
        client_host=event.client.host,
        rebalance_timeout_ms=known.rebalance_timeout_ms if timeout_ms == _AS_BEFORE else timeout_ms,
        assignor=known.assignor if request.server_assignor is None else request.server_assignor,
        topics=known.topics if names is None else frozenset(names),
        pattern=known.pattern if pattern is None else (pattern or None),
        classic=None,
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return frozenset(
        (topic.topic_id, number)
        for topic in request.topic_partitions
        for number in topic.partitions
    )


def _assignment_message(assigned: Assignment) -> AssignmentMessage:
    return AssignmentMessage(
        topic_partitions=[
            TopicPartitions(topic_id=topic, partitions=numbers)
            for topic, numbers in by_topic(assigned).items()
        ]
    )


# Who it is ---------------------------------------------------------------------------------------


def _find_or_admit(
    group: ConsumerGroup, event: ConsumerHeartbeat
) -> tuple[ConsumerMember, list[Effect], list[Entry]]:
    """The member that speaks, known or new. Raises before anything has changed."""
    request = event.request
    joins = request.member_epoch == 0
    member_id = request.member_id or event.client.fresh_id
    check_room(group, member_id)
    holder = group.static_member(request.instance_id)
    if request.instance_id is not None and holder is None and not joins:
        raise unknown_member(f"instance id '{request.instance_id}'", group)
    if holder is not None and holder.id != member_id:
        if not joins:
            raise fenced_instance(holder)
        if not holder.is_classic and holder.epoch != LEAVING_FOR_A_WHILE:
            raise BrokerError(
                f"instance id '{request.instance_id}' is in use by member '{holder.id}'",
                ErrorCode.UNRELEASED_INSTANCE_ID,
            )
        return replace_static(group, holder, member_id)
    member = group.members.get(member_id)
    if member is None:
        if not joins:
            raise unknown_member(f"member '{member_id}'", group)
        member = ConsumerMember(member_id)
        group.put(member)
        return member, [], []
    if not joins:
        _check_epoch(member, request)
    elif member.epoch == LEAVING_FOR_A_WHILE:
        member.epoch = member.previous_epoch = 0
    return member, [], []


def check_room(group: ConsumerGroup, member_id: str) -> None:
    most = group.context.rules.consumer_max_size
    if len(group.members) >= most and member_id not in group.members:
        raise BrokerError(
            f"group '{group.id}' has {len(group.members)} members; "
            f"the limit is {most} (group.consumer.max.size)",
            ErrorCode.GROUP_MAX_SIZE_REACHED,
        )


def unknown_member(who: str, group: ConsumerGroup) -> BrokerError:
    return BrokerError(f"{who} is not in group '{group.id}'", ErrorCode.UNKNOWN_MEMBER_ID)


def fenced_instance(holder: ConsumerMember) -> BrokerError:
    return BrokerError(
        f"instance id '{holder.profile.instance_id}' belongs to member '{holder.id}' now",
        ErrorCode.FENCED_INSTANCE_ID,
    )


def _check_epoch(member: ConsumerMember, request: ConsumerGroupHeartbeatRequest) -> None:
    """The epoch before is good too, if nothing of the new one can have been missed: its answer was lost."""
    asked = request.member_epoch
    if asked == member.epoch:
        return
    owned = _owned(request)
    if asked == member.previous_epoch and owned is not None and owned <= member.assigned:
        return
    raise BrokerError(
        f"member '{member.id}' is at epoch {member.epoch}, not {asked}; "
        "it must give up its partitions and join again",
        ErrorCode.FENCED_MEMBER_EPOCH,
    )


def replace_static(
    group: ConsumerGroup, old: ConsumerMember, new_id: str
) -> tuple[ConsumerMember, list[Effect], list[Entry]]:
    """A static member came back under a new id: it has what its old self had."""
    member = ConsumerMember(new_id, old.profile)
    member.assigned, member.revoking, member.phase = old.assigned, old.revoking, old.phase
    member.previous_epoch = 0
    wanted = group.target.get(old.id, NOTHING)
    group.remove(old)
    group.put(member)
    group.claim(member)
    group.target[new_id] = wanted
    written = [
        *entries.no_member(group.id, old.id),
        entries.profile(group, member),
        entries.target(group, new_id),
        entries.current(group, member),
    ]
    return member, cancel_timers(old.id), written


# A member goes -----------------------------------------------------------------------------------


def _leave(
    group: ConsumerGroup, event: ConsumerHeartbeat, now_ms: int
) -> tuple["Group", list[Effect]]:
    request = event.request
    member = group.members.get(request.member_id)
    if request.instance_id is not None:
        holder = group.static_member(request.instance_id)
        if holder is None:
            raise unknown_member(f"instance id '{request.instance_id}'", group)
        if holder.id != request.member_id:
            raise fenced_instance(holder)
    if member is None:
        raise unknown_member(f"member '{request.member_id}'", group)
    response = ConsumerGroupHeartbeatResponse(
        member_id=member.id, member_epoch=request.member_epoch
    )
    if request.member_epoch == LEAVING_FOR_A_WHILE:
        effects = _leave_for_a_while(group, member)
        return group, [*effects, Reply(event.reply_to, response)]
    left, effects = remove(group, [member], now_ms)
    return left, [*effects, Reply(event.reply_to, response)]


def _leave_for_a_while(group: ConsumerGroup, member: ConsumerMember) -> list[Effect]:
    """Its partitions stay its own until its session is over, or it is back under another id."""
    group.release(member)
    member.epoch = LEAVING_FOR_A_WHILE
    member.revoking = NOTHING
    group.claim(member)
    return [CancelTimer(("revoke", member.id)), Write([entries.current(group, member)])]


def remove(
    group: ConsumerGroup, members: list[ConsumerMember], now_ms: int
) -> tuple["Group", list[Effect]]:
    """Take members out. What is left may be a classic group again."""
    effects: list[Effect] = []
    if migration.can_downgrade(group, members):
        return migration.downgrade(group, members, now_ms)
    written: list[Entry] = []
    for member in members:
        group.remove(member)
        effects += cancel_timers(member.id)
        written += entries.no_member(group.id, member.id)
    written += member_gone(group, now_ms)
    return group, [*effects, Write(written)]


def remove_silent(
    group: ConsumerGroup, member_id: str, now_ms: int
) -> tuple["Group", list[Effect]]:
    member = group.members.get(member_id)
    return (group, []) if member is None else remove(group, [member], now_ms)


def revocation_deadline(
    group: ConsumerGroup, event: RevocationDeadline, now_ms: int
) -> tuple["Group", list[Effect]]:
    member = group.members.get(event.member)
    if member is None or member.epoch != event.epoch or member.phase is not Phase.REVOKING:
        return group, []
    return remove(group, [member], now_ms)
