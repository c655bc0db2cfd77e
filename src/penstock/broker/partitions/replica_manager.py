"""Every partition that this broker hosts, found by topic name or id, and the disk under them all."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeVar

from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.flusher import Flusher
from penstock.broker.partitions.opening import BatchOpener
from penstock.broker.partitions.partition import Partition, Topic
from penstock.broker.partitions.steady_clock import SteadyClock
from penstock.broker.partitions.throttles import Throttles
from penstock.broker.partitions.turns import Turns
from penstock.broker.partitions.waiters import Watcher
from penstock.model.clock import Clock
from penstock.model.configs import TopicConfig
from penstock.model.errors import (
    BrokerError,
    DiskFull,
    ErrorCode,
    NotLeader,
    StorageFault,
    UnknownTopicOrPartition,
)
from penstock.model.ids import TopicId
from penstock.storage.directory import DataDirectory
from penstock.storage.log import Log
from penstock.storage.recovery import Ending

_log = logging.getLogger(__name__)

_LOOKED_AT_TOGETHER: Final = 500  # logs, before others have their turn
_FILES_OF_A_FLUSH: Final = 4  # descriptors that the flush of a log holds, or fewer

T = TypeVar("T")


class Replication(Protocol):
    """See Host for what partitions ask."""

    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool: ...
    def fell_behind(self, partition: Partition) -> None: ...
    def isr_changes(self, partition: Partition, members: tuple[int, ...]) -> None: ...
    def made_durable(self, partition: Partition) -> None: ...


class ReplicaManager:
    """The partitions of this broker. Only the event loop calls it."""

    def __init__(
        self,
        directory: DataDirectory,
        metrics: BrokerMetrics,
        loop: asyncio.AbstractEventLoop,
        disk_threads: Executor,
        clock: Clock,
        *,
        sync_threads: Executor | None = None,
        compaction_threads: Executor | None = None,
    ) -> None:
        """`sync_threads` write and sync, and do nothing else: cold reads and a compaction that waits for its
        worker must not delay an acknowledgement. Without them `disk_threads` do everything."""
        self.loop = loop
        self._clock = clock
        self.expiry_clock = SteadyClock(clock)  # for what is deleted because it is old
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[bytes, Topic] = {}
        self.unsynced: dict[Partition, int] = {}  # since when, in monotonic ms
        self.directory = directory
        self.metrics = metrics
        self._grown: list[Partition] = []
        self._sync_threads = sync_threads or disk_threads
        self._compaction_threads = compaction_threads or disk_threads
        self._flusher = Flusher(
            loop,
            self._sync_threads,
            syncs=directory.syncs,
            on_fault=self.disk_failed,
            on_sync=lambda seconds: metrics.flush_ms.observe(seconds * 1000),
            on_shortage=directory.files.give_back,
            partitions_max=max(directory.files.limit // _FILES_OF_A_FLUSH, 1),
        )
        self._disk_threads = disk_threads
        self._unable: BrokerError | None = None
        self._outdated_marks = False  # high watermarks are written down that logs no longer reach
        self.throttles: Throttles | None = None
        self.on_damage: Callable[[Partition], None] | None = None
        self.has_copies: Callable[[Partition], bool] | None = None  # whether it has other replicas
        self.on_stop: Callable[[Partition], None] | None = None
        self.on_shortfall: Callable[[Partition, int], None] | None = None
        self.replication: Replication | None = None  # what partitions with other replicas need
        self.turns = Turns()
        self.opener = BatchOpener(self.run_in_thread, self.turns)
        self.is_cut_off = False  # from the metadata store: others may lead by now (B5)

    def connection_changed(self, is_connected: bool) -> None:
        self.is_cut_off = not is_connected

    # Finding -----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartition(f"topic '{name}' does not exist")
        return topic

    def topic_by_id(self, topic_id: bytes) -> Topic:
        topic = self.topics_by_id.get(topic_id)
        if topic is None:
            raise BrokerError(f"no topic has the id {topic_id.hex()}", ErrorCode.UNKNOWN_TOPIC_ID)
        return topic

    def partition(self, topic: Topic, index: int) -> Partition:
        """The partition, which this broker leads."""
        if not 0 <= index < len(topic.partitions):
            raise UnknownTopicOrPartition(
                f"topic '{topic.name}' has {len(topic.partitions)} partitions; there is no {index}"
            )
        partition = topic.partitions[index]
        if partition is None or not partition.is_leader:
            if partition is not None:
                partition.check_leader()
            raise NotLeader(f"{topic.name}-{index} is hosted by other brokers")
        return partition

    def hosted(self, topic: Topic, index: int) -> Partition:
        """As `partition`, but it may be led elsewhere."""
        found = topic.partitions[index] if 0 <= index < len(topic.partitions) else None
        return self.partition(topic, index) if found is None else found

    def partitions(self) -> Iterator[Partition]:
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition is not None:
                    yield partition

    def failed(self, topic: str) -> frozenset[int]:
        """Which partitions of the topic are here and cannot be used."""
        hosted = self.topics.get(topic)
        partitions = hosted.partitions if hosted is not None else ()
        return frozenset(p.index for p in partitions if p is not None and p.failure is not None)

    def open_partitions(self) -> Iterator[Partition]:
        """Those whose logs are in use."""
        return (p for p in self.partitions() if p.is_open and p.failure is None)

    def has_log(self, partition: Partition) -> bool:
        """Whether anything was ever written to it."""
        path = self.directory.partition_path(partition.topic.name, partition.index)
        return partition.is_open or os.path.isdir(path)

    def high_watermarks(self) -> dict[TopicId, dict[int, int]]:
        """Of the logs in use."""
        found: dict[TopicId, dict[int, int]] = {}
        for partition in self.open_partitions():
            found.setdefault(partition.topic.id, {})[partition.index] = partition.high_watermark
        return found

    async def recover(self) -> None:
        """Open every log that the last run may have left torn, before serving. Each waits for the disk;
        between them health checks and signals have their turn."""
        if self.directory.ending is Ending.CLEAN:
            await self._find_changed()
            return
        metrics, begun_ms = self.metrics.recovery, self._clock.monotonic_ms()
        torn = [p for p in self.partitions() if self.has_log(p) or self.saved_high_watermark(p)]
        metrics.remaining_logs.set(len(torn))
        for partition in torn:
            self._recover(partition)
            metrics.logs.value += 1
            metrics.remaining_logs.value -= 1
            await asyncio.sleep(0)
        if self._outdated_marks:
            await self._note_marks()
        metrics.seconds.set((self._clock.monotonic_ms() - begun_ms) / 1000)
        _log.info("recovered logs=%d ending=%s", len(torn), self.directory.ending.value)

    async def _find_changed(self) -> None:
        """A log that has changed since the last run ended well is damaged, and must not lead (L3). Only names and
        sizes are looked at: the others are opened when they are first used."""
        partitions = list(self.partitions())
        for first in range(0, len(partitions), _LOOKED_AT_TOGETHER):
            some = partitions[first : first + _LOOKED_AT_TOGETHER]
            for partition in await self.run_in_thread(partial(self._changed, some)):
                self._recover(partition)

    def _changed(self, partitions: list[Partition]) -> list[Partition]:
        """In a thread."""
        return [partition for partition in partitions if not self._is_as_left(partition)]

    def _is_as_left(self, partition: Partition) -> bool:
        topic = partition.topic
        try:
            return self.directory.is_as_left(topic.name, topic.id, partition.index)
        except (OSError, StorageFault, BrokerError):
            return False  # it will say so itself

    def _recover(self, partition: Partition) -> None:
        try:
            found = partition.log.recovery
        except BrokerError as error:
            if partition.failure is None:  # else it has said so itself
                _log.critical("log-not-opened partition=%s error=%s", partition, error)
            return
        metrics = self.metrics.recovery
        metrics.bytes.value += found.scanned_bytes
        metrics.truncated_bytes.value += found.dropped_bytes
        if found.dropped_bytes:
            _log.warning(
                "torn-tail-dropped partition=%s bytes=%d next-offset=%d",
                partition,
                found.dropped_bytes,
                partition.log.next_offset,
            )
        self._tell_what_is_lost(partition)

    def _tell_what_is_lost(self, partition: Partition) -> None:
        """Loss of power may take what was acknowledged and not synced; somebody should know."""
        committed = self.saved_high_watermark(partition)
        if partition.log.next_offset < committed:
            _log.error(
                "offsets-lost partition=%s next-offset=%d high-watermark-was=%d",
                partition,
                partition.log.next_offset,
                committed,
            )
            if self._lost_power(partition):
                self._outdated_marks = True
            elif self.on_shortfall is not None:
                self.on_shortfall(partition, committed)

    def _lost_power(self, partition: Partition) -> bool:
        """Whether anything less than what was synced can be expected to be there."""
        directory = self.directory
        ending = directory.ending_of(partition.topic.id, partition.index)
        return Ending.POWER_LOSS in (ending, directory.last_run.untold)

    async def _note_marks(self) -> None:
        """What was lost is not missed again after the next crash."""
        self._outdated_marks = False
        ticket = self.directory.checkpoint_begin(self.high_watermarks())
        try:
            await self.run_sync(ticket.write)
        except StorageFault as fault:
            self.disk_failed(fault)
        except BrokerError as error:  # no room: the next checkpoint does it
            _log.warning("high-watermarks-not-noted error=%s", error)
        else:
            self.directory.checkpoint_end(ticket)

    # What the cluster decided ------------------------------------------------------------------

    def add_topic(
        self, name: str, topic_id: TopicId, config: TopicConfig, promotion: int = 0
    ) -> Topic:
        topic = Topic(name, topic_id, config, self.metrics.topic(name), promotion)
        self.topics[name] = topic
        self.topics_by_id[topic_id] = topic
        return topic

    def add_partition(self, topic: Topic, leader_epoch: int, *, hosted: bool = True) -> None:
        """The next partition of the topic; one that other brokers host is only counted here."""
        index = len(topic.partitions)
        topic.partitions.append(Partition(topic, index, leader_epoch, self) if hosted else None)

    def host_partition(self, topic: Topic, index: int, leader_epoch: int) -> Partition:
        """This broker hosts one from now on that others hosted so far."""
        assert topic.partitions[index] is None
        topic.partitions[index] = partition = Partition(topic, index, leader_epoch, self)
        return partition

    def drop_partition(self, topic: Topic, index: int) -> None:
        """Others host it from now on; its files are set aside, and removed later."""
        partition = topic.partitions[index]
        assert partition is not None
        topic.partitions[index] = None
        self.unsynced.pop(partition, None)
        partition.fail(NotLeader(f"{partition} was moved to other brokers"))
        try:
            self.directory.give_up(topic.name, topic.id, index)
        except StorageFault as fault:
            self.disk_failed(fault)
        except BrokerError as error:  # no room to rename it
            _log.error("partition-left-behind partition=%s error=%s", partition, error)

    def start_over(self, partition: Partition) -> None:
        """From nothing: what was its log is set aside."""
        topic = partition.topic
        self.unsynced.pop(partition, None)
        self.directory.give_up(topic.name, topic.id, partition.index)
        partition.start_over()

    def configure(self, name: str, config: TopicConfig, promotion: int = 0) -> None:
        topic = self.topics[name]
        topic.configure(config, promotion)
        for partition in topic.partitions:
            if partition is not None and partition.is_open and partition.failure is None:
                try:
                    partition.log.configure(config)
                except StorageFault as fault:  # as of any other read
                    partition.storage_failed(fault)

    def remove_topic(self, name: str) -> None:
        """Forget the topic; its files are renamed at once and removed later."""
        topic = self.topics.pop(name)
        del self.topics_by_id[topic.id]
        gone = UnknownTopicOrPartition(f"topic '{name}' was deleted")
        for partition in topic.partitions:
            if partition is not None:
                self.unsynced.pop(partition, None)
                partition.fail(gone)
        try:
            self.directory.delete_topic(name, topic.id)
        except StorageFault as fault:
            self.disk_failed(fault)
        except BrokerError as error:  # no room to rename it: the next start finds it unknown
            _log.error("topic-left-behind topic=%s error=%s", name, error)
        self.metrics.forget_topic(name)

    def stop(self) -> None:
        """Begin no more syncs, and reject every write: the logs are about to be closed."""
        self._flusher.stop()
        self.directory.stop_writes()

    async def flushes_ended(self) -> None:
        await self._flusher.ended()

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Do something slow with the disk, without the loop waiting for it."""
        return await self.loop.run_in_executor(self._disk_threads, work)

    async def run_sync(self, write: Callable[[], None]) -> None:
        """Write and sync something small, beside the logs. It is noticed when no thread begins it."""
        begun = self.directory.syncs.waiting("a checkpoint")

        def work() -> None:
            begun()
            write()

        try:
            await self.loop.run_in_executor(self._sync_threads, work)
        finally:
            begun()

    async def run_compaction(self, work: Callable[[], T]) -> T:
        """Wait for the worker, for as long as a compaction takes."""
        return await self.loop.run_in_executor(self._compaction_threads, work)

    # What partitions ask for -------------------------------------------------------------------

    def open_log(self, partition: Partition) -> Log:
        if self.is_offline:
            self.refuse_when_unable()
        topic, index = partition.topic, partition.index
        has_copies = self.has_copies is not None and self.has_copies(partition)
        return self.directory.log_for(
            topic.name, topic.id, index, topic.config, has_copies=has_copies
        )

    def grew(self, partition: Partition) -> None:
        self._grown.append(partition)
        if len(self._grown) == 1:
            self.loop.call_soon(self._wake)

    def has_unsynced(self, partition: Partition) -> None:
        self.unsynced[partition] = self._clock.monotonic_ms()

    def sync_soon(self, partition: Partition) -> None:
        self.unsynced.pop(partition, None)
        self._flusher.request(partition)

    def saved_high_watermark(self, partition: Partition) -> int:
        """Up to where it was committed, as far as that was written down."""
        return self.directory.high_watermark(partition.topic.id, partition.index) or 0

    def monotonic_ms(self) -> int:
        return self._clock.monotonic_ms()

    def is_awaited(self, broker_id: int, caught_up_ms: int) -> bool:
        return self.replication is not None and self.replication.is_awaited(broker_id, caught_up_ms)

    def fell_behind(self, partition: Partition) -> None:
        if self.replication is not None:
            self.replication.fell_behind(partition)

    def isr_changes(self, partition: Partition, members: tuple[int, ...]) -> None:
        if self.replication is not None:
            self.replication.isr_changes(partition, members)

    def log_failed(self, partition: Partition) -> None:
        if self.on_damage is not None:
            self.on_damage(partition)

    def replica_stopped(self, partition: Partition) -> None:
        self.metrics.replication.stopped.value += 1
        if self.on_stop is not None:
            self.on_stop(partition)

    def made_durable(self, partition: Partition) -> None:
        if self.replication is not None:
            self.replication.made_durable(partition)

    def _wake(self) -> None:
        """End of the tick: everyone who waits for a partition that grew hears of it once."""
        grown, self._grown = self._grown, []
        told: dict[Watcher, None] = {}
        for partition in grown:
            size_bytes, partition.grown_bytes = partition.grown_bytes, 0
            if size_bytes:
                self._tell(partition, partition.watchers, size_bytes, told)
            size_bytes, partition.written_bytes = partition.written_bytes, 0
            if size_bytes:
                self._tell(partition, partition.replica_watchers, size_bytes, told)
        for watcher in told:
            try:
                watcher.try_complete()
            except Exception:  # noqa: BLE001 # a bug, and no reason for all others to wait for ever
                _log.exception("watcher-failed watcher=%s", watcher)

    def _tell(
        self,
        partition: Partition,
        watchers: set[Watcher] | None,
        size_bytes: int,
        told: dict[Watcher, None],
    ) -> None:
        for watcher in watchers or ():
            try:
                watcher.grew(partition, size_bytes)
            except Exception:  # noqa: BLE001 # as above
                _log.exception("watcher-failed partition=%s", partition)
            else:
                told[watcher] = None

    # The disk ----------------------------------------------------------------------------------

    @property
    def unable(self) -> BrokerError | None:
        """Why appends are refused at the moment."""
        return self._unable

    @property
    def is_offline(self) -> bool:
        return self._unable is not None and not self.is_full

    @property
    def is_full(self) -> bool:
        return isinstance(self._unable, DiskFull)

    def refuse_when_unable(self) -> None:
        if self._unable is not None:
            raise self._unable.again()

    def disk_is_full(self, error: DiskFull) -> None:
        """Refuse appends until `disk_has_room`; reads go on, and so does what frees space."""
        if self._unable is None:
            self._unable = error.again()
            self.directory.disk_reserve.release()
            self.metrics.disk_full.set(1)
            _log.error("disk-full error=%s", error)

    def disk_has_room(self) -> None:
        if isinstance(self._unable, DiskFull):
            self._unable = None
            self.metrics.disk_full.set(0)
            _log.warning("disk-has-room appends=%s", "taken-again")

    def disk_failed(self, error: StorageFault) -> None:
        """The disk failed or lied: nothing on it can be trusted to be written, so all of it stops."""
        if self.is_offline:
            return
        refusal = BrokerError(
            f"the data directory is offline: {error}", ErrorCode.KAFKA_STORAGE_ERROR
        )
        self._unable = refusal
        self.metrics.disk_full.set(0)
        self.metrics.directory_offline.set(1)
        _log.critical("data-directory-offline error=%s", error)
        for partition in self.partitions():
            partition.fail(refusal)
        with suppress(RuntimeError):  # at the very end there are no threads any more
            noted = self.loop.run_in_executor(self._sync_threads, self.directory.note_failed)
            noted.add_done_callback(_tell_if_not_noted)


def _tell_if_not_noted(done: "asyncio.Future[None]") -> None:
    """The controller remembers it as well."""
    if not done.cancelled() and (error := done.exception()) is not None:
        _log.error("failure-not-noted error=%s", error)
