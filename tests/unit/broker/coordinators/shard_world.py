"""One partition of group offsets on a real log, with elections, followers, faults and time as the test decides."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from penstock.broker.controller.cluster import Cluster
from penstock.broker.coordinators.group_shard import GroupShard
from penstock.broker.coordinators.shards import Lost, Shards
from penstock.broker.partitions.partition import Partition
from penstock.groups import commits
from penstock.groups.replay import Replay
from penstock.groups.shard import Shard
from penstock.groups.state import GroupContext, Rules
from penstock.groups.topics import Topics
from penstock.metadata.image import Delta, PartitionImage
from penstock.metadata.store import Revision
from penstock.model.errors import BrokerError, DiskFull, ErrorCode
from penstock.model.ids import TopicId
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
)
from penstock.wire.schema import Struct
from tests.support.engine import Engine

ME, OTHER = 1, 2
BOTH = (ME, OTHER)
GROUP, TOPIC, PARTITIONS = "g", "t", 3
_FOLLOWER_SESSION = 7
_ALL = 1 << 30
_MAX_TEXT = 4096

Answer = asyncio.Future[Any] | Struct | BrokerError
T = TypeVar("T")


class Quiet:
    """In-sync replicas change only as the test says."""

    def is_awaited(self, *_: object) -> bool:
        return False

    def fell_behind(self, *_: object) -> None: ...
    def isr_changes(self, *_: object) -> None: ...
    def made_durable(self, *_: object) -> None: ...


class Delayed:
    """A call that `ManualLoop` runs when the test lets its time come."""

    def __init__(self, callback: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self.callback = callback
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """The real loop, but for delayed calls: they run only in `let_time_pass`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._delayed: list[Delayed] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, _: float, callback: Callable[..., object], *arguments: object) -> Delayed:
        self._delayed.append(Delayed(callback, arguments))
        return self._delayed[-1]

    @property
    def delayed_count(self) -> int:
        return sum(not call.cancelled for call in self._delayed)

    def let_time_pass(self) -> None:
        delayed, self._delayed = self._delayed, []
        for call in delayed:
            if not call.cancelled:
                call.callback(*call.arguments)


class FakeCluster:
    """Tells the shards of elections."""

    broker_id = ME

    def __init__(self) -> None:
        self._listeners: list[Callable[[Delta], None]] = []

    def on_change(self, listener: Callable[[Delta], None]) -> None:
        self._listeners.append(listener)

    def on_session_lost(self, listener: Callable[[], None]) -> None:
        """The session is never lost: a follower's role comes as a change."""

    def changed(self) -> None:
        for listener in self._listeners:
            listener(Delta(Revision(0), brokers=[ME]))


class ShardWorld:
    """`commit` and `fetch` are requests. Everything else is what happens to the broker."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.loop = ManualLoop(engine.loop)
        engine.replicas.loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.partition: Partition = engine.partition("offsets", min_insync_replicas=2)
        self.cluster = FakeCluster()
        self.opened: list[GroupShard] = []
        self.loads_fail = False
        self._epoch = self._version = 10
        topics = Topics()
        topics.put(TOPIC, TopicId(b"t" * 16), PARTITIONS)
        self._context = GroupContext(Rules(), topics)
        self._run_in_thread = engine.replicas.run_in_thread
        engine.replicas.run_in_thread = self._read  # type: ignore[method-assign] # a load may fail there
        self.shards: Shards[Replay, GroupShard] = Shards(
            "offsets",
            engine.replicas,
            cast(Cluster, self.cluster),
            engine.clock,
            self._spawn,
            new_replay=lambda: Replay(self._context, now_ms=0, wall_ms=0),
            open_shard=self._open,
        )
        self.elect(ME)
        self._call(self.shards.begin)
        engine.tick()

    def _spawn(self, coroutine: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self.engine.loop.create_task(coroutine, name=name)

    def _open(self, replay: Replay, partition: Partition, lost: Lost) -> GroupShard:
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        core = Shard(self._context, replay)
        self.opened.append(GroupShard(core, partition, loop, self.engine.clock, lost))
        return self.opened[-1]

    async def _read(self, work: Callable[[], Any]) -> Any:
        result = await self._run_in_thread(work)
        if self.loads_fail:
            raise BrokerError("too many open files", ErrorCode.KAFKA_STORAGE_ERROR)
        return result

    def _call(self, work: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return work()

        return self.engine.runner.run(called())

    # What is open ------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        return sum(not shard._closed for shard in self.opened)

    def close(self) -> None:
        self._call(self.shards.close)
        self.loop.let_time_pass()
        self.finish_reads()

    # What happens to the broker ----------------------------------------------------------------

    def elect(self, leader: int, *, isr: tuple[int, ...] = BOTH, keeps_tail: bool = True) -> None:
        """Begin a new leader epoch. Another leader may lack what was not committed."""
        self._epoch += 1
        self._version += 1
        state = PartitionImage(leader, self._epoch, self._version, BOTH, isr)
        if leader == ME:
            self._take_role(lambda: self.partition.lead(ME, state))
        else:
            self._take_role(lambda: self._follow(state, keeps_tail=keeps_tail))

    def _follow(self, state: PartitionImage, *, keeps_tail: bool) -> None:
        partition = self.partition
        partition.follow(state)
        if not keeps_tail and partition.high_watermark < partition.log.next_offset:
            partition.cut(partition.high_watermark)

    def give_up_session(self) -> None:
        self._take_role(lambda: self.partition.follow(None))

    def take_up_session(self) -> None:
        """In the same leader epoch."""
        state = PartitionImage(ME, self._epoch, self._version, BOTH, BOTH)
        self._take_role(lambda: self.partition.lead(ME, state))

    def _take_role(self, take: Callable[[], None]) -> None:
        def taken() -> None:
            take()
            self.cluster.changed()

        self._call(taken)
        self.engine.tick()

    def set_isr(self, isr: tuple[int, ...]) -> None:
        """In the same leader epoch."""
        if not self.partition.is_leader:
            return
        self._version += 1
        state = PartitionImage(ME, self._epoch, self._version, BOTH, isr)
        self._take_role(lambda: self.partition.lead(ME, state))

    def replicate(self) -> None:
        """The follower fetches all there is: while it is in sync, that is committed."""
        self._replicate_upto(self.partition.log.next_offset)

    def replicate_upto_read_back(self) -> None:
        """Only what was in the log when this broker began to lead."""
        leadership = self.partition.leadership
        assert leadership is not None
        self._replicate_upto(leadership.start_offset)

    def _replicate_upto(self, end: int) -> None:
        if self.partition.is_leader:
            partition = self.partition
            self._call(
                lambda: partition.read_as_replica(
                    (OTHER, _FOLLOWER_SESSION),
                    end,
                    partition.log.epochs.latest,
                    _ALL,
                    at_least_one=True,
                )
            )
            self.engine.tick()

    def let_time_pass(self) -> None:
        self._call(self.loop.let_time_pass)
        self.engine.tick()

    def read_some(self) -> None:
        """The threads do what waits for them now."""
        self.engine.threads.run()
        self.engine.tick()

    def finish_reads(self) -> None:
        self.engine.settle()

    # Requests ----------------------------------------------------------------------------------

    def commit(
        self, offset: int, index: int = 0, *, then: Callable[[], None] | None = None
    ) -> Answer:
        """`then` happens in the same tick, before the shard writes what it has taken."""
        part = OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
        topics = [OffsetCommitRequestTopic(name=TOPIC, partitions=[part])]
        request = OffsetCommitRequest(group_id=GROUP, topics=topics)

        def ask() -> Answer:
            try:
                shard = self.shards.writable_shard_of(GROUP)
                answer: Answer = shard.ask(
                    GROUP,
                    lambda asked: shard.core.commit(asked, request, 9, shard.now(), _MAX_TEXT),
                )
            except BrokerError as error:
                answer = error
            if then is not None:
                then()
            return answer

        answer: Answer = self._call(ask)
        self.engine.tick()
        return answer

    def commit_as_the_disk_fills_up(self, offset: int, index: int = 0) -> Answer:
        """The shard takes the commit, and its log then refuses it. Returns when there is room again."""
        replicas = self.engine.replicas
        answer = self.commit(offset, index, then=lambda: replicas.disk_is_full(DiskFull("no room")))
        self._call(replicas.disk_has_room)
        return answer

    def commit_as_the_isr_shrinks(self, offset: int, index: int = 0) -> Answer:
        self._version += 1
        state = PartitionImage(ME, self._epoch, self._version, BOTH, (ME,))
        return self.commit(offset, index, then=lambda: self.partition.lead(ME, state))

    def fetch(self, index: int = 0) -> Answer:
        wanted = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[index])]
        request = OffsetFetchRequestGroup(group_id=GROUP, topics=wanted)

        def ask() -> Answer:
            try:
                shard = self.shards.shard_of(GROUP)
                group = shard.core.groups.get(GROUP)
                answer: Answer = shard.read_committed(
                    lambda: commits.fetch(
                        shard.core.offsets,
                        self._context.topics,
                        group,
                        request,
                        require_stable=False,
                    )
                )
            except BrokerError as error:
                answer = error
            return answer

        answer: Answer = self._call(ask)
        self.engine.tick()
        return answer


def outcome_of(answer: Answer) -> object | None:
    """The response or the error; None while there is neither."""
    if not isinstance(answer, asyncio.Future):
        return answer
    if not answer.done() or answer.cancelled():
        return None
    return answer.exception() or answer.result()


def is_acknowledged(answer: Answer) -> bool:
    found = outcome_of(answer)
    if not isinstance(found, OffsetCommitResponse):
        return False
    return not found.topics[0].partitions[0].error_code


def offset_in(answer: Answer) -> int | None:
    """The offset that a fetch was answered with; None while there is no answer, or when it was refused."""
    found = outcome_of(answer)
    if not isinstance(found, OffsetFetchResponseGroup) or found.error_code:
        return None
    return found.topics[0].partitions[0].committed_offset


def code_of(answer: Answer) -> ErrorCode:
    found = outcome_of(answer)
    return found.code if isinstance(found, BrokerError) else ErrorCode.NONE
