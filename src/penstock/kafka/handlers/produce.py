"""Produce: batches go into their logs in arrival order; only the acknowledgement may have to wait."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import NamedTuple

from penstock.broker.partition import Topic
from penstock.kafka import txn_produce
from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.txn_produce import Admission
from penstock.model.errors import BrokerError, ErrorCode, InvalidRecord
from penstock.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ZSTD_SINCE_VERSION = 7
_FIRST_VERSION = 3  # that can carry record batches v2
_NO_ACK, _LEADER_ACK, _ALL_ACK = 0, 1, -1
Wait = tuple[PartitionProduceResponse, asyncio.Future[None]]


class Job(NamedTuple):
    """One request on its way into the logs."""

    request: ProduceRequest
    context: Context
    admission: Admission | None  # in a transaction
    waits: list[Wait]


def handle(
    request: ProduceRequest, context: Context
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    """Runs to the end of the appends without waiting: the records lie in the receive buffer.

    Only a transaction may have to wait before. Then the records are copied, and what follows on
    the connection waits too.
    """
    refusal = _refusal_of_all(request, context)
    if refusal is not None:
        response = refuse(request, refusal)
        if request.acks == _NO_ACK:
            _hang_up_if_failed(response)
            return None
        return response
    if request.transactional_id is not None and request.acks != _NO_ACK:
        waiting = txn_produce.prepare(request, context)
        if waiting is not None:
            context.holds = True
            _keep_records(request)
            return _append_later(request, context, waiting)
    return _append_all(request, context)


def _append_all(
    request: ProduceRequest, context: Context
) -> ProduceResponse | Awaitable[ProduceResponse] | None:
    admission = None
    if request.transactional_id is not None:
        admission = Admission(request.transactional_id, context)
    job = Job(request, context, admission, [])
    response = ProduceResponse(responses=[_append_topic(data, job) for data in request.topic_data])
    if request.acks == _NO_ACK:
        _hang_up_if_failed(response)
        return None
    return _when_committed(response, job.waits, request.timeout_ms) if job.waits else response


def _keep_records(request: ProduceRequest) -> None:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if partition.records is not None:
                partition.records = memoryview(bytearray(partition.records))


async def _append_later(
    request: ProduceRequest, context: Context, waiting: Awaitable[object]
) -> ProduceResponse:
    with suppress(BrokerError):  # each partition is told by itself
        await waiting
    answer = _append_all(request, context)
    assert answer is not None, "it waits for an acknowledgement"
    return answer if isinstance(answer, ProduceResponse) else await answer


def refuse(request: ProduceRequest, error: BrokerError) -> ProduceResponse:
    return ProduceResponse(responses=[_refuse_topic(data, error) for data in request.topic_data])


def _refusal_of_all(request: ProduceRequest, context: Context) -> BrokerError | None:
    if context.version < _FIRST_VERSION:
        return BrokerError(
            f"Produce v{context.version} carries an old message format; v3 and later are taken",
            ErrorCode.UNSUPPORTED_VERSION,
        )
    if request.acks not in (_NO_ACK, _LEADER_ACK, _ALL_ACK):
        return BrokerError(
            f"acks={request.acks}; it must be 0, 1 or -1 (all)", ErrorCode.INVALID_REQUIRED_ACKS
        )
    if request.transactional_id is not None:
        try:
            context.authorize(
                Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
            )
        except BrokerError as error:
            return error
    return None


def _append_topic(data: TopicProduceData, job: Job) -> TopicProduceResponse:
    context = job.context
    replicas = context.services.replicas
    try:
        topic = replicas.topic(data.name) if data.name else replicas.topic_by_id(data.topic_id)
        context.authorize(Operation.WRITE, ResourceType.TOPIC, topic.name)
        if topic.internal:
            raise BrokerError(
                f"'{topic.name}' is written by brokers only", ErrorCode.INVALID_TOPIC_EXCEPTION
            )
    except BrokerError as error:
        return _refuse_topic(data, _hide_if_unauthorized(data.name, context, error))
    return TopicProduceResponse(
        name=data.name,
        topic_id=data.topic_id,
        partition_responses=[_append(topic, partition, job) for partition in data.partition_data],
    )


def _hide_if_unauthorized(name: str, context: Context, error: BrokerError) -> BrokerError:
    """Who may not write to a topic does not learn whether it exists, nor the name behind an id."""
    if not name and error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return BrokerError(f"{context.principal} may not write to this topic", error.code)
    if name:
        try:
            context.authorize(Operation.WRITE, ResourceType.TOPIC, name)
        except BrokerError as refusal:
            return refusal
    return error


def _append(topic: Topic, data: PartitionProduceData, job: Job) -> PartitionProduceResponse:
    request, context, admission, waits = job
    metrics = topic.metrics
    services = context.services
    try:
        partition = services.replicas.partition(topic, data.index)
        if data.records is None:
            raise InvalidRecord(f"{partition}: a produce without records")
        if request.acks == _ALL_ACK:
            partition.check_in_sync()
        if admission is not None:
            admission.admit(partition, data.records)
        appended = partition.append(
            data.records,
            now_ms=services.clock.wall_ms(),
            transactional=admission is not None,
            zstd=context.header.api_version >= _ZSTD_SINCE_VERSION,
        )
    except BrokerError as error:
        metrics.failed_produce_requests.value += 1
        return _refuse_partition(data, error)
    next_offset = appended.last_offset + 1
    metrics.produce_requests.value += 1
    metrics.messages_in.value += next_offset - appended.base_offset
    metrics.bytes_in.value += len(data.records)
    response = PartitionProduceResponse(
        index=data.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=appended.start_offset,
    )
    if next_offset > partition.high_watermark:
        committed = partition.committed(next_offset)
        if committed is not None:
            waits.append((response, committed))
    return response


async def _when_committed(
    response: ProduceResponse, waits: list[Wait], timeout_ms: int
) -> ProduceResponse:
    """Wait for the high watermark, at most as long as the producer asked for."""
    await asyncio.wait([future for _, future in waits], timeout=timeout_ms / 1000)
    for partition, future in waits:
        if not future.done():
            future.cancel()
            _set_error(
                partition,
                BrokerError(
                    f"not acknowledged within {timeout_ms} ms; the records may still be kept",
                    ErrorCode.REQUEST_TIMED_OUT,
                ),
            )
        elif isinstance(error := future.exception(), BrokerError):
            _set_error(partition, error)
        elif error is not None:
            raise error
    return response


def _set_error(partition: PartitionProduceResponse, error: BrokerError) -> None:
    partition.error_code = error.code
    partition.error_message = str(error)
    partition.base_offset = -1


def _refuse_topic(data: TopicProduceData, error: BrokerError) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=data.name,
        topic_id=data.topic_id,
        partition_responses=[_refuse_partition(part, error) for part in data.partition_data],
    )


def _refuse_partition(data: PartitionProduceData, error: BrokerError) -> PartitionProduceResponse:
    return PartitionProduceResponse(
        index=data.index,
        error_code=error.code,
        base_offset=-1,
        error_message=str(error),
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=message)
            for index, message in getattr(error, "record_errors", ())
        ],
    )


def _hang_up_if_failed(response: ProduceResponse) -> None:
    """A producer that wants no answer learns of a failure only by losing its connection."""
    for topic in response.responses:
        for partition in topic.partition_responses:
            if partition.error_code:
                raise HangUp(
                    f"a produce with acks=0 failed: {topic.name}-{partition.index}: "
                    f"{partition.error_message}"
                )
