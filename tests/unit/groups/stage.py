"""A shard with a clock, timers and a log around it, and nothing real: what tests of groups play on."""

from typing import Any, TypeVar

from penstock.groups.events import (
    CancelTimer,
    Client,
    ConsumerHeartbeat,
    Effect,
    Event,
    Heartbeat,
    Join,
    Leave,
    Reply,
    SetTimer,
    Sync,
    TimerKey,
    Write,
    WriteBytes,
)
from penstock.groups.offsets import decode_offset
from penstock.groups.records import Entry, GroupMetadataValue, encode_key, encode_value
from penstock.groups.replay import Replay
from penstock.groups.shard import Now, Shard
from penstock.groups.state import GroupContext, Rules
from penstock.groups.topics import Topics
from penstock.model.group_configs import ConsumerTimes
from penstock.model.ids import TopicId
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.messages.consumer_protocol import (
    ConsumerProtocolSubscription,
    TopicPartition,
)
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.wire.schema import Message

GROUP = "g"
WALL_AT_START_MS = 1_700_000_000_000
AnyMessage = TypeVar("AnyMessage", bound=Message)


def topic_id(name: str) -> TopicId:
    return TopicId(name.encode().ljust(16, b"\0"))


def subscription(*topics: str, owned: dict[str, list[int]] | None = None) -> bytes:
    message = ConsumerProtocolSubscription(
        topics=list(topics),
        owned_partitions=[
            TopicPartition(topic=topic, partitions=numbers)
            for topic, numbers in (owned or {}).items()
        ],
    )
    return b"\x00\x01" + message.encode(1)


class Stage:
    """Plays one shard. Every request gets a number; its answer is in `replies` under that number."""

    def __init__(self, rules: Rules | None = None, **topics: int) -> None:
        self.topics = Topics()
        for name, count in topics.items():
            self.topics.put(name, topic_id(name), count)
        self.own_times: dict[str, ConsumerTimes] = {}
        self.context = GroupContext(rules or Rules(), self.topics, self.own_times)
        self.shard = Shard(self.context)
        self.now_ms = 1000
        self.wall_ms = WALL_AT_START_MS
        self.asked = 0
        self.replies: dict[int, Any] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[tuple[str, TimerKey], tuple[int, Event]] = {}
        self.effects: list[Effect] = []  # of the last event

    # Requests ----------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: dict[str, bytes] | None = None,
        topics: tuple[str, ...] = ("t",),
        owned: dict[str, list[int]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        version: int = 3,
        fresh: str | None = None,
        group: str = GROUP,
    ) -> int:
        """By default in a version that asks for no member id first, so that a fresh one is taken."""
        known = {"range": subscription(*topics, owned=owned)} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=n, metadata=m) for n, m in known.items()],
        )
        client = Client("client", "/1.2.3.4", version, fresh or f"m{self.asked}")
        return self.ask(lambda reply_to: Join(reply_to, request, client), group)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        group: str = GROUP,
    ) -> int:
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=m, assignment=a)
                for m, a in (assignments or {}).items()
            ],
        )
        return self.ask(lambda reply_to: Sync(reply_to, request), group)

    def heartbeat(
        self, member_id: str, generation: int, *, instance: str | None = None, group: str = GROUP
    ) -> int:
        request = HeartbeatRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
        )
        return self.ask(lambda reply_to: Heartbeat(reply_to, request), group)

    def leave(self, *members: str, instances: tuple[str, ...] = (), group: str = GROUP) -> int:
        identities = [MemberIdentity(member_id=m) for m in members]
        identities += [MemberIdentity(group_instance_id=i) for i in instances]
        request = LeaveGroupRequest(group_id=group, members=identities)
        return self.ask(lambda reply_to: Leave(reply_to, request), group)

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: list[str] | None = None,
        pattern: str | None = None,
        owned: dict[str, list[int]] | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int | None = None,
        version: int = 1,
        group: str = GROUP,
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat of the consumer protocol; joining says what joining must say."""
        if epoch == 0:
            topics = ["t"] if topics is None and pattern is None else topics
            owned, rebalance_ms = owned or {}, 30_000 if rebalance_ms is None else rebalance_ms
        partitions = None
        if owned is not None:
            partitions = [
                TopicPartitions(topic_id=topic_id(name), partitions=numbers)
                for name, numbers in owned.items()
            ]
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=-1 if rebalance_ms is None else rebalance_ms,
            subscribed_topic_names=topics,
            subscribed_topic_regex=pattern,
            server_assignor=assignor,
            topic_partitions=partitions,
        )
        client = Client("client", "/1.2.3.4", version, f"fresh{self.asked}")
        number = self.ask(lambda reply_to: ConsumerHeartbeat(reply_to, request, client), group)
        return self.reply(number, ConsumerGroupHeartbeatResponse)

    def commit(
        self,
        offset: int,
        *,
        member: str = "",
        generation: int = -1,
        topic: str = "t",
        partition: int = 0,
        text: str = "",
        group: str = GROUP,
        version: int = 9,
        retention_ms: int = -1,
    ) -> int:
        if topic not in self.topics:
            self.topics.put(topic, topic_id(topic), 1)
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition,
                            committed_offset=offset,
                            committed_metadata=text,
                        )
                    ],
                )
            ],
        )
        self.asked += 1
        now = Now(self.now_ms, self.wall_ms)
        self.do(group, self.shard.commit(self.asked, request, version, now, 4096))
        return self.asked

    def position(self, topic: str = "t", partition: int = 0, group: str = GROUP) -> int | None:
        value = self.shard.offsets.get(group, topic, partition)
        return None if value is None else decode_offset(value).offset

    # How the world answers ---------------------------------------------------------------------

    def ask(self, event: Any, group: str) -> int:
        self.asked += 1
        self.do(group, self.shard.step(group, event(self.asked), self.now_ms))
        return self.asked

    def do(self, group: str, effects: list[Effect]) -> None:
        self.effects = effects
        for effect in effects:
            match effect:
                case Reply():
                    assert isinstance(effect.to, int)
                    assert effect.to not in self.replies, "answered twice"
                    self.replies[effect.to] = effect.message
                case Write():
                    self.log += map(self._encoded, effect.entries)
                case WriteBytes():
                    self.log += effect.records
                case SetTimer():
                    timer = (group, effect.key)
                    if not (effect.keep_earlier and timer in self.timers):
                        self.timers[timer] = (effect.at_ms, effect.event)
                case CancelTimer():
                    self.timers.pop((group, effect.key), None)

    def _encoded(self, entry: Entry) -> tuple[bytes, bytes | None]:
        key, value = entry
        if isinstance(value, GroupMetadataValue):
            value.current_state_timestamp = self.wall_ms
        return encode_key(key), None if value is None else encode_value(key, value)

    def pass_time(self, ms: int) -> None:
        """Timers go off in their order, each at its time."""
        end_ms = self.now_ms + ms
        while due := [(at, key) for key, (at, _) in self.timers.items() if at <= end_ms]:
            at_ms, key = min(due)
            self.now_ms = max(self.now_ms, at_ms)
            _, event = self.timers.pop(key)
            self.do(key[0], self.shard.step(key[0], event, self.now_ms))
        self.now_ms = end_ms

    def settle(self) -> None:
        """Let pass what takes no time: an initial delay of none."""
        self.pass_time(0)

    def reply(self, number: int, kind: type[AnyMessage]) -> AnyMessage:
        reply = self.replies[number]
        assert isinstance(reply, kind)
        return reply

    def compacted(self) -> list[tuple[bytes, bytes | None]]:
        """The log as the cleaner leaves it in the end: the last of each key, and no tombstones."""
        last = {key: place for place, (key, _) in enumerate(self.log)}
        kept = sorted(last.values())
        return [self.log[place] for place in kept if self.log[place][1] is not None]

    def replayed(self, log: list[tuple[bytes, bytes | None]] | None = None) -> Shard:
        """What a broker would know that has only the log."""
        replay = Replay(self.context, now_ms=self.now_ms, wall_ms=self.wall_ms)
        for key, value in self.log if log is None else log:
            replay.apply(key, value)
        replay.finish()
        return Shard(self.context, replay)

    def crash(self) -> None:
        """The shard moves: whoever waits is lost, the log is read again, members get new sessions."""
        self.shard = self.replayed()
        self.timers.clear()
        for group, effects in self.shard.load(self.now_ms):
            self.do(group, effects)
