"""Produce: batches go into their logs in arrival order; only the acknowledgement may have to wait."""

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.broker.partitions.partition import Partition, Topic
from penstock.kafka import leader_hints, txn_produce
from penstock.kafka.api import Together
from penstock.kafka.contact import check_contact
from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.twins import twins
from penstock.kafka.txn_produce import (
    NOTHING_CHECKED,
    NOTHING_PREPARED,
    Admission,
    Checks,
    Preparation,
)
from penstock.model.errors import BrokerError, ErrorCode, InvalidRecord, OutOfOrderSequence
from penstock.model.steps import Steps
from penstock.storage.limits import Limits, TakesLong
from penstock.storage.log import Appended
from penstock.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

_ZSTD_SINCE_VERSION = 7
_FIRST_VERSION = 3  # that can carry record batches v2
_HINTS_SINCE_VERSION = 10  # KIP-951
_BY_ID_SINCE_VERSION = 13
_NO_ACK, _LEADER_ACK, _ALL_ACK = 0, 1, -1
NOT_OPENED: Collection[int] = frozenset()
Wait = tuple[PartitionProduceResponse, asyncio.Future[None]]


class LargeBatch(NamedTuple):
    topic: Topic
    named: TopicProduceData
    data: PartitionProduceData
    limits: Limits
    place: PartitionProduceResponse  # of its answer, in the whole one


class Job(NamedTuple):
    """One request on its way into the logs."""

    request: ProduceRequest
    context: Context
    admission: Admission | None  # in a transaction
    waits: list[Wait]
    leaders: set[int]  # other brokers that it should have gone to
    large: list[LargeBatch]  # not appended yet: they must be opened first
    opened: Collection[int]  # ids of the partition data whose batches were opened


Reply = ProduceResponse | Awaitable[ProduceResponse | None] | None


def handle(
    request: ProduceRequest, context: Context, opened: Collection[int] = NOT_OPENED
) -> Reply:
    """Runs to the end of the appends without waiting: the records lie in the receive buffer.

    Only a transaction, or a large batch that must be opened, may have to wait before. Then the records are copied,
    and what follows on the connection waits too. `opened`: ids of the partition data whose batches were opened.
    """
    refusal = _refusal_of_all(request, context)
    if refusal is not None:
        return refuse(request, refusal)
    if request.transactional_id is not None:
        preparation = txn_produce.prepare(request, context)
        if preparation.waiting is None:
            return _append_all(request, context, preparation.checks, opened=opened)
        context.holds = True
        _keep_records(request)
        return _append_later(request, context, preparation.waiting, preparation.checks, opened)
    return _append_all(request, context, opened=opened)


class Appends:
    """A request of many partitions, whose batches enter in slices."""

    def __init__(
        self,
        request: ProduceRequest,
        context: Context,
        refusal: BrokerError | None,
        preparation: Preparation,
    ) -> None:
        """`refusal`: why nothing may enter."""
        self._context = context
        self._refusal = refusal
        self._checks = preparation.checks
        self.waiting = preparation.waiting
        self.is_sent_again = request.acks != _NO_ACK

    def append(self, part: ProduceRequest) -> Reply:
        if self._refusal is not None:
            return refuse(part, self._refusal)
        return _append_all(part, self._context, self._checks)


def begin(request: ProduceRequest, context: Context) -> Steps[Appends]:
    """Prepare the whole request: of a transaction all partitions are checked, or added, together."""
    refusal = _refusal_of_all(request, context)
    preparation = NOTHING_PREPARED
    if refusal is None and request.transactional_id is not None:
        preparation = yield from txn_produce.prepare_in_steps(request, context)
    return Appends(request, context, refusal, preparation)


def handle_together(
    request: ProduceRequest, context: Context, frame: memoryview, body_at: int, rest: memoryview
) -> Together | None:
    """The request, and those after it that differ in their records alone: one write for all of them.

    None, and nothing is done: there are no such ones, or each must be handled, or refused, by itself.
    """
    if not _may_have_twins(request, context):
        return None
    data = request.topic_data[0].partition_data[0]
    assert data.records is not None
    try:
        topic = _writable(request.topic_data[0], context)
        partition = _ready(topic, data.index, request.acks, context)
        if not partition.takes_runs:
            return None
        found = twins(request, context.version, frame, body_at, rest)
        if not found:
            return None
        run = [data.records, *(twin.records for twin in found)]
        for records in run if context.services.refusals else ():
            _check_order(partition, request.topic_data[0], records, context)
        appended = partition.append_run(
            run,
            now_ms=context.services.clock.wall_ms(),
            zstd=context.version >= _ZSTD_SINCE_VERSION,
        )
    except BrokerError:
        return None
    if appended is None:
        return None
    if context.services.refusals:
        _settle(request.topic_data[0], data.index, run, context)
    numbers = [context.header.correlation_id, *(twin.correlation_id for twin in found)]
    replies: list[tuple[int, ProduceResponse | Awaitable[ProduceResponse]]] = []
    for number, records, each in zip(numbers, run, appended, strict=True):
        waits: list[Wait] = []
        accepted = _accepted(partition, each, len(records), request.acks, waits)
        response = ProduceResponse(responses=[_topic_response(request.topic_data[0], [accepted])])
        replies.append((number, _answer(response, waits, request.timeout_ms, context)))
    return Together(replies, found[-1].end)


def _may_have_twins(request: ProduceRequest, context: Context) -> bool:
    topics = request.topic_data
    return (
        len(topics) == 1
        and len(topics[0].partition_data) == 1
        and topics[0].partition_data[0].records is not None
        and request.acks in (_LEADER_ACK, _ALL_ACK)
        and request.transactional_id is None
        and context.version >= _FIRST_VERSION
    )


def _append_all(
    request: ProduceRequest,
    context: Context,
    checks: Checks = NOTHING_CHECKED,
    *,
    opened: Collection[int] = NOT_OPENED,
) -> Reply:
    admission = None
    if request.transactional_id is not None:
        admission = Admission(request.transactional_id, context, checks)
    job = Job(request, context, admission, [], set(), [], opened)
    response = ProduceResponse(responses=[_append_topic(data, job) for data in request.topic_data])
    if job.leaders:
        response.node_endpoints = [
            NodeEndpoint(node_id=it.broker_id, host=it.host, port=it.port, rack=it.rack)
            for it in leader_hints.places_of(job.leaders, context)
        ]
    if job.large:
        context.holds = True
        return _append_large(response, job)
    if request.acks == _NO_ACK:
        _hang_up_if_failed(response)
        return None
    return _answer(response, job.waits, request.timeout_ms, context)


def _append_large(response: ProduceResponse, job: Job) -> Awaitable[ProduceResponse | None]:
    """Copies the large batches before it returns: then they are opened, and are a request of their own."""
    request, topics, large = job.request, dict[int, TopicProduceData](), list[LargeBatch]()
    for batch in job.large:
        assert batch.data.records is not None
        batch.data.records = memoryview(bytearray(batch.data.records))
        topic = topics.setdefault(id(batch.named), _like(batch.named))
        topic.partition_data.append(batch.data)
        large.append(batch._replace(named=topic))
    answer = (
        response
        if request.acks == _NO_ACK
        else _answer(response, job.waits, request.timeout_ms, job.context)
    )
    rest = ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=list(topics.values()),
    )
    # the other batches are in their logs: they, and the frame around them, are not kept
    return _open_and_append(answer, job._replace(request=rest, large=large))


def _like(named: TopicProduceData) -> TopicProduceData:
    return TopicProduceData(name=named.name, topic_id=named.topic_id)


async def _open_and_append(
    answer: ProduceResponse | Awaitable[ProduceResponse], job: Job
) -> ProduceResponse | None:
    request, context = job.request, job.context
    opened = set()
    for batch in job.large:
        data = batch.data
        assert data.records is not None
        try:
            data.records = await context.replicas.opener.open(data.records, batch.limits)
        except BrokerError as error:
            batch.topic.metrics.failed_produce_requests.value += 1
            _copy(_refuse_partition(data, _refusal(batch.named, data, error, context)), batch.place)
            data.records = None
        else:
            opened.add(id(data))
    for topic in request.topic_data:
        topic.partition_data = [data for data in topic.partition_data if id(data) in opened]
    reply = handle(request, context, opened)
    appended = reply if reply is None or isinstance(reply, ProduceResponse) else await reply
    response = answer if isinstance(answer, ProduceResponse) else await answer
    if appended is None:
        _hang_up_if_failed(response)
        return None
    _merge(appended, job, response)
    return response


def _merge(appended: ProduceResponse, job: Job, response: ProduceResponse) -> None:
    """Put the answers for large batches in their places."""
    answers = iter([it for topic in appended.responses for it in topic.partition_responses])
    for batch in job.large:
        if batch.data.records is not None:
            _copy(next(answers), batch.place)
    known = {node.node_id for node in response.node_endpoints}
    response.node_endpoints += [it for it in appended.node_endpoints if it.node_id not in known]


def _copy(answered: PartitionProduceResponse, place: PartitionProduceResponse) -> None:
    for name in PartitionProduceResponse.fields:
        setattr(place, name, getattr(answered, name))


def _answer(
    response: ProduceResponse, waits: list[Wait], timeout_ms: int, context: Context
) -> ProduceResponse | Awaitable[ProduceResponse]:
    if not waits:
        return response
    return Acknowledgement(response, waits, timeout_ms, context.services.replicas.loop).answer


def _keep_records(request: ProduceRequest) -> None:
    for topic in request.topic_data:
        for partition in topic.partition_data:
            if partition.records is not None:
                partition.records = memoryview(bytearray(partition.records))


async def _append_later(
    request: ProduceRequest,
    context: Context,
    waiting: asyncio.Future[Any],
    checks: Checks,
    opened: Collection[int],
) -> ProduceResponse | None:
    with suppress(BrokerError):  # each partition is told by itself
        await waiting
    answer = _append_all(request, context, checks, opened=opened)
    assert answer is not None, "it waits for an acknowledgement"
    return answer if isinstance(answer, ProduceResponse) else await answer


def refuse(request: ProduceRequest, error: BrokerError) -> ProduceResponse:
    if request.acks == _NO_ACK:
        raise HangUp(f"a produce with acks=0 failed: {error}")
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
        if request.acks == _NO_ACK:
            return BrokerError(
                "acks=0 in a transaction: nobody would know what to commit",
                ErrorCode.INVALID_REQUIRED_ACKS,
            )
        try:
            context.authorize(
                Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
            )
        except BrokerError as error:
            return error
    return None


def _append_topic(data: TopicProduceData, job: Job) -> TopicProduceResponse:
    context = job.context
    try:
        topic = _writable(data, context)
    except BrokerError as error:
        refusal = _hide_if_unauthorized(data.name, context, error)
        for part in data.partition_data:
            _refusal(data, part, refusal, context)
        return _refuse_topic(data, refusal)
    return _topic_response(data, [_append(topic, data, part, job) for part in data.partition_data])


def _topic_response(
    data: TopicProduceData, partitions: list[PartitionProduceResponse]
) -> TopicProduceResponse:
    return TopicProduceResponse(
        name=data.name, topic_id=data.topic_id, partition_responses=partitions
    )


def _writable(data: TopicProduceData, context: Context) -> Topic:
    topic = _topic(data, context)
    context.authorize(Operation.WRITE, ResourceType.TOPIC, topic.name)
    if topic.internal:
        raise BrokerError(
            f"'{topic.name}' is written by brokers only", ErrorCode.INVALID_TOPIC_EXCEPTION
        )
    return topic


def _topic(data: TopicProduceData, context: Context) -> Topic:
    replicas = context.services.replicas
    if context.header.api_version >= _BY_ID_SINCE_VERSION:
        return replicas.topic_by_id(data.topic_id)
    topic = replicas.topics.get(data.name)
    if topic is None:
        context.cluster.check_topic_name(data.name)
        return replicas.topic(data.name)
    return topic


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


def _append(
    topic: Topic, named: TopicProduceData, data: PartitionProduceData, job: Job
) -> PartitionProduceResponse:
    request, context, admission, waits, _, _, opened = job
    try:
        partition = _ready(topic, data.index, request.acks, context)
        if data.records is None:
            raise InvalidRecord(f"{partition}: a produce without records")
        if admission is not None:
            admission.admit(partition, data.records)
        if context.services.refusals:
            _check_order(partition, named, data.records, context)
        is_opened = opened is not NOT_OPENED and id(data) in opened
        appended = partition.append(
            data.records,
            now_ms=context.services.clock.wall_ms(),
            transactional=admission is not None,
            zstd=is_opened or context.header.api_version >= _ZSTD_SINCE_VERSION,
            is_opened=is_opened,
        )
    except TakesLong as large:
        place = PartitionProduceResponse(index=data.index)
        job.large.append(LargeBatch(topic, named, data, large.limits, place))
        return place
    except BrokerError as error:
        topic.metrics.failed_produce_requests.value += 1
        error = _refusal(named, data, error, context)
        refused = _refuse_partition(data, error)
        if error.code in leader_hints.MOVED:
            _tell_leader(refused, topic.name, job)
        return refused
    if context.services.refusals:
        _settle(named, data.index, [data.records], context)
    return _accepted(partition, appended, len(data.records), request.acks, waits)


def _check_order(
    partition: Partition, named: TopicProduceData, records: memoryview, context: Context
) -> None:
    """Of a producer that the log does not know any sequence may be the next, but for one that overtakes another."""
    refusals, now_ms = context.services.refusals, context.clock.monotonic_ms()
    overtaken = refusals.overtaken_by(_name(named), partition.index, records, now_ms)
    if overtaken is not None and not partition.log.knows_producer_of(records):
        raise overtaken


def _refusal(
    named: TopicProduceData, data: PartitionProduceData, error: BrokerError, context: Context
) -> BrokerError:
    """What to answer for a batch that `error` refuses."""
    refusals, now_ms = context.services.refusals, context.clock.monotonic_ms()
    if isinstance(error, OutOfOrderSequence):
        return refusals.overtaken_by(_name(named), data.index, data.records, now_ms) or error
    refusals.note(_name(named), data.index, data.records, error, now_ms)
    return error


def _settle(
    named: TopicProduceData, index: int, run: Sequence[memoryview], context: Context
) -> None:
    """They are in the log: nothing that was refused is still to come before them."""
    for records in run:
        context.services.refusals.settle(_name(named), index, records)


def _name(named: TopicProduceData) -> str | bytes:
    return named.name or named.topic_id


def _ready(topic: Topic, index: int, acks: int, context: Context) -> Partition:
    """The partition, as far as it may be written with these acks."""
    services = context.services
    partition = services.replicas.partition(topic, index)
    if acks == _ALL_ACK:
        partition.check_in_sync()
    elif services.replicas.is_cut_off:
        check_contact(partition, services)
    return partition


def _accepted(
    partition: Partition, appended: Appended, size_bytes: int, acks: int, waits: list[Wait]
) -> PartitionProduceResponse:
    """The answer for records that are in the log; what it must wait for goes to `waits`."""
    next_offset = appended.last_offset + 1
    metrics = partition.topic.metrics
    metrics.produce_requests.value += 1
    metrics.messages_in.value += next_offset - appended.base_offset
    metrics.bytes_in.value += size_bytes
    response = PartitionProduceResponse(
        index=partition.index,
        base_offset=appended.base_offset,
        log_append_time_ms=appended.append_time_ms,
        log_start_offset=appended.start_offset,
    )
    if next_offset > partition.high_watermark and acks != _NO_ACK:
        wait_for = partition.committed if acks == _ALL_ACK else partition.written
        committed = wait_for(next_offset)
        if committed is not None:
            waits.append((response, committed))
    return response


def _tell_leader(refused: PartitionProduceResponse, topic: str, job: Job) -> None:
    leader = leader_hints.leader_of(topic, refused.index, job.context)
    if leader is not None and job.context.header.api_version >= _HINTS_SINCE_VERSION:
        refused.current_leader = LeaderIdAndEpoch(
            leader_id=leader.broker_id, leader_epoch=leader.epoch
        )
        job.leaders.add(leader.broker_id)


class Acknowledgement:
    """The answer to a produce whose records lie in their logs, once they are committed or its time is up."""

    __slots__ = ("_left", "_response", "_timeout_ms", "_timer", "_waits", "answer")

    def __init__(
        self,
        response: ProduceResponse,
        waits: list[Wait],
        timeout_ms: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.answer: asyncio.Future[ProduceResponse] = loop.create_future()
        self._response = response
        self._waits = waits
        self._left = len(waits)
        self._timeout_ms = timeout_ms
        self._timer = loop.call_later(timeout_ms / 1000, self._give)
        for _, committed in waits:
            committed.add_done_callback(self._one_less)

    def _one_less(self, _: object) -> None:
        self._left -= 1
        if not self._left:
            self._give()

    def _give(self) -> None:
        self._timer.cancel()
        if self.answer.done():
            return
        try:
            for partition, committed in self._waits:
                self._settle(partition, committed)
        except Exception as error:  # noqa: BLE001 - it reaches the connection through the future
            self.answer.set_exception(error)
        else:
            self.answer.set_result(self._response)

    def _settle(self, partition: PartitionProduceResponse, committed: asyncio.Future[None]) -> None:
        if not committed.done() or committed.cancelled():
            committed.cancel()
            refusal = BrokerError(
                f"not acknowledged within {self._timeout_ms} ms; the records may still be kept",
                ErrorCode.REQUEST_TIMED_OUT,
            )
            _set_error(partition, refusal)
        elif isinstance(error := committed.exception(), BrokerError):
            _set_error(partition, error)
        elif error is not None:
            raise error


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
