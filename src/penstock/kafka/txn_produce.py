"""A produce in a transaction: its records enter only where the coordinator is sure to end them (KIP-890)."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.broker.coordinators.verification import Check
from penstock.broker.partitions.partition import Partition, Topic
from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import BrokerError, ErrorCode, OutOfOrderSequence
from penstock.model.steps import Steps, finish
from penstock.records.batch import HEADER_SIZE, BatchHeader, parse_header
from penstock.transactions.state import Producer
from penstock.wire.messages.produce import PartitionProduceData, ProduceRequest

ADDS_SINCE: Final = 12  # the partitions of a produce join the transaction by it
_ABORTABLE_SINCE: Final = 11  # the client knows TRANSACTION_ABORTABLE
_LATER: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
_STEP: Final = 20  # partitions: each may have to be opened
Checks = Mapping[Producer, Check]
NOTHING_CHECKED: Final[Checks] = {}


class Preparation(NamedTuple):
    """What must be waited for before any of a request can be admitted (None: nothing), and who says so then."""

    waiting: asyncio.Future[Any] | None
    checks: Checks


class _Part(NamedTuple):
    partition: Partition
    header: BatchHeader


NOTHING_PREPARED: Final = Preparation(None, NOTHING_CHECKED)


def prepare(request: ProduceRequest, context: Context) -> Preparation:
    return finish(prepare_in_steps(request, context))


def prepare_in_steps(request: ProduceRequest, context: Context) -> Steps[Preparation]:
    assert request.transactional_id is not None
    found: dict[Producer, list[Partition]] = {}
    for number, part in enumerate(_parts(request, context), 1):
        if part is not None and part.header.is_transactional:
            producer = Producer(part.header.producer_id, part.header.producer_epoch)
            found.setdefault(producer, []).append(part.partition)
        if not number % _STEP:
            yield
    checks: dict[Producer, Check] = {}
    for producer, partitions in found.items():
        check = context.transactions.prepare(
            request.transactional_id,
            producer,
            partitions,
            implicit=context.version >= ADDS_SINCE,
        )
        if check is not None:
            checks[producer] = check
    waits = [check.done for check in checks.values() if check.done is not None]
    if len(waits) > 1:
        return Preparation(asyncio.gather(*waits, return_exceptions=True), checks)
    return Preparation(waits[0] if waits else None, checks)


def _parts(request: ProduceRequest, context: Context) -> Iterator[_Part | None]:
    """The batches of the request. None: one that the client may not write, or that cannot be read."""
    replicas = context.services.replicas
    for data in request.topic_data:
        try:
            topic = replicas.topic(data.name) if data.name else replicas.topic_by_id(data.topic_id)
        except BrokerError:
            yield None
            continue
        if topic.internal or not context.allows(Operation.WRITE, ResourceType.TOPIC, topic.name):
            yield None
            continue
        for part in data.partition_data:
            yield _part(part, topic, context)


def _part(data: PartitionProduceData, topic: Topic, context: Context) -> _Part | None:
    if data.records is None or len(data.records) < HEADER_SIZE:
        return None
    try:
        partition = context.services.replicas.partition(topic, data.index)
        if partition.log is not None:
            return _Part(partition, parse_header(data.records))
    except BrokerError:
        pass
    return None


class Admission:
    """Of one request, at one moment: what it admits must enter before anything else can happen."""

    __slots__ = ("_checks", "_context", "_id")

    def __init__(
        self, transactional_id: str, context: Context, checks: Checks = NOTHING_CHECKED
    ) -> None:
        self._id = transactional_id
        self._context = context
        self._checks = checks

    def admit(self, partition: Partition, records: memoryview) -> None:
        """Raise unless the batch may enter."""
        if len(records) < HEADER_SIZE:
            return  # refused for that
        header = parse_header(records)
        if not header.is_transactional:
            return
        known = partition.log.producers
        producer = Producer(header.producer_id, header.producer_epoch)
        if known.has_open(producer.id, producer.epoch):
            return
        self._context.services.replicas.refuse_when_unable()  # nor could it have been added
        self._check(producer, partition)
        is_first = producer.id not in known
        if is_first and header.base_sequence > 0 and self._context.version >= ADDS_SINCE:
            raise OutOfOrderSequence(
                f"{partition}: the first batch of {producer} has sequence {header.base_sequence}"
            )

    def _check(self, producer: Producer, partition: Partition) -> None:
        try:
            self._context.transactions.check(
                self._id, producer, partition, self._checks.get(producer)
            )
        except BrokerError as error:
            raise BrokerError(str(error), _code_for(error.code, self._context.version)) from error


def _code_for(code: ErrorCode, version: int) -> ErrorCode:
    """As the client understands it. What old clients would not try again is NOT_ENOUGH_REPLICAS."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code in _LATER and (code is not ErrorCode.CONCURRENT_TRANSACTIONS or version < ADDS_SINCE):
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return code
