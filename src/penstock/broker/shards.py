"""The shards of a coordinator: one for each partition of its internal topic that this broker leads.

A shard is usable when all of its log has been read. What cannot be understood there stops it, and says so.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, Generic, NamedTuple, TypeVar

from penstock.broker import shard_log
from penstock.broker.cluster import Cluster, Spawn
from penstock.broker.partition import Partition
from penstock.broker.partition_log import NOBODY
from penstock.broker.replicas import Replicas
from penstock.broker.shard import LogShard
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
        replicas: Replicas,
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
        self._shards: dict[int, ShardT] = {}
        self._unloaded: deque[int] = deque()  # led, and not read yet
        self._stopped: dict[int, str] = {}  # led, and why it cannot be used
        self._epochs: dict[int, int] = {}  # leader epochs of what is led
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
        for index in list(self._shards):
            self._shards.pop(index).close()

    def _apply(self, delta: Delta) -> None:
        names = [topic.name for topic in (*delta.created, *delta.deleted)]
        names += [change.new.name for change in delta.changed]
        if self._topic in names or self._cluster.broker_id in delta.brokers:
            self._take_over()

    def _take_over(self) -> None:
        """Shards for the partitions that are led now; those of an older epoch, or elsewhere, are closed."""
        topic = None if self._closed else self._replicas.topics.get(self._topic)
        led = {}
        for partition in () if topic is None else topic.partitions:
            if partition is not None and partition.is_leader:
                led[partition.index] = partition.leader_epoch
        for index, epoch in list(self._epochs.items()):
            if led.get(index) != epoch:
                self._drop(index)
        for index, epoch in led.items():
            if index not in self._epochs:
                self._epochs[index] = epoch
                self._unloaded.append(index)
        self._load_soon()

    def _drop(self, index: int) -> None:
        del self._epochs[index]
        self._stopped.pop(index, None)
        if index in self._unloaded:
            self._unloaded.remove(index)
        shard = self._shards.pop(index, None)
        if shard is not None:
            shard.close()

    # Finding -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ShardT]:
        """Those that can be used now."""
        return iter(list(self._shards.values()))

    def __contains__(self, shard: object) -> bool:
        return any(shard is known for known in self._shards.values())

    @property
    def is_loading(self) -> bool:
        """Whether anything that is led here cannot be used yet."""
        return len(self._shards) + len(self._stopped) < len(self._epochs)

    @property
    def stopped_count(self) -> int:
        return len(self._stopped)

    def at(self, index: int) -> ShardT | None:
        """The shard of a partition; None if it was stopped. Raises while it is being read back."""
        shard = self._shards.get(index)
        if shard is not None or index in self._stopped:
            return shard
        return self._late_shard(f"{self._topic}-{index}", index)

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
        index = partition_for(key, len(topic.partitions))
        shard = self._shards.get(index)
        return self._late_shard(key, index) if shard is None else shard

    def _late_shard(self, key: str, index: int) -> ShardT:
        if index not in self._epochs:
            raise BrokerError(
                f"'{key}' is coordinated by another broker", ErrorCode.NOT_COORDINATOR
            )
        if index in self._stopped:
            raise BrokerError(self._stopped[index], ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if index in self._unloaded:
            self._unloaded.remove(index)
            self._unloaded.appendleft(index)
            if self._load_if_empty(index):
                return self._shards[index]
        raise BrokerError(
            f"{self._topic}-{index} is being read back", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        )

    def writable_shard_of(self, key: str) -> ShardT:
        """Refuse what would have to be written while nothing can be: memory must not run ahead."""
        shard = self.shard_of(key)
        unable = self._replicas.unable
        if unable is not None:
            raise BrokerError(str(unable), ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return shard

    # Loading -----------------------------------------------------------------------------------

    def _load_soon(self) -> None:
        if self._unloaded and (self._loader is None or self._loader.done()) and not self._closed:
            self._loader = self._spawn(self._load_all(), f"load-{self._topic}")

    async def _load_all(self) -> None:
        """One after the other: reading them all at once would be no faster."""
        while self._unloaded:
            index = self._unloaded[0]
            if not self._load_if_empty(index) and index in self._unloaded:
                self._unloaded.remove(index)
                await self._load(index, self._epochs[index])
            await asyncio.sleep(0)

    def _load_if_empty(self, index: int) -> bool:
        """There is nothing to wait for where nothing was ever written."""
        try:
            partition = self._partition(index)
            if partition.log.next_offset > partition.log.start_offset:
                return False
        except BrokerError as error:
            self._could_not_load(index, error)
            return False
        self._unloaded.remove(index)
        replay = self._new_replay()
        replay.finish()
        self._start(index, partition, replay)
        return True

    async def _load(self, index: int, epoch: int) -> None:
        started_ms = self._clock.monotonic_ms()
        replay = self._new_replay()
        try:
            partition = self._partition(index)
            count = await shard_log.read_all(partition, self._replicas, replay)
        except Exception as error:  # noqa: BLE001 - one that cannot be read must not keep others from it
            if self._epochs.get(index) == epoch:
                self._could_not_load(index, error)
            return
        if self._epochs.get(index) != epoch or self._closed:
            return  # led elsewhere, or anew, meanwhile
        self._start(index, partition, replay)
        took_ms = self._clock.monotonic_ms() - started_ms
        _log.info("shard-loaded partition=%s records=%d ms=%d", partition, count, took_ms)

    def _could_not_load(self, index: int, error: Exception) -> None:
        """What the machine lacks at the moment (room, descriptors) it may have later; a log that failed does not heal."""
        partition = self._hosted(index)
        if isinstance(error, StorageFault) and partition is not None:
            error = partition.storage_failed(error)
        elif not isinstance(error, UnknownRecord | BrokerError):
            _log.error("shard-load-failed topic=%s index=%d", self._topic, index, exc_info=error)
        if isinstance(error, BrokerError) and partition is not None and partition.failure is None:
            _log.warning("shard-not-loaded topic=%s index=%d error=%s", self._topic, index, error)
            if index in self._unloaded:
                self._unloaded.remove(index)
            self._reload(index, _LOAD_AGAIN_S)
        else:
            self._stop(index, f"{self._topic}-{index} cannot be read: {error}")

    def _hosted(self, index: int) -> Partition | None:
        try:
            return self._partition(index)
        except BrokerError:
            return None

    def _start(self, index: int, partition: Partition, replay: ReplayT) -> None:
        shard = self._open_shard(replay, partition, lambda _: self._reload(index))
        self._shards[index] = shard
        shard.begin()

    def _reload(self, index: int, delay_s: float = _RELOAD_DELAY_S) -> None:
        """Its log refused a write: read back what is really there, after a moment."""
        self._shards.pop(index, None)
        self._replicas.loop.call_later(delay_s, self._queue_again, index)

    def _queue_again(self, index: int) -> None:
        if index in self._epochs and index not in self._unloaded and index not in self._shards:
            self._unloaded.append(index)
            self._load_soon()

    def _stop(self, index: int, reason: str) -> None:
        """Only an operator can help: an upgrade, or a log that was repaired."""
        if index in self._unloaded:
            self._unloaded.remove(index)
        if index not in self._epochs:
            return  # the partition itself is gone
        self._stopped[index] = reason
        _log.critical("shard-stopped topic=%s index=%d reason=%s", self._topic, index, reason)

    def _partition(self, index: int) -> Partition:
        return self._replicas.partition(self._replicas.topic(self._topic), index)
