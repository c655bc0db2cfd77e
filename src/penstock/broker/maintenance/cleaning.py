"""Runs compactions one after another: decided and swapped in on the loop, done in the worker process."""

import logging
from contextlib import suppress
from typing import Final

from penstock.broker.controller.cluster import Cluster
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, StorageFault
from penstock.storage.cleaner import Outcome
from penstock.storage.compaction import POLICY, Allowance, Candidate, Round, choose
from penstock.storage.worker import Worker, WorkerFailed

_log = logging.getLogger(__name__)

_REST_MS: Final = 60_000  # after a compaction that failed
_SHORT_REST_MS: Final = 1000  # after one under which the log has changed


class Cleaning:
    def __init__(self, replicas: ReplicaManager, cluster: Cluster, clock: Clock) -> None:
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._worker = Worker()
        self._resting: dict[str, int] = {}  # until when, in monotonic ms, by the log's path

    def pause_s(self) -> float:
        return self._cluster.config.log_cleaner_backoff_ms / 1000

    def close(self) -> None:
        self._worker.close()

    async def run(self) -> None:
        """Compact what is due, dirtiest first; the worker ends when nothing is left."""
        if not self._cluster.config.log_cleaner_enable:
            return
        while (found := self._next_round()) is not None:
            rest_ms = await self._compact(found)
            if rest_ms:
                self._resting[found.log.path] = self._clock.monotonic_ms() + rest_ms
        if self._worker.is_running:
            await self._replicas.run_compaction(self._worker.end)

    def _next_round(self) -> Round | None:
        config, now_ms = self._cluster.config, self._replicas.expiry_clock.now_ms()
        monotonic_ms = self._clock.monotonic_ms()
        self._resting = {
            path: until for path, until in self._resting.items() if until > monotonic_ms
        }
        due = (
            self._if_due(partition, now_ms)
            for partition in self._replicas.partitions()
            if POLICY in partition.topic.config.cleanup_policy
            and partition.failure is None
            and self._replicas.has_log(partition)
        )
        found = [candidate for candidate in due if candidate is not None]
        if not found:
            return None
        candidate = max(found, key=lambda candidate: candidate.dirty_ratio)
        allowance = Allowance(
            config.log_cleaner_dedupe_buffer_size, config.log_cleaner_io_max_bytes_per_second
        )
        return Round(candidate, allowance, self._worker, now_ms)

    def _if_due(self, partition: Partition, now_ms: int) -> Candidate | None:
        try:
            if partition.log.path in self._resting:
                return None
            return choose([(partition.log, partition.last_stable_offset)], now_ms)
        except StorageFault as fault:
            partition.storage_failed(fault)
        except BrokerError as error:
            _log.error("care-failed partition=%s error=%s", partition, error)
        return None

    async def _compact(self, found: Round) -> int:
        """How long the log shall rest, so that the others have their turn; 0 when it was done."""
        metrics = self._replicas.metrics.compaction
        try:
            outcome = await self._steps(found)
        except Exception as error:
            if not any(log is found.log for log in self._replicas.directory.logs()):
                return _REST_MS  # deleted meanwhile, and its files with it
            if not isinstance(error, WorkerFailed | BrokerError):
                raise
            if not found.is_current():
                return _SHORT_REST_MS  # retention has taken segments from under it
            metrics.failures.value += 1
            _log.error("compaction-failed log=%s error=%s", found.log, error)
            return _REST_MS
        if outcome is None:
            return _SHORT_REST_MS
        metrics.runs.value += 1
        metrics.bytes_read.value += outcome.read_bytes
        metrics.bytes_written.value += outcome.written_bytes
        metrics.unreadable_batches.value += outcome.unreadable_batches
        if outcome.unreadable_batches:
            _log.error(
                "batches-unreadable log=%s batches=%d", found.log, outcome.unreadable_batches
            )
        _log.info(
            "compacted log=%s read-bytes=%d written-bytes=%d clean-upto=%d",
            found.log,
            outcome.read_bytes,
            outcome.written_bytes,
            outcome.clean_upto_offset,
        )
        return 0

    async def _steps(self, found: Round) -> Outcome | None:
        """None if the log has changed meanwhile."""
        in_thread = self._replicas.run_compaction
        outcome = await in_thread(found.clean)
        if not found.is_current():
            await in_thread(found.abandon)
            return None
        try:
            await in_thread(found.prepare)
        except WorkerFailed:
            with suppress(StorageFault):  # the log may be gone
                await in_thread(found.abandon)
            raise
        if not found.install():
            return None
        await in_thread(found.finish)
        return outcome
