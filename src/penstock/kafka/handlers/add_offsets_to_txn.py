"""AddOffsetsToTxn: the partition that keeps a group's offsets becomes a part of the transaction."""

import asyncio
from typing import Final

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.txn_codes import told
from penstock.transactions.state import Producer
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)

_FENCED_SINCE: Final = 2


async def handle(request: AddOffsetsToTxnRequest, context: Context) -> AddOffsetsToTxnResponse:
    context.authorize(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
    context.authorize(Operation.READ, ResourceType.GROUP, request.group_id)
    partition = await context.groups.partition_of(request.group_id)
    producer = Producer(request.producer_id, request.producer_epoch)
    answer = context.transactions.add(request.transactional_id, producer, [partition])
    outcome = await answer if isinstance(answer, asyncio.Future) else answer
    code = told(outcome.code, context.version, fenced_since=_FENCED_SINCE)
    return AddOffsetsToTxnResponse(error_code=code)
