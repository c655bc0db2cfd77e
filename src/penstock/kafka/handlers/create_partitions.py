"""CreatePartitions: a topic grows to `count` partitions; it never shrinks."""

from collections import Counter

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(request: CreatePartitionsRequest, context: Context) -> CreatePartitionsResponse:
    counts = Counter(topic.name for topic in request.topics)
    unique = [topic for topic in request.topics if counts[topic.name] == 1]
    results = [await _grow(topic, request, context) for topic in unique]
    twice = BrokerError("a topic is named more than once", ErrorCode.INVALID_REQUEST)
    results += [_refused(name, twice) for name, count in counts.items() if count > 1]
    return CreatePartitionsResponse(results=results)


def refuse(request: CreatePartitionsRequest, error: BrokerError) -> CreatePartitionsResponse:
    return CreatePartitionsResponse(
        results=[_refused(topic.name, error) for topic in request.topics]
    )


async def _grow(
    asked: CreatePartitionsTopic, request: CreatePartitionsRequest, context: Context
) -> CreatePartitionsTopicResult:
    assignments = None
    if asked.assignments is not None:
        assignments = [assignment.broker_ids for assignment in asked.assignments]
    try:
        context.authorize(Operation.ALTER, ResourceType.TOPIC, asked.name)
        await context.cluster.create_partitions(
            asked.name,
            asked.count,
            assignments,
            validate_only=request.validate_only,
            timeout_ms=patience_ms(request.timeout_ms),
        )
    except BrokerError as error:
        return _refused(asked.name, error)
    return CreatePartitionsTopicResult(name=asked.name)


def _refused(name: str, error: BrokerError) -> CreatePartitionsTopicResult:
    return CreatePartitionsTopicResult(name=name, error_code=error.code, error_message=str(error))
