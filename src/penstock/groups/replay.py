"""A shard's groups and offsets, rebuilt from the records of its log in their order.

Compaction may have removed any record that a later one with its key replaces, so none relies on another
being there. What is not understood stops the replay.
"""

from collections.abc import Iterable

from penstock.groups.assignment import Assignment
from penstock.groups.consumer import ClassicSide, ConsumerGroup, ConsumerMember, Phase, Profile
from penstock.groups.offsets import Offsets, Partitions, check_version
from penstock.groups.records import (
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
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    TopicPartitions,
    UnknownRecord,
    decode_key,
    decode_value,
)
from penstock.groups.state import ClassicGroup, GroupContext, Member, State
from penstock.groups.topics import TopicShape
from penstock.model.ids import TopicId
from penstock.wire.schema import Message

_GROUPS_OF_OFFSETS = (b"\x00\x00", b"\x00\x01")  # how the keys of offsets begin


class Replay:
    """Feed it records in order, then `finish`."""

    def __init__(self, context: GroupContext, *, now_ms: int, wall_ms: int) -> None:
        self.groups: dict[str, ClassicGroup | ConsumerGroup] = {}
        self.offsets = Offsets()
        self._context = context
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._partitions: dict[bytes, Partitions] = {}  # by the key without its partition

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record outside of any transaction."""
        if key[:2] in _GROUPS_OF_OFFSETS:
            partitions = self._partitions.get(key[:-4])
            if partitions is None:
                partitions = self._begin(key)
            partition = int.from_bytes(key[-4:], "big", signed=True)
            if value is None:
                partitions.pop(partition, None)
            else:
                check_version(value)
                partitions[partition] = value
            if self.offsets.has_unstable:
                self._settle(key, value)
            return
        self._apply_group(decode_key(key), value)

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """One record of a transaction; only offsets can be in one."""
        found = decode_key(key)
        if not isinstance(found, OffsetCommitKey) or value is None:
            raise UnknownRecord(f"a {type(found).__name__} in a transaction")
        check_version(value)
        position = (found.group, found.topic, found.partition)
        self.offsets.put_pending(producer_id, position, value)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        self.offsets.end_transaction(producer_id, committed=committed)

    def finish(self) -> None:
        """Put together what is spread over several records."""
        self._partitions.clear()
        self.offsets.recount()
        self.offsets.forget_changes()
        for group in self.groups.values():
            if isinstance(group, ConsumerGroup):
                for member in group.members.values():
                    group.put(member)
                    group.claim(member)
        for group_id in self.offsets.groups():
            if group_id not in self.groups:
                self.groups[group_id] = ClassicGroup(group_id, self._context, now_ms=self._now_ms)

    def _begin(self, key: bytes) -> Partitions:
        """The first record of a group and topic: from now on only its partition is read."""
        found = decode_key(key)
        assert isinstance(found, OffsetCommitKey)
        partitions = self.offsets.partitions(found.group, found.topic)
        self._partitions[key[:-4]] = partitions
        return partitions

    def _settle(self, key: bytes, value: bytes | None) -> None:
        found = decode_key(key)
        assert isinstance(found, OffsetCommitKey)
        position = (found.group, found.topic, found.partition)
        if value is None:
            self.offsets.drop_pending(position)
        else:
            self.offsets.supersede(position)

    # Groups ------------------------------------------------------------------------------------

    def _apply_group(self, key: Message, raw: bytes | None) -> None:
        value = None if raw is None else decode_value(key, raw)
        match key, value:
            case GroupMetadataKey(), GroupMetadataValue():
                self.groups[key.group] = self._classic(key.group, value)
            case GroupMetadataKey(), _:
                if isinstance(self.groups.get(key.group), ClassicGroup):
                    del self.groups[key.group]
            case ConsumerGroupMetadataKey(), ConsumerGroupMetadataValue():
                self._consumer(key.group_id).epoch = value.epoch
            case ConsumerGroupMetadataKey(), _:
                if isinstance(self.groups.get(key.group_id), ConsumerGroup):
                    del self.groups[key.group_id]
            case _:
                self._apply_consumer(key, value)

    def _apply_consumer(self, key: Message, value: Message | None) -> None:
        group_id: str = getattr(key, "group_id")  # noqa: B009 - every key that is left has one
        known = self.groups.get(group_id)
        if value is None and not isinstance(known, ConsumerGroup):
            return
        group = self._consumer(group_id)
        match key:
            case ConsumerGroupPartitionMetadataKey():
                _apply_shapes(group, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                _apply_assignment_epoch(group, value)
            case ConsumerGroupMemberMetadataKey():
                _apply_profile(group, key.member_id, value)
            case ConsumerGroupTargetAssignmentMemberKey():
                _apply_target(group, key.member_id, value)
            case ConsumerGroupCurrentMemberAssignmentKey():
                _apply_current(group, key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                _apply_pattern(group, key.regular_expression, value)
            case _:
                raise UnknownRecord(f"a {type(key).__name__}, which nothing here applies")

    def _consumer(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            group = self.groups[group_id] = ConsumerGroup(group_id, self._context)
        return group

    def _classic(self, group_id: str, value: GroupMetadataValue) -> ClassicGroup:
        group = ClassicGroup(group_id, self._context, now_ms=self._now_ms)
        if value.current_state_timestamp >= 0:
            group.since_ms -= max(self._wall_ms - value.current_state_timestamp, 0)
            group.since_wall_ms = value.current_state_timestamp
        for stored in value.members:
            member = Member(
                stored.member_id,
                instance_id=stored.group_instance_id,
                client_id=stored.client_id,
                client_host=stored.client_host,
                session_timeout_ms=stored.session_timeout,
                rebalance_timeout_ms=(
                    stored.session_timeout
                    if stored.rebalance_timeout <= 0
                    else stored.rebalance_timeout
                ),
                protocols=[(value.protocol or "", stored.subscription)],
                assignment=stored.assignment,
            )
            group.add(member, value.protocol_type)
        group.restore(State.STABLE if value.members else State.EMPTY, value.generation)
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        group.leader = value.leader
        group.subscribed = group.compute_subscribed()
        return group


def _apply_shapes(group: ConsumerGroup, value: Message | None) -> None:
    group.shapes = {}
    if isinstance(value, ConsumerGroupPartitionMetadataValue):
        for topic in value.topics:
            group.shapes[topic.topic_name] = TopicShape(
                TopicId(topic.topic_id), topic.num_partitions
            )


def _apply_assignment_epoch(group: ConsumerGroup, value: Message | None) -> None:
    group.assignment_epoch = 0
    if isinstance(value, ConsumerGroupTargetAssignmentMetadataValue):
        group.assignment_epoch = value.assignment_epoch


def _apply_profile(group: ConsumerGroup, member_id: str, value: Message | None) -> None:
    if not isinstance(value, ConsumerGroupMemberMetadataValue):
        group.members.pop(member_id, None)
        return
    classic = None
    if value.classic_member_metadata is not None:
        said = value.classic_member_metadata
        classic = ClassicSide(
            said.session_timeout_ms, [(p.name, p.metadata) for p in said.supported_protocols]
        )
    member = group.members.setdefault(member_id, ConsumerMember(member_id))
    member.profile = Profile(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        assignor=value.server_assignor,
        topics=frozenset(value.subscribed_topic_names),
        pattern=value.subscribed_topic_regex,
        classic=classic,
    )


def _apply_target(group: ConsumerGroup, member_id: str, value: Message | None) -> None:
    if isinstance(value, ConsumerGroupTargetAssignmentMemberValue):
        group.target[member_id] = _assignment(value.topic_partitions)
    else:
        group.target.pop(member_id, None)


def _apply_current(group: ConsumerGroup, member_id: str, value: Message | None) -> None:
    if isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
        member = group.members.setdefault(member_id, ConsumerMember(member_id))
        member.epoch = value.member_epoch
        member.previous_epoch = value.previous_member_epoch
        if value.state not in Phase.__members__.values():
            raise UnknownRecord(
                f"member '{member_id}' of group '{group.id}' in state {value.state}, "
                "which this version does not know"
            )
        member.phase = Phase(value.state)
        member.assigned = _assignment(value.assigned_partitions)
        member.revoking = _assignment(value.partitions_pending_revocation)
    elif member_id in group.members:
        fresh = ConsumerMember(member_id, group.members[member_id].profile)
        group.members[member_id] = fresh


def _apply_pattern(group: ConsumerGroup, text: str, value: Message | None) -> None:
    if isinstance(value, ConsumerGroupRegularExpressionValue):
        group.matches[text] = frozenset(value.topics)
    else:
        group.matches.pop(text, None)


def _assignment(partitions: Iterable[TopicPartitions]) -> Assignment:
    return frozenset(
        (topic.topic_id, number) for topic in partitions for number in topic.partitions
    )
