"""What a coordinator says about a producer that wants to write in its transaction here (KIP-890).

The verdict of a coordinator on another broker counts only as long as nothing came in between: since before
the question no marker and no other epoch of the producer has entered the log, and this broker has led it
without a break. The coordinator on this broker is consulted again at the moment of the append.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from penstock.broker.controller.cluster import Spawn
from penstock.broker.coordinators.batching_sender import BatchingSender
from penstock.broker.coordinators.shards import Elsewhere
from penstock.broker.membership.peers import Peers
from penstock.broker.partitions.partition import Partition
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.events import Outcome
from penstock.transactions.state import Producer, group_by_topic
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

_log = logging.getLogger(__name__)

_LANE: Final = "verification"
_TIMEOUT_MS: Final = 10_000
UNHEARD: Final = ErrorCode.COORDINATOR_NOT_AVAILABLE
Refusal = Callable[[Producer, Partition], ErrorCode]


class Check(Protocol):
    """Whether one producer may write, according to its coordinator."""

    @property
    def done(self) -> asyncio.Future[Any] | None:
        """What to wait for before `refusal` can say; None for nothing."""

    def refusal(self, partition: Partition) -> ErrorCode:
        """Why the producer may not write there now. NONE: it may, before anything else happens.

        Raises BrokerError when the coordinator cannot say.
        """


class LocalCheck:
    """The coordinator is on this broker. `answer` is what it said to the request, or why it said nothing.

    A refusal stands as it was given. By the time it is committed and delivered the transaction may be at
    rest, and asking again would turn CONCURRENT_TRANSACTIONS, which clients retry, into a final error.
    """

    __slots__ = ("_answer", "_producer", "_refusal")

    def __init__(
        self,
        answer: Outcome | asyncio.Future[Outcome] | BrokerError,
        producer: Producer,
        refusal: Refusal,
    ) -> None:
        self._answer = answer
        self._producer = producer
        self._refusal = refusal

    @property
    def done(self) -> asyncio.Future[Outcome] | None:
        answer = self._answer
        return answer if isinstance(answer, asyncio.Future) and not answer.done() else None

    def refusal(self, partition: Partition) -> ErrorCode:
        answer = self._answer
        if isinstance(answer, BrokerError):
            raise answer.again()
        outcome = answer.result() if isinstance(answer, asyncio.Future) else answer
        return outcome.code or self._refusal(self._producer, partition)


class Verification:
    """A question to a coordinator on another broker, about partitions that this broker leads. `done` never fails."""

    __slots__ = ("_codes", "_coordinator_epoch", "_guards", "_producer", "done", "question")

    def __init__(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        coordinator_epoch: int,
        *,
        adds: bool,
    ) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._producer = producer
        self._coordinator_epoch = coordinator_epoch
        self._guards = {it.name: _standing(it, producer) for it in partitions}
        self._codes: dict[TopicPartition, ErrorCode] = {}
        self.question = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            verify_only=not adds,
            topics=[
                AddPartitionsToTxnTopic(name=topic, partitions=indexes)
                for topic, indexes in group_by_topic(self._guards).items()
            ],
        )

    def answer(self, result: AddPartitionsToTxnResult | None) -> None:
        """None: the coordinator was not heard."""
        for topic in () if result is None else result.topic_results:
            for row in topic.results_by_partition:
                name = TopicPartition(topic.name, row.partition_index)
                self._codes[name] = ErrorCode(row.partition_error_code)
        if not self.done.done():  # or whoever asked is gone
            self.done.set_result(None)

    def refusal(self, partition: Partition) -> ErrorCode:
        """Why the producer may not write there now. NONE: it may, before anything else happens."""
        code = self._codes.get(partition.name, UNHEARD)
        if code:
            return code
        if self._guards.get(partition.name) != _standing(partition, self._producer):
            return ErrorCode.CONCURRENT_TRANSACTIONS  # it ended meanwhile, or may have: ask again
        if partition.log.producers.coordinator_epoch(self._producer.id) > self._coordinator_epoch:
            return ErrorCode.NOT_COORDINATOR  # a newer one has ended something here
        return ErrorCode.NONE


def _standing(partition: Partition, producer: Producer) -> object:
    known = partition.log.producers.standing(producer.id)
    return partition, partition.is_leader, partition.leader_epoch, known


class Verifier:
    """Only the event loop calls it."""

    def __init__(self, peers: Peers, spawn: Spawn) -> None:
        self._peers = peers
        self._sender: BatchingSender[Verification] = BatchingSender(
            spawn, "verification", self._deliver
        )

    def ask(
        self,
        coordinator: Elsewhere,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[Partition],
        *,
        adds: bool,
    ) -> Verification:
        """`adds`: the partitions join the transaction; else they must be in it already."""
        verification = Verification(
            transactional_id, producer, partitions, coordinator.epoch, adds=adds
        )
        self._sender.send(coordinator.broker_id, verification)
        return verification

    async def _deliver(self, broker_id: int, load: list[Verification]) -> None:
        results: list[AddPartitionsToTxnResult] = []
        try:
            answer = await self._peers.request(
                broker_id,
                AddPartitionsToTxnRequest(transactions=[it.question for it in load]),
                AddPartitionsToTxnResponse,
                timeout_ms=_TIMEOUT_MS,
                lane=_LANE,
            )
            if answer.error_code:
                raise BrokerError("it was refused", ErrorCode(answer.error_code))
            results = answer.results_by_transaction
        except BrokerError as error:
            _log.info("not-verified broker=%d count=%d error=%s", broker_id, len(load), error)
        except Exception:  # noqa: BLE001 - a bug, and no reason to wait for ever
            _log.exception("verification-failed broker=%d", broker_id)
        for place, verification in enumerate(load):  # answers come in the order of the questions
            verification.answer(results[place] if len(results) == len(load) else None)
