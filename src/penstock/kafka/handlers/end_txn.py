"""EndTxn: commit or abort. Answered when it is decided; then nothing can change it any more."""

import asyncio
from collections.abc import Awaitable
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.txn_codes import told
from penstock.transactions.events import Outcome
from penstock.transactions.state import EPOCH_PER_TRANSACTION, Producer
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse

_FENCED_SINCE: Final = 2
_TAKES_EPOCH_SINCE: Final = 5


def handle(request: EndTxnRequest, context: Context) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    answer = context.transactions.end(
        request.transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        committed=request.committed,
        version=EPOCH_PER_TRANSACTION if context.version >= _TAKES_EPOCH_SINCE else 0,
    )
    if isinstance(answer, asyncio.Future):
        return _later(answer, context.version)
    return _response(answer, context.version)


async def _later(answer: Awaitable[Outcome], version: int) -> EndTxnResponse:
    return _response(await answer, version)


def _response(outcome: Outcome, version: int) -> EndTxnResponse:
    return EndTxnResponse(
        error_code=told(outcome.code, version, fenced_since=_FENCED_SINCE),
        producer_id=outcome.producer.id,
        producer_epoch=outcome.producer.epoch,
    )
