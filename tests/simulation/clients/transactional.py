"""A transactional producer of either protocol generation, one incarnation of its transactional id.

It treats error codes as KafkaProducer's TransactionManager does: it retries, aborts the transaction, or ends.
Version 1 adds partitions and groups to the transaction; version 2 (KIP-890) lets Produce and
TxnOffsetCommit do it, and takes a new epoch with each EndTxn.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from penstock.wire.schema import Message
from tests.simulation.checks.transactions import Accepted, Ended, Granted, Ledger, Producer
from tests.simulation.clients.client import GROUP, TIMEOUT_MS, TRANSACTION, Client
from tests.simulation.clients.in_flight import (
    Batch,
    GaveUp,
    Identity,
    PartitionSender,
    Rejected,
    now_ns,
    numbered_batch,
)
from tests.simulation.loop import Broken, SimLoop
from tests.support.checker import History, Outcome, Partition, Send

Response = TypeVar("Response", bound=Message)

_SEND_LIMIT_S: Final = 3.0  # as delivery.timeout.ms
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
_LATER: Final = _MOVED | {
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
_CERTAIN: Final = frozenset(  # to have changed nothing
    {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
)
_ABORTABLE: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_ABORTABLE_BY_PRODUCE: Final = _ABORTABLE | {
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TIMESTAMP,  # the clock of the broker is wrong
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
_FATAL: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
    }
)


class MustAbort(Exception):
    """This transaction cannot be committed; the producer can go on after an abort."""


class Fenced(Exception):
    """This incarnation cannot go on."""


@dataclass(frozen=True)
class Transactional:
    """The settings of one transactional id."""

    id: str
    version: int
    timeout_ms: int


class Incarnation(Client):
    """Begins, writes and ends transactions, one at a time, until it is fenced."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        settings: Transactional,
        number: int,
        history: History,
        ledger: Ledger,
    ) -> None:
        super().__init__(loop, brokers, f"{settings.id}.{number}")
        self.settings = settings
        self.ends = 0  # acknowledged EndTxn requests
        self._history = history
        self._ledger = ledger
        self._identity = Identity(-1, -1)
        self._sequences: dict[Partition, int] = {}
        self._must_bump = False
        self._count = 0
        self._transaction = ""
        self._added: set[Partition | str] = set()
        self._senders: dict[Partition, PartitionSender] = {}

    # Epochs --------------------------------------------------------------------------------------

    async def initialize(self) -> None:
        """Take a new epoch. One that has an epoch bumps it (KIP-360)."""
        known = self._identity
        request = InitProducerIdRequest(
            transactional_id=self.settings.id,
            transaction_timeout_ms=self.settings.timeout_ms,
            producer_id=known.producer_id,
            producer_epoch=known.epoch,
        )
        response = await self._ask(
            TRANSACTION, self.settings.id, request, InitProducerIdResponse, _code
        )
        self._become(response.producer_id, response.producer_epoch)
        self._must_bump = False

    def _become(self, producer_id: int, epoch: int) -> None:
        settings = self.settings
        self._identity = Identity(producer_id, epoch, settings.id, settings.version)
        self._sequences.clear()
        self._ledger.granted.append(
            Granted(settings.id, self.name, Producer(producer_id, epoch), now_ns(self))
        )

    # One transaction -----------------------------------------------------------------------------

    def begin(self) -> str:
        """Nothing is sent; return the transaction's name."""
        self._count += 1
        self._transaction = f"{self.name}:{self._count}"
        self._added.clear()
        self._history.transactions[self._transaction] = Outcome.FAILED  # until it is to commit
        self._ledger.ended[self._transaction] = Ended()
        return self._transaction

    async def write(self, values: dict[Partition, list[list[bytes]]]) -> None:
        """Send batches of values to each partition, to all at once."""
        if self.settings.version < 2:
            await self._add([place for place in values if place not in self._added])
        self._added.update(values)
        sending = [self._send(place, batches) for place, batches in values.items()]
        results = await asyncio.gather(*sending, return_exceptions=True)
        errors = [it for it in results if isinstance(it, BaseException)]
        for error in sorted(errors, key=lambda it: isinstance(it, MustAbort)):
            raise error  # one that ends the incarnation before others

    async def _send(self, place: Partition, values: list[list[bytes]]) -> None:
        if place[0] not in self.topic_ids:
            await self.recover(place[0])
        batches = [self._batch(place, some) for some in values]
        sender = self._senders.get(place)
        if sender is None:
            sender = self._senders[place] = PartitionSender(self, place, self._produced)
        try:
            await sender.send(batches, _SEND_LIMIT_S)
        except GaveUp as error:
            self._must_bump = True
            raise MustAbort(str(error)) from None
        except Rejected as error:
            if error.code in _ABORTABLE_BY_PRODUCE:
                self._must_bump = True
                raise MustAbort(str(error)) from None
            raise self._ended_by(error) from None

    def _batch(self, place: Partition, values: list[bytes]) -> Batch:
        sends = [Send(self.name, place, value, now_ns(self), self._transaction) for value in values]
        self._history.sends += sends
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(values)
        return numbered_batch(self, self._identity, sequence, sends)

    def _produced(self, batch: Batch) -> None:
        identity = batch.identity
        producer = Producer(identity.producer_id, identity.epoch)
        self._ledger.accepted.append(
            Accepted(self.settings.id, self.name, producer, "Produce", batch.sent_ns)
        )

    async def _add(self, places: Sequence[Partition]) -> None:
        if not places:
            return
        topics: dict[str, list[int]] = {}
        for topic, index in places:
            topics.setdefault(topic, []).append(index)
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.settings.id,
            v3_and_below_producer_id=self._identity.producer_id,
            v3_and_below_producer_epoch=self._identity.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in topics.items()
            ],
        )
        await self._ask(
            TRANSACTION, self.settings.id, request, AddPartitionsToTxnResponse, _code_of_add, 3
        )

    async def send_offset(self, group: str, place: Partition, offset: int) -> None:
        """The group has this offset if and only if the transaction commits."""
        self._ledger.offsets[group, place, self._transaction] = offset
        identity, is_old = self._identity, self.settings.version < 2
        if is_old and group not in self._added:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.settings.id,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                group_id=group,
            )
            await self._ask(TRANSACTION, self.settings.id, add, AddOffsetsToTxnResponse, _code, 3)
            self._added.add(group)
        row = TxnOffsetCommitRequestPartition(
            partition_index=place[1],
            committed_offset=offset,
            committed_metadata=self._transaction,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self.settings.id,
            group_id=group,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            topics=[TxnOffsetCommitRequestTopic(name=place[0], partitions=[row])],
        )
        await self._ask(
            GROUP, group, request, TxnOffsetCommitResponse, _code_of_offsets, 4 if is_old else None
        )

    async def commit(self) -> None:
        name = self._transaction
        self._history.transactions[name] = Outcome.UNKNOWN
        self._ledger.ended[name].commit_sent_ns = now_ns(self)
        await self._end(committed=True)
        self._history.transactions[name] = Outcome.DONE
        self._ledger.ended[name].committed_ns = now_ns(self)

    async def abort(self) -> None:
        """Also what cannot be committed any more; then the producer can begin the next transaction."""
        await self._end(committed=False)
        if self.settings.version < 2 and self._must_bump:
            await self.initialize()

    async def _end(self, *, committed: bool) -> None:
        identity = self._identity
        request = EndTxnRequest(
            transactional_id=self.settings.id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=committed,
        )
        at_most = 4 if self.settings.version < 2 else None
        response = await self._ask(
            TRANSACTION, self.settings.id, request, EndTxnResponse, _code, at_most
        )
        self.ends += 1
        if self.settings.version >= 2:
            self._become(response.producer_id, response.producer_epoch)
            self._must_bump = False

    # Requests to coordinators --------------------------------------------------------------------

    async def _ask(
        self,
        key_type: int,
        key: str,
        request: Message,
        kind: type[Response],
        code_of: Callable[[Any], int],
        at_most: int | None = None,
    ) -> Response:
        """Retry until the coordinator accepts or rejects the request."""
        is_certain = True
        while True:
            sent_ns = now_ns(self)
            code: int = ErrorCode.NONE
            try:
                connection = await self.coordinator(key_type, key)
                response = await connection.request(
                    request, kind, timeout_ms=TIMEOUT_MS, at_most=at_most
                )
                code = code_of(response)
            except BrokerError as error:
                code = error.code
                self.forget_coordinator(key_type, key)
            else:
                if not code:
                    self._note_accepted(request, sent_ns)
                    return response
            if code not in _LATER:
                if is_certain:
                    self._note_rejected(request)
                raise self._ended_by(Rejected(type(request).__name__, code))
            is_certain &= code in _CERTAIN
            if code in _MOVED:
                self.forget_coordinator(key_type, key)
            await self.pause()

    def _note_accepted(self, request: Message, sent_ns: int) -> None:
        identity = self._identity
        if identity.epoch < 0:  # it is about to learn its epoch
            return
        producer = Producer(identity.producer_id, identity.epoch)
        name = type(request).__name__.removesuffix("Request")
        self._ledger.accepted.append(Accepted(self.settings.id, self.name, producer, name, sent_ns))

    def _note_rejected(self, request: Message) -> None:
        """The transaction certainly did not commit: no attempt can have changed anything."""
        if isinstance(request, EndTxnRequest) and request.committed:
            self._history.transactions[self._transaction] = Outcome.FAILED

    def _ended_by(self, error: Rejected) -> Exception:
        if error.code in _ABORTABLE:
            self._must_bump = True
            return MustAbort(str(error))
        if error.code in _FATAL:
            return Fenced(str(error))
        return Broken(f"{self.name}: {error}")


def _code(response: Any) -> int:
    found: int = response.error_code
    return found


def _code_of_add(response: AddPartitionsToTxnResponse) -> int:
    codes = [
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]
    codes.sort(key=lambda code: (code == ErrorCode.OPERATION_NOT_ATTEMPTED, not code))
    return codes[0]


def _code_of_offsets(response: TxnOffsetCommitResponse) -> int:
    codes = [row.error_code for topic in response.topics for row in topic.partitions]
    return next((code for code in codes if code), 0)
