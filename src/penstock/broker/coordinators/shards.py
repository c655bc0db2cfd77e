"""The shards of a coordinator: one for each partition of its internal topic that this broker leads.

A shard is usable when all of its log has been read. A record that cannot be understood stops the shard.
A slot holds the shard of one partition in one leader epoch, so at most one shard per partition is open.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.coordinators import shard_log
from penstock.broker.coordinators.shard import LogShard
from penstock.broker.coordinators.shard_slot import Phase, ShardSlot
from penstock.broker.partitions.log import NOBODY
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.metadata.image import Delta, TopicImage
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode, StorageFault, UnknownRecord

_log = logging.getLogger(__name__)

_RELOAD_DELAY_S: Final = 0.1
_LOAD_AGAIN_S: Final = 1.0
_REMEMBERED_CHARS: Final = 256  # of a key whose partition is kept: anyone may ask for long ones

ReplayT = TypeVar("ReplayT", bound=shard_log.Replay)
ShardT = TypeVar("ShardT", bound=LogShard)
Lost = Callable[[BrokerError], None]


def _folds() -> Iterator[tuple[int, int, int]]:
    """How neighbours in a block become one: their width in bits, the power of 31 between them, their places.

    Only 32 bits of each count, and the sum of two has room in the width of both.
    """
    bits, power = 16, 31
    while bits < 8 * _BLOCK_BYTES:
        pairs = range(0, 8 * _BLOCK_BYTES, 2 * bits)
        yield bits, power, sum((1 << min(bits, 32)) - 1 << place for place in pairs)
        bits, power = 2 * bits, power * power & 0xFFFFFFFF


_BLOCK_BYTES: Final = 256
_BLOCK_POWER: Final = pow(31, _BLOCK_BYTES // 2, 1 << 32)
_FOLDS: Final = tuple(_folds())


def java_hash(text: str) -> int:
    """String.hashCode of Java: every client and tool finds a key's partition by it.

    Anyone may send keys of 32 kB, so a block is folded by a few operations on one large number: 1.3 ms
    for such a key instead of 12. Its plain twin is in the tests.
    """
    raw = text.encode("utf-16-be", "surrogatepass")
    raw = bytes(-len(raw) % _BLOCK_BYTES) + raw  # what is 0 and comes first adds nothing
    value = 0
    for start in range(0, len(raw), _BLOCK_BYTES):
        block = int.from_bytes(raw[start : start + _BLOCK_BYTES], "big")
        for bits, power, places in _FOLDS:
            block = (block & places) + (block >> bits & places) * power
        value = value * _BLOCK_POWER + block & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def partition_for(key: str, count: int) -> int:
    """Where a key belongs; kept for keys of an ordinary length."""
    if len(key) > _REMEMBERED_CHARS:
        return _computed_partition(key, count)
    return _known_partition(key, count)


def _computed_partition(key: str, count: int) -> int:
    """Kafka's Utils.abs: the smallest number counts as 0."""
    value = java_hash(key)
    return 0 if value == -(1 << 31) else abs(value) % count


_known_partition: Final = lru_cache(maxsize=1 << 16)(_computed_partition)


class Elsewhere(NamedTuple):
    """Another broker that coordinates, and since which epoch."""

    broker_id: int
    epoch: int


class Shards(Generic[ReplayT, ShardT]):
    """`open_shard` makes a shard of what its log told `new_replay`'s replay. Only the event loop calls it."""

    def __init__(
        self,
        topic: str,
        replicas: ReplicaManager,
        cluster: Cluster,
        clock: Clock,
        spawn: Spawn,
        *,
        new_replay: Callable[[], ReplayT],
        open_shard: Callable[[ReplayT, Partition, Lost], ShardT],
    ) -> None:
        self._topic: Final = topic
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._new_replay = new_replay
        self._open_shard = open_shard
        self._slots: dict[int, ShardSlot[ShardT]] = {}  # by partition index: all that is led
        self._queue: deque[ShardSlot[ShardT]] = deque()  # to be read, in order
        self._creating: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None
        self._closed = False

    # Life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over what this broker leads, and from now on what it comes to lead."""
        self._take_over()
        self._cluster.on_change(self._apply)
        self._cluster.on_session_lost(self._take_over)

    def close(self) -> None:
        """Nobody is left without an answer."""
        self._closed = True
        for task in (self._loader, self._creating):
            if task is not None:
                task.cancel()
        slots, self._slots = self._slots, {}
        for slot in slots.values():
            slot.close()

    def _apply(self, delta: Delta) -> None:
        names = [topic.name for topic in (*delta.created, *delta.deleted)]
        names += [change.new.name for change in delta.changed]
        if self._topic in names or self._cluster.broker_id in delta.brokers:
            self._take_over()

    def _take_over(self) -> None:
        """Open a slot for each partition that is led now; close those of an older epoch, or led elsewhere."""
        topic = None if self._closed else self._replicas.topics.get(self._topic)
        led = {
            partition.index: partition
            for partition in (() if topic is None else topic.partitions)
            if partition is not None and partition.is_leader
        }
        for index, slot in list(self._slots.items()):
            if not slot.is_of(led.get(index)):
                del self._slots[index]
                slot.close()
        for index, partition in led.items():
            if index not in self._slots:
                self._slots[index] = slot = ShardSlot(partition, self._replicas.loop)
                self._enqueue(slot)
        self._load_soon()

    def _enqueue(self, slot: ShardSlot[ShardT]) -> None:
        slot.queue()
        self._queue.append(slot)

    # Finding -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ShardT]:
        """Those that can be used now."""
        return iter([slot.shard for slot in self._slots.values() if slot.shard is not None])

    def __contains__(self, shard: object) -> bool:
        return any(shard is slot.shard for slot in self._slots.values())

    @property
    def is_loading(self) -> bool:
        """Whether anything that is led here cannot be used yet."""
        return any(slot.phase.is_before_use for slot in self._slots.values())

    @property
    def stopped_count(self) -> int:
        return sum(slot.phase is Phase.STOPPED for slot in self._slots.values())

    def at(self, index: int) -> ShardT | None:
        """The shard of a partition; None if it was stopped. Raises while it is being read back."""
        slot = self._slots.get(index)
        if slot is not None and (slot.shard is not None or slot.phase is Phase.STOPPED):
            return slot.shard
        return self._late_shard(f"{self._topic}-{index}", slot)

    async def topic(self) -> TopicImage:
        """The internal topic. The first question ever makes it."""
        topic = self._cluster.image.topics.get(self._topic)
        if topic is not None:
            return topic
        if self._creating is None or self._creating.done():
            self._creating = self._spawn(self._create(), f"create-{self._topic}")
        await asyncio.shield(self._creating)
        topic = self._cluster.image.topics.get(self._topic)
        if topic is None:
            raise BrokerError(
                f"'{self._topic}' could not be created", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        return topic

    async def _create(self) -> None:
        try:
            await self._cluster.auto_create_topic(self._topic)
        except BrokerError as error:
            _log.error("internal-topic-not-created topic=%s error=%s", self._topic, error)

    async def coordinator_of(self, key: str) -> int:
        """The broker that coordinates the key."""
        topic = await self.topic()
        leader = topic.partitions[partition_for(key, len(topic.partitions))].leader
        if leader < 0:
            raise BrokerError(
                f"the coordinator of '{key}' is being elected",
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
            )
        return leader

    def elsewhere(self, key: str) -> Elsewhere | None:
        """Where the key is coordinated, if it is by another broker."""
        topic = self._cluster.image.topics.get(self._topic)
        if topic is None:
            return None
        partition = topic.partitions[partition_for(key, len(topic.partitions))]
        if partition.leader in (self._cluster.broker_id, NOBODY):
            return None
        return Elsewhere(partition.leader, partition.leader_epoch)

    def shard_of(self, key: str) -> ShardT:
        """The shard that has the key; raises when it is elsewhere, or not ready."""
        topic = self._replicas.topics.get(self._topic)
        if topic is None:
            raise BrokerError(
                f"the coordinator of '{key}' is not known yet", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        slot = self._slots.get(partition_for(key, len(topic.partitions)))
        if slot is not None and slot.shard is not None:
            return slot.shard
        return self._late_shard(key, slot)

    def _late_shard(self, key: str, slot: ShardSlot[ShardT] | None) -> ShardT:
        if slot is None:
            raise BrokerError(
                f"'{key}' is coordinated by another broker", ErrorCode.NOT_COORDINATOR
            )
        if slot.phase is Phase.STOPPED:
            raise BrokerError(slot.reason, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if slot.phase is Phase.QUEUED:
            self._queue.remove(slot)
            self._start_if_empty(slot)
            if slot.shard is not None:
                return slot.shard
            if slot.phase is Phase.QUEUED:
                self._queue.appendleft(slot)  # somebody waits for it
        raise BrokerError(f"{slot} is being read back", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def writable_shard_of(self, key: str) -> ShardT:
        """As `shard_of`; raises also while its log takes no writes (no room, too few replicas in sync)."""
        shard = self.shard_of(key)
        shard.check_writable()
        return shard

    # Loading -----------------------------------------------------------------------------------

    def _load_soon(self) -> None:
        if self._queue and (self._loader is None or self._loader.done()) and not self._closed:
            self._loader = self._spawn(self._load_all(), f"load-{self._topic}")

    async def _load_all(self) -> None:
        """One after the other: reading them all at once would be no faster."""
        while self._queue:
            slot = self._queue.popleft()
            if slot.phase is Phase.QUEUED:  # else its epoch is over
                self._start_if_empty(slot)
            if slot.phase is Phase.QUEUED:
                await self._load(slot)
            await asyncio.sleep(0)

    def _start_if_empty(self, slot: ShardSlot[ShardT]) -> None:
        """There is nothing to wait for where nothing was ever written."""
        try:
            log = slot.partition.log
            if log.next_offset > log.start_offset:
                return
            replay = self._new_replay()
            replay.finish()
            self._start(slot, replay)
        except Exception as error:  # noqa: BLE001 - one that cannot be started must not keep others from it
            self._could_not_load(slot, error)

    async def _load(self, slot: ShardSlot[ShardT]) -> None:
        """Read the slot's log and start its shard, unless the slot is closed before the end."""
        slot.load()
        started_ms = self._clock.monotonic_ms()
        replay = self._new_replay()
        try:
            count = await shard_log.read_all(
                slot.partition, self._replicas, replay, is_wanted=lambda: slot.is_open
            )
            if slot.is_open:
                self._start(slot, replay)
        except Exception as error:  # noqa: BLE001 - one that cannot be read must not keep others from it
            if slot.is_open:
                self._could_not_load(slot, error)
        else:
            if slot.is_open:
                took_ms = self._clock.monotonic_ms() - started_ms
                _log.info("shard-loaded partition=%s records=%d ms=%d", slot, count, took_ms)

    def _start(self, slot: ShardSlot[ShardT], replay: ReplayT) -> None:
        shard = self._open_shard(
            replay, slot.partition, lambda _: self._load_later(slot, _RELOAD_DELAY_S)
        )
        slot.activate(shard)
        shard.begin()

    def _could_not_load(self, slot: ShardSlot[ShardT], error: Exception) -> None:
        """What the machine lacks at the moment (room, descriptors) it may have later; a log that failed does not heal."""
        partition = slot.partition
        if isinstance(error, StorageFault):
            error = partition.storage_failed(error)
        elif not isinstance(error, UnknownRecord | BrokerError):
            _log.error("shard-load-failed partition=%s", slot, exc_info=error)
        if isinstance(error, BrokerError) and partition.failure is None:
            _log.warning("shard-not-loaded partition=%s error=%s", slot, error)
            self._load_later(slot, _LOAD_AGAIN_S)
        else:
            reason = f"{slot} cannot be read: {error}"
            slot.stop(reason)  # only an operator can help: an upgrade, or a log that was repaired
            _log.critical("shard-stopped partition=%s reason=%s", slot, reason)

    def _load_later(self, slot: ShardSlot[ShardT], delay_s: float) -> None:
        """Close the slot's shard and read back, after a moment, what its log really has."""
        if slot.is_open:
            slot.wait(delay_s, self._load_again)

    def _load_again(self, slot: ShardSlot[ShardT]) -> None:
        self._enqueue(slot)
        self._load_soon()
