"""One shard of groups, as one partition of __consumer_offsets holds it: finds the group, lets it step, keeps it.

No I/O: what must be done comes back as effects, in order, exactly as from a single group.
"""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.groups import commits, entries, heartbeats, transactional
from penstock.groups.consumer import ConsumerGroup
from penstock.groups.events import (
    ConsumerHeartbeat,
    Effect,
    Event,
    Heartbeat,
    Join,
    Leave,
    Loaded,
    Reply,
    ReplyTo,
    Sync,
    Write,
    WriteBytes,
)
from penstock.groups.machine import Group, step
from penstock.groups.offsets import Offsets
from penstock.groups.records import Entry
from penstock.groups.replay import Replay
from penstock.groups.state import ClassicGroup, GroupContext, State
from penstock.groups.timers import session_timer
from penstock.groups.transactional import Pending
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.heartbeat import HeartbeatResponse
from penstock.wire.messages.join_group import JoinGroupResponse
from penstock.wire.messages.leave_group import LeaveGroupResponse
from penstock.wire.messages.offset_commit import OffsetCommitRequest
from penstock.wire.messages.offset_delete import OffsetDeleteRequest
from penstock.wire.messages.sync_group import SyncGroupResponse
from penstock.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse


class Now(NamedTuple):
    ms: int  # on the monotonic clock
    wall_ms: int


class Shard:
    """The groups and offsets of one shard. Its log is their only other copy."""

    __slots__ = ("context", "groups", "offsets")

    def __init__(self, context: GroupContext, replay: Replay | None = None) -> None:
        self.context = context
        self.groups: dict[str, Group] = {} if replay is None else replay.groups
        self.offsets = Offsets() if replay is None else replay.offsets

    # Membership --------------------------------------------------------------------------------

    def step(self, group_id: str, event: Event, now_ms: int) -> list[Effect]:
        """What the event does to the group, which may begin or end to exist by it."""
        group = self.groups.get(group_id)
        before: list[Effect] = []
        if isinstance(event, Join):
            group, before = self._group_to_join(group_id, group, event, now_ms)
        elif isinstance(event, ConsumerHeartbeat):
            try:
                group = self._group_to_beat(group_id, group, event)
            except BrokerError as error:
                return [Reply(event.reply_to, heartbeats.refused(error))]
        if group is None:
            return _unknown(event)
        group, effects = step(group, event, now_ms)
        self.groups[group_id] = group
        if self._is_void(group):
            del self.groups[group_id]
        return before + effects if before else effects

    def load(self, now_ms: int) -> list[tuple[str, list[Effect]]]:
        """After a replay: every group's effects of being back."""
        loaded = Loaded()
        return [(group_id, self.step(group_id, loaded, now_ms)) for group_id in list(self.groups)]

    def _group_to_join(
        self, group_id: str, group: Group | None, event: Join, now_ms: int
    ) -> tuple[Group | None, list[Effect]]:
        """A newcomer makes the group; who says to be a member of it must find it."""
        if isinstance(group, ConsumerGroup) and group.is_empty:
            gone = Write(entries.no_consumer_group(group, []))
            return ClassicGroup(group_id, self.context, now_ms=now_ms), [gone]
        if group is None and not event.request.member_id:
            return ClassicGroup(group_id, self.context, now_ms=now_ms), []
        return group, []

    def _group_to_beat(self, group_id: str, group: Group | None, event: ConsumerHeartbeat) -> Group:
        heartbeats.check(event.request, event.client.version, self.context.rules)
        if group is not None:
            return group
        if event.request.member_epoch != 0:
            raise BrokerError(f"group '{group_id}' does not exist", ErrorCode.GROUP_ID_NOT_FOUND)
        return ConsumerGroup(group_id, self.context)

    def _is_void(self, group: Group) -> bool:
        """Nothing of it was ever written, and nobody is about to join it."""
        if isinstance(group, ConsumerGroup):
            return group.is_empty and group.epoch == 0
        return (
            group.state is State.EMPTY
            and group.generation == 0
            and not group.pending
            and not self.offsets.has_group(group.id)
        )

    # Offsets -----------------------------------------------------------------------------------

    def commit(
        self, reply_to: ReplyTo, request: OffsetCommitRequest, version: int, now: Now, max_text: int
    ) -> list[Effect]:
        """Raises BrokerError when the whole request is refused."""
        group_id = request.group_id
        group = self.groups.get(group_id)
        effects: list[Effect] = []
        if group is None:
            commits.check_unknown_group(request, version)
            self.groups[group_id] = ClassicGroup(group_id, self.context, now_ms=now.ms)
        else:
            commits.check_commit(group, request, version)
            if isinstance(group, ClassicGroup) and request.member_id in group.members:
                effects.append(session_timer(group.members[request.member_id], now.ms))
        response, written = commits.commit(
            self.offsets,
            self.context.topics,
            request,
            wall_ms=now.wall_ms,
            max_metadata_bytes=max_text,
        )
        if written:
            effects.append(WriteBytes(written))
        elif group is None:
            del self.groups[group_id]
        effects.append(Reply(reply_to, response))
        return effects

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, now: Now, max_text: int
    ) -> tuple[TxnOffsetCommitResponse, Pending]:
        """What to answer, and what to `pend` once it is written. Raises when all of it is refused."""
        transactional.check(self.groups.get(request.group_id), request)
        known = self.context.topics
        return transactional.commit(
            known, request, wall_ms=now.wall_ms, max_metadata_bytes=max_text
        )

    def pend(self, producer_id: int, pending: Pending, now_ms: int) -> None:
        for position, value in pending:
            self._know(position[0], now_ms)
            self.offsets.put_pending(producer_id, position, value)

    def end_transaction(self, producer_id: int, *, committed: bool, now_ms: int) -> None:
        """The marker is written: the transaction's offsets count, or are gone."""
        for group_id in self.offsets.end_transaction(producer_id, committed=committed):
            self._know(group_id, now_ms)

    def _know(self, group_id: str, now_ms: int) -> None:
        """Whoever has offsets is a group."""
        if group_id not in self.groups:
            self.groups[group_id] = ClassicGroup(group_id, self.context, now_ms=now_ms)

    def delete_offsets(self, reply_to: ReplyTo, request: OffsetDeleteRequest) -> list[Effect]:
        group = self.groups.get(request.group_id)
        response, written = commits.delete(self.offsets, group, request)
        return [WriteBytes(written), Reply(reply_to, response)]

    def forget_topic(self, topic: str) -> list[Effect]:
        """The topic was deleted: positions in it mean nothing any more."""
        written = [
            record
            for position in sorted(self.offsets.of_topic(topic))
            for record in commits.forget(self.offsets, *position)
        ]
        return [WriteBytes(written)] if written else []

    def expire(
        self,
        group_id: str,
        now: Now,
        retention_ms: int,
        positions: Iterable[tuple[str, int]],
        *,
        is_due: bool = True,
    ) -> list[Effect]:
        """End old offsets, and the group with its last one if it has no members. See `commits.expire`."""
        group = self.groups.get(group_id)
        if group is None:
            return []
        written = commits.expire(
            self.offsets,
            self.context.topics,
            group,
            now_ms=now.ms,
            wall_ms=now.wall_ms,
            retention_ms=retention_ms,
            positions=positions,
            is_due=is_due,
        )
        effects: list[Effect] = [WriteBytes(written)] if written else []
        pending = isinstance(group, ClassicGroup) and group.pending
        if group.is_empty and not pending and not self.offsets.has_group(group_id):
            effects.append(Write(self._remove(group)))
        return effects

    # Groups as a whole -------------------------------------------------------------------------

    def delete_group(self, group_id: str) -> tuple[ErrorCode, list[Effect]]:
        group = self.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        if not group.is_empty:
            return ErrorCode.NON_EMPTY_GROUP, []
        written = commits.forget_all(self.offsets, group_id)
        return ErrorCode.NONE, [WriteBytes(written), Write(self._remove(group))]

    def _remove(self, group: Group) -> list[Entry]:
        del self.groups[group.id]
        if isinstance(group, ConsumerGroup):
            return entries.no_consumer_group(group, [])
        return [entries.no_classic_group(group.id)]


def _unknown(event: Event) -> list[Effect]:
    """What someone is told who speaks to a group that does not exist."""
    error = ErrorCode.UNKNOWN_MEMBER_ID
    match event:
        case Join():
            member_id = event.request.member_id
            return [Reply(event.reply_to, JoinGroupResponse(error_code=error, member_id=member_id))]
        case Sync():
            return [Reply(event.reply_to, SyncGroupResponse(error_code=error))]
        case Heartbeat():
            return [Reply(event.reply_to, HeartbeatResponse(error_code=error))]
        case Leave():
            return [Reply(event.reply_to, LeaveGroupResponse(error_code=error))]
        case _:
            return []
