"""The transactions that this broker coordinates: a shard for each partition of __transaction_state that it leads.

What a producer writes in a transaction enters a log only if the coordinator is sure to end it there
(KIP-890): the partition is in the transaction, and that is committed.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from penstock.broker.controller.cluster import Cluster, Spawn
from penstock.broker.coordinators.groups import GroupCoordinator
from penstock.broker.coordinators.marker_sending import MarkerSender
from penstock.broker.coordinators.markers import MarkerWriter
from penstock.broker.coordinators.shards import Lost, Shards
from penstock.broker.coordinators.txn_shard import Answer, TxnShard
from penstock.broker.coordinators.verification import UNHEARD, Check, LocalCheck, Verifier
from penstock.broker.metrics import BrokerMetrics
from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError, ErrorCode, UnknownRecord
from penstock.model.features import TRANSACTION_VERSION
from penstock.model.ids import TopicPartition
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Initialize,
    Markers,
    NeedProducerId,
    Outcome,
    Overdue,
)
from penstock.transactions.machine import verify
from penstock.transactions.shard import Shard
from penstock.transactions.state import EPOCH_PER_TRANSACTION, Now, Producer, Transaction

_log = logging.getLogger(__name__)

STATE_TOPIC: Final = "__transaction_state"
MAX_ID_BYTES: Final = 32_767  # what a record's key can hold
Verdicts = dict[TopicPartition, ErrorCode]
_SWEEP_SLICE: Final = 100  # transactions that are ended between two chances for others


class Standing(NamedTuple):
    """What a coordinator here knows of a transactional id, and its own epoch."""

    transaction: Transaction | None
    coordinator_epoch: int

    def refusal(self, producer: Producer, partition: Partition) -> ErrorCode:
        """Why the producer may not write there now. NONE: it may, before anything else happens."""
        code = verify(self.transaction, producer, partition.name)
        if code:
            return code
        if partition.log.producers.coordinator_epoch(producer.id) > self.coordinator_epoch:
            return ErrorCode.NOT_COORDINATOR  # a newer one has ended something here
        return ErrorCode.NONE


class TxnReplay:
    """A shard that is being read back."""

    def __init__(self, now: Now) -> None:
        self.core = Shard()
        self._now = now

    def apply(self, key: bytes, value: bytes | None) -> None:
        self.core.apply(key, value, self._now)

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:  # noqa: ARG002 - a Replay
        raise UnknownRecord(f"a record of producer {producer_id}, in a transaction of its own")

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """A marker alone ends nothing here: no record is ever taken in a transaction."""

    def finish(self) -> None: ...


class TransactionCoordinator:
    """Begun after groups; only the event loop calls it."""

    def __init__(
        self,
        replicas: ReplicaManager,
        cluster: Cluster,
        groups: GroupCoordinator,
        clock: Clock,
        spawn: Spawn,
        metrics: BrokerMetrics,
    ) -> None:
        self.markers = MarkerWriter(replicas, groups, clock)
        self._sender = MarkerSender(self.markers, cluster, replicas.loop, spawn)
        self._verifier = Verifier(cluster.peers, spawn)
        self._replicas = replicas
        self._cluster = cluster
        self._clock = clock
        self._spawn = spawn
        self._shards: Shards[TxnReplay, TxnShard] = Shards(
            STATE_TOPIC,
            replicas,
            cluster,
            clock,
            spawn,
            new_replay=lambda: TxnReplay(self._expiry_now()),
            open_shard=self._open_shard,
        )
        self._sweepers: list[asyncio.Task[None]] = []
        self._report(metrics)

    # Life --------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over what this broker leads, and finish what was decided before."""
        self._shards.begin()
        self._sweepers = [
            self._spawn(self._abort_overdue(), "transaction-timeouts"),
            self._spawn(self._forget_expired(), "transactional-id-expiry"),
        ]

    def close(self) -> None:
        for task in self._sweepers:
            task.cancel()
        self._shards.close()

    def _now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def _expiry_now(self) -> Now:
        """For what is ended because it is old."""
        return Now(self._clock.monotonic_ms(), self._replicas.expiry_clock.now_ms())

    def _open_shard(self, replay: TxnReplay, partition: Partition, lost: Lost) -> TxnShard:
        return TxnShard(
            replay.core,
            partition,
            self._replicas.loop,
            self._clock,
            lost,
            send=self._send,
            need_id=self._need_id,
            level=lambda: self._cluster.level(TRANSACTION_VERSION),
        )

    def _send(self, shard: TxnShard, markers: Markers) -> None:
        self._sender.send(
            markers,
            shard.epoch,
            is_wanted=lambda: shard.is_open,
            done=lambda: shard.markers_written(markers),
        )

    def _need_id(self, shard: TxnShard, transactional_id: str, need: NeedProducerId) -> None:
        self._spawn(self._give_id(shard, transactional_id, need), "producer-id")

    async def _give_id(self, shard: TxnShard, transactional_id: str, need: NeedProducerId) -> None:
        try:
            fresh_id = await self._cluster.next_producer_id()
            if shard.is_open:
                shard.check_writable()
                shard.deliver(transactional_id, replace(need.request, fresh_id=fresh_id))
        except Exception as error:  # noqa: BLE001 - nobody may be left without an answer
            if not isinstance(error, BrokerError):
                _log.exception("no-producer-id transactional-id=%s", transactional_id)
            refusal = BrokerError(str(error), ErrorCode.COORDINATOR_NOT_AVAILABLE)
            shard.refuse(need.request.reply_to, refusal)

    # Finding -----------------------------------------------------------------------------------

    async def coordinator_of(self, transactional_id: str) -> int:
        """The broker that coordinates it. The first question ever makes the topic of their states."""
        return await self._shards.coordinator_of(transactional_id)

    @property
    def is_loading(self) -> bool:
        return self._shards.is_loading

    def transactions(self) -> Iterator[Transaction]:
        for shard in self._shards:
            yield from list(shard.core.transactions.values())

    def find(self, transactional_id: str) -> Transaction | None:
        """Raises when it is coordinated elsewhere, or not ready."""
        return self.standing(transactional_id).transaction

    def standing(self, transactional_id: str) -> Standing:
        """Raises likewise."""
        shard = self._shards.shard_of(_checked(transactional_id))
        return Standing(shard.core.transactions.get(transactional_id), shard.epoch)

    def _shard_of(self, transactional_id: str) -> TxnShard:
        return self._shards.writable_shard_of(_checked(transactional_id))

    # Asking ------------------------------------------------------------------------------------

    # Each is answered at once where it can be, else in time. Refusals are raised, or the future's.

    def initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Answer:
        longest_ms = self._cluster.config.transaction_max_timeout_ms
        if not 0 < timeout_ms <= longest_ms:
            raise BrokerError(
                f"a transaction timeout of {timeout_ms} ms; 1 to {longest_ms} are allowed"
                " (transaction.max.timeout.ms)",
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            )
        return self._shard_of(transactional_id).step(
            transactional_id, lambda reply_to: Initialize(reply_to, timeout_ms, expected)
        )

    def add(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        version: int = 0,
    ) -> Answer:
        names = frozenset(partitions)
        if any(name.topic == STATE_TOPIC for name in names):
            raise BrokerError(
                f"'{STATE_TOPIC}' is in no transaction", ErrorCode.INVALID_TOPIC_EXCEPTION
            )
        return self._shard_of(transactional_id).step(
            transactional_id, lambda reply_to: Add(reply_to, producer, names, version)
        )

    def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, version: int
    ) -> Answer:
        return self._shard_of(transactional_id).step(
            transactional_id, lambda reply_to: End(reply_to, producer, committed, version)
        )

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> Verdicts | asyncio.Future[Verdicts]:
        """Whether each is in the transaction, and that is committed."""
        shard = self._shards.shard_of(_checked(transactional_id))
        transaction = shard.core.transactions.get(transactional_id)
        found: Verdicts = {name: verify(transaction, producer, name) for name in partitions}
        return shard.read(lambda: found)  # type: ignore[no-any-return] # it is what was read

    # Writing in a transaction ------------------------------------------------------------------

    def prepare(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        *,
        implicit: bool,
    ) -> Check | None:
        """Begin the check that comes before records enter; None when all partitions are open to the producer.

        `implicit`: the partitions are added to the transaction (transactions version 2); else they
        must have been, and only that it is committed may have to be waited for.
        """
        new = [p for p in partitions if not _is_open(p, producer)]
        if not new:
            return None
        answer: Answer | BrokerError
        try:
            coordinator = self._shards.elsewhere(_checked(transactional_id))
            if coordinator is not None:
                return self._verifier.ask(
                    coordinator, transactional_id, producer, new, adds=implicit
                )
            answer = self._prepare_here(transactional_id, producer, new, implicit=implicit)
        except BrokerError as error:
            answer = error

        def refusal(producer: Producer, partition: Partition) -> ErrorCode:
            return self.standing(transactional_id).refusal(producer, partition)

        return LocalCheck(answer, producer, refusal)

    def _prepare_here(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        *,
        implicit: bool,
    ) -> Answer:
        shard = self._shards.shard_of(transactional_id)
        transaction = shard.core.transactions.get(transactional_id)
        missing = [p.name for p in partitions if verify(transaction, producer, p.name)]
        if not (missing and implicit):
            return shard.read(lambda: Outcome(ErrorCode.NONE, producer))  # type: ignore[no-any-return] # it is what was read
        answer = self.add(transactional_id, producer, missing, EPOCH_PER_TRANSACTION)
        shard.flush()
        return answer

    def check(
        self,
        transactional_id: str,
        producer: Producer,
        partition: Partition,
        prepared: Check | None,
    ) -> None:
        """Raise unless what the producer writes there will be ended. No one may act in between."""
        if _is_open(partition, producer):
            return
        code = UNHEARD if prepared is None else prepared.refusal(partition)
        if code:
            raise BrokerError(
                f"{producer} of '{transactional_id}' may not write to {partition}: {code.name}",
                code,
            )

    # Time --------------------------------------------------------------------------------------

    async def _abort_overdue(self) -> None:
        while True:
            interval_ms = (
                self._cluster.config.transaction_abort_timed_out_transaction_cleanup_interval_ms
            )
            await asyncio.sleep(interval_ms / 1000)
            await self._sweep(self._abort_overdue_of)

    async def _abort_overdue_of(self, shard: TxnShard) -> None:
        for count, transactional_id in enumerate(shard.core.overdue(self._now())):
            if count % _SWEEP_SLICE == 0:
                await asyncio.sleep(0)
            if shard.is_open and shard.is_writable:
                _log.info("transaction-overdue transactional-id=%s", transactional_id)
                shard.deliver(transactional_id, Overdue())

    async def _forget_expired(self) -> None:
        while True:
            config = self._cluster.config
            await asyncio.sleep(
                config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
            )
            await self._sweep(self._forget_expired_of)

    async def _forget_expired_of(self, shard: TxnShard) -> None:
        silence_ms = self._cluster.config.transactional_id_expiration_ms
        if not shard.may_expire(silence_ms):
            return
        for count, found in enumerate(shard.core.expired(self._expiry_now(), silence_ms)):
            if count % _SWEEP_SLICE == 0:
                await asyncio.sleep(0)
            if shard.is_open and shard.is_writable:
                shard.do(found, partial(self._forget, shard, found, silence_ms))

    def _forget(
        self, shard: TxnShard, transactional_id: str, silence_ms: int, _: Now
    ) -> list[Effect]:
        return shard.core.forget(transactional_id, self._expiry_now(), silence_ms)

    async def _sweep(self, work: Callable[[TxnShard], Awaitable[None]]) -> None:
        """One shard after the other: what fails in one costs no other its turn."""
        for shard in self._shards:
            try:
                await work(shard)
            except Exception:  # noqa: BLE001 - the shard is lost, but not those of others
                _log.exception("sweep-failed shard=%s", shard.partition)

    def _report(self, metrics: BrokerMetrics) -> None:
        def states() -> list[tuple[tuple[str, ...], float]]:
            counts = Counter(transaction.status.title for transaction in self.transactions())
            return [((state,), float(count)) for state, count in sorted(counts.items())]

        metrics.read_transactions(stopped=lambda: self._shards.stopped_count, states=states)


def _checked(transactional_id: str) -> str:
    if not transactional_id or len(transactional_id.encode()) > MAX_ID_BYTES:
        raise BrokerError(
            f"a transactional id has 1 to {MAX_ID_BYTES} bytes", ErrorCode.INVALID_REQUEST
        )
    return transactional_id


def _is_open(partition: Partition, producer: Producer) -> bool:
    """Its transaction has records there already, so it was verified before."""
    return partition.log.producers.has_open(producer.id, producer.epoch)
