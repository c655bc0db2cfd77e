"""What a broker does for its logs when nobody asks: sync, forget, compact, check, and watch the disk.

Each chore runs by itself, again and again. None may stall the loop: what is slow happens in a thread
or in the worker process, what is long is cut into pieces. A chore that fails is logged and runs again,
unless the disk failed: then the whole directory is offline.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

from penstock.broker.controller.cluster import Cluster
from penstock.broker.maintenance.cleaning import Cleaning
from penstock.broker.maintenance.scrubbing import Scrubbing
from penstock.broker.partitions.metadata_applier import MetadataApplier
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, DiskFull, OutOfResources, StorageFault
from penstock.storage.directory import remove_tree
from penstock.storage.usage import room

_log = logging.getLogger(__name__)

_SYNC_S: Final = 0.1
_DISK_S: Final = 1.0
_CLOCK_S: Final = 1.0
_HANG_LOOKS: Final = 4  # within the time that a sync may take
_SCARCE_BYTES: Final = 128 << 10  # so little that not even checkpoints and metadata have room
_REMOVE_S: Final = 5.0
_REMOVE_SOON_S: Final = 0.5
_PER_TURN: Final = 100  # logs looked at before others have their turn

Spawn = Callable[[Coroutine[Any, Any, None], str], object]


class Housekeeping:
    def __init__(
        self, replicas: ReplicaManager, cluster: Cluster, applier: MetadataApplier, clock: Clock
    ) -> None:
        self._applier = applier
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._cleaning = Cleaning(replicas, cluster, clock)
        self._scrubbing = Scrubbing(replicas, cluster)
        self._to_remove: list[str] = []  # files and directories of logs that are gone

    def start(self, spawn: Spawn) -> None:
        for name, chore, pause_s in (
            ("sync", self._sync_due, lambda: _SYNC_S),
            ("checkpoint", self._checkpoint, self._checkpoint_pause_s),
            ("watch-syncs", self._watch_syncs, self._hang_pause_s),
            ("watch-disk", self._watch_disk, lambda: _DISK_S),
            ("watch-clock", self._watch_clock, lambda: _CLOCK_S),
            ("remove-files", self._remove_files, self._remove_pause_s),
            ("retention", self._apply_retention, self._retention_pause_s),
            ("producer-expiry", self._expire_producers, self._expiry_pause_s),
            ("compaction", self._cleaning.run, self._cleaning.pause_s),
            ("scrub", self._scrubbing.run, self._scrubbing.pause_s),
        ):
            spawn(self._repeat(name, chore, pause_s), name)

    def stop(self) -> None:
        """End what runs outside of the loop."""
        self._cleaning.close()

    async def _repeat(
        self, name: str, chore: Callable[[], Awaitable[None]], pause_s: Callable[[], float]
    ) -> None:
        while True:
            await asyncio.sleep(pause_s())
            if self._replicas.is_offline:  # nothing more is written to a disk that failed
                continue
            try:
                await chore()
            except StorageFault as fault:
                self._replicas.disk_failed(fault)
            except DiskFull as error:
                self._replicas.disk_is_full(error)
            except BrokerError as error:
                if isinstance(error, OutOfResources):
                    self._replicas.directory.files.give_back()
                _log.warning("chore-put-off chore=%s error=%s", name, error)
            except Exception as error:  # noqa: BLE001 - a chore that fails is tried again
                _log.error("chore-failed chore=%s", name, exc_info=error)

    def _checkpoint_pause_s(self) -> float:
        """All three are written together, as often as the most frequent wants it."""
        config = self._cluster.config
        shortest_ms = min(
            config.log_flush_offset_checkpoint_interval_ms,
            config.log_flush_start_offset_checkpoint_interval_ms,
            config.replica_high_watermark_checkpoint_interval_ms,
        )
        return shortest_ms / 1000

    def _hang_pause_s(self) -> float:
        limit_ms = self._cluster.config.penstock_disk_hang_max_ms
        return min(limit_ms / 1000 / _HANG_LOOKS, _DISK_S)

    def _remove_pause_s(self) -> float:
        """Space is wanted soon where there is none, or where nothing shall be kept."""
        delay_s = self._cluster.config.log_segment_delete_delay_ms / 1000
        return _REMOVE_SOON_S if self._replicas.is_full or delay_s < _REMOVE_S else _REMOVE_S

    def _retention_pause_s(self) -> float:
        return self._cluster.config.log_retention_check_interval_ms / 1000

    def _expiry_pause_s(self) -> float:
        return self._cluster.config.producer_id_expiration_check_interval_ms / 1000

    # Durability --------------------------------------------------------------------------------

    async def _sync_due(self) -> None:
        """Ask for a sync of logs whose time or count has come, and of the largest when much is dirty."""
        now_ms = self._clock.monotonic_ms()
        excess_bytes = -self._cluster.config.penstock_dirty_bytes_max // 2
        by_size: list[tuple[int, Partition]] = []
        for partition, since_ms in list(self._replicas.unsynced.items()):
            if partition.failure is not None:
                del self._replicas.unsynced[partition]
                continue
            log, config = partition.log, partition.topic.config
            excess_bytes += log.unflushed_bytes
            if (
                now_ms - since_ms >= config.flush_ms
                or log.next_offset - log.recovery_point >= config.flush_messages
            ):
                self._replicas.sync_soon(partition)
            else:
                by_size.append((log.unflushed_bytes, partition))
        if excess_bytes > 0:
            for size_bytes, partition in sorted(by_size, key=lambda pair: -pair[0]):
                self._replicas.sync_soon(partition)
                excess_bytes -= size_bytes
                if excess_bytes <= 0:
                    break

    async def _watch_syncs(self) -> None:
        """A sync that does not return is one that failed (L4): who waits for it shall find another leader."""
        limit_s = self._cluster.config.penstock_disk_hang_max_ms / 1000
        hung = self._replicas.directory.syncs.hung(limit_s)
        if hung is not None:
            raise StorageFault(hung)

    async def _checkpoint(self) -> None:
        """Write down how far logs are durable, where they start, and their high watermarks."""
        directory = self._replicas.directory
        directory.store_revision = self._cluster.image.revision
        ticket = directory.checkpoint_begin(self._replicas.high_watermarks())
        await self._replicas.run_sync(ticket.write)
        directory.checkpoint_end(ticket)

    async def _watch_disk(self) -> None:
        """A disk that others have filled is full before the next append finds out."""
        replicas, directory = self._replicas, self._replicas.directory
        free_bytes = (await replicas.run_in_thread(lambda: room(directory.path))).usable_bytes
        if not replicas.is_full:
            if free_bytes < _SCARCE_BYTES:
                replicas.disk_is_full(
                    DiskFull(f"{directory.path}: {free_bytes} bytes are free; free some space")
                )
            return
        wanted_bytes = self._cluster.config.penstock_disk_reserve_bytes
        if free_bytes > wanted_bytes + directory.disk_reserve.size_bytes:
            await replicas.run_in_thread(directory.disk_reserve.take)
            replicas.disk_has_room()

    # Forgetting --------------------------------------------------------------------------------

    async def _apply_retention(self) -> None:
        await self._each_log(self._retain)

    async def _watch_clock(self) -> None:
        """A jump is noticed soon, not only when something is about to be deleted."""
        self._replicas.expiry_clock.now_ms()

    def _retain(self, partition: Partition) -> None:
        """Only the leader deletes what is old. Followers delete what lies below its log start (F3): one broker's
        wrong clock must not take the copies that the others' right clocks keep."""
        if not partition.is_leader:
            return
        metrics, log = self._replicas.metrics.retention, partition.log
        segments = len(log.segments)
        freed_bytes = log.apply_retention(
            self._replicas.expiry_clock.now_ms(), upto_offset=partition.last_stable_offset
        )
        if freed_bytes:
            metrics.segments.value += segments - len(log.segments)
            metrics.bytes.value += freed_bytes
            partition.wake()
            _log.info(
                "retention partition=%s freed-bytes=%d log-start=%d",
                partition,
                freed_bytes,
                log.start_offset,
            )

    async def _remove_files(self) -> None:
        delay_ms = self._cluster.config.log_segment_delete_delay_ms
        self._to_remove += self._replicas.directory.removable(self._clock.monotonic_ms(), delay_ms)
        while self._to_remove:  # one that cannot be removed now is kept for the next round
            await self._replicas.run_in_thread(partial(remove_tree, self._to_remove[0]))
            del self._to_remove[0]
        await self._applier.confirm_deleted()

    async def _expire_producers(self) -> None:
        """Each round counts for the pause before it, however long it was: whoever stood still with us is not idle."""
        config = self._cluster.config
        elapsed_ms = config.producer_id_expiration_check_interval_ms
        limit_ms = config.producer_id_expiration_ms
        await self._each_log(lambda partition: partition.log.producers.expire(elapsed_ms, limit_ms))

    async def _each_log(self, care: Callable[[Partition], object]) -> None:
        """For every log that can be used, opened for it; others run in between."""
        for number, partition in enumerate(list(self._replicas.partitions()), 1):
            try:
                if partition.failure is None and self._replicas.has_log(partition):
                    care(partition)
            except StorageFault as fault:
                partition.storage_failed(fault)
            except Exception as error:  # noqa: BLE001 - one bad log must not end the others' care
                trace = None if isinstance(error, BrokerError) else error
                _log.error("care-failed partition=%s error=%s", partition, error, exc_info=trace)
            if number % _PER_TURN == 0:
                await asyncio.sleep(0)
