"""A transactional producer that commits the offsets of a group, as a stream processor does."""

import asyncio
from typing import Final, TypeVar

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
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
from tests.simulation.checks.groups import GroupHistory, Outcome, Pending, Place, Write
from tests.simulation.clients.client import TIMEOUT_MS, TRANSACTION
from tests.simulation.clients.group_client import BUSY, GroupClient
from tests.simulation.loop import SimLoop

Response = TypeVar("Response", bound=Message)

_ABORTS: Final = 0.3
_PAUSE_S: Final = 0.5
_TRANSACTION_MS: Final = 60_000
_AGAIN: Final = BUSY | {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE}


class OffsetsInTransactions(GroupClient):
    """One transaction after the other, each with one position. Only this client reads the group."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        group: str,
        place: Place,
        history: GroupHistory,
    ) -> None:
        super().__init__(loop, brokers, "processor", history)
        self._group = group
        self._place = place
        self._id = f"{group}-writer"
        self._producer = (-1, -1)
        self._number = 0
        self.done = 0

    async def run(self) -> None:
        while self._place[0] not in self.topic_ids:
            await self.recover(self._place[0])
        while not self.is_stopping:
            try:
                if self._producer[0] < 0:
                    await self._begin()
                await self._transact()
                self.done += 1
            except BrokerError:
                self._producer = (-1, -1)  # whatever was open is aborted by the next producer epoch
                await self.pause()
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _send(
        self, request: Message, response: type[Response], at_most: int | None = None
    ) -> Response:
        try:
            connection = await self.coordinator(TRANSACTION, self._id)
            return await connection.request(
                request, response, timeout_ms=TIMEOUT_MS, at_most=at_most
            )
        except BrokerError:
            self.forget_coordinator(TRANSACTION, self._id)
            raise

    async def _until_done(
        self, request: Message, response: type[Response], at_most: int | None = None
    ) -> Response:
        """Retry until the coordinator accepts the request; raise another error of it."""
        while True:
            answered = await self._send(request, response, at_most)
            code = ErrorCode(answered.error_code)  # type: ignore[attr-defined] # all of these have one
            if code is ErrorCode.NONE:
                return answered
            if code not in _AGAIN:
                raise BrokerError(code.name, code)
            if code in BUSY:
                self.forget_coordinator(TRANSACTION, self._id)
            await self.pause()

    async def _begin(self) -> None:
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=_TRANSACTION_MS
        )
        found = await self._until_done(request, InitProducerIdResponse)
        self._producer = found.producer_id, found.producer_epoch

    async def _transact(self) -> None:
        producer_id, epoch = self._producer
        add = AddOffsetsToTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            group_id=self._group,
        )
        await self._until_done(add, AddOffsetsToTxnResponse)
        self._number += 1
        write = Write(
            self._group, self._place, self._number, f"{self.name}#{self._number}", float("inf")
        )
        self.history.writes.append(write)
        await self._commit(write)
        begun_s = self.loop.time()
        pending = Pending(self._group, self._place, begun_s, float("inf"))
        await self._read()
        is_commit = self.loop.world.rng.random() >= _ABORTS
        write.start_s = self.loop.time()
        self.history.pending.append(pending._replace(end_s=write.start_s))
        if not is_commit:
            write.outcome = Outcome.REFUSED
        end = EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=is_commit,
        )
        await self._until_done(end, EndTxnResponse, at_most=4)
        if is_commit:
            write.outcome, write.end_s = Outcome.DONE, self.loop.time()
        await self._read()

    async def _commit(self, write: Write) -> None:
        partition = TxnOffsetCommitRequestPartition(
            partition_index=self._place[1],
            committed_offset=write.offset,
            committed_metadata=write.token,
        )
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=self._group,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            topics=[TxnOffsetCommitRequestTopic(name=self._place[0], partitions=[partition])],
        )
        while True:
            response = await self.ask(self._group, request, TxnOffsetCommitResponse, at_most=4)
            code = self.note_code(self._group, response.topics[0].partitions[0].error_code)
            if code is ErrorCode.NONE:
                return
            if code not in _AGAIN:
                raise BrokerError(code.name, code)
            await self.pause()

    async def _read(self) -> None:
        """Only stable offsets: those of a transaction that was ended count a little later."""
        await self.fetch_offsets(self._group, [self._place], require_stable=True)
