"""Metadata: brokers, topics and who leads what; creates a missing topic where that is allowed."""

from collections.abc import Awaitable, Hashable, Iterable, Mapping, Sequence

from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.metadata.image import PartitionImage, TopicImage
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.model.steps import Steps
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_STEP_PARTITIONS = 1000
_NOT_ASKED = -(1 << 31)
_BY_ID_SINCE_VERSION = 12  # v10 and v11 can carry ids, but not answer for a topic without a name


class _Step:
    """Counts partitions over topics, and says when others should have their turn."""

    def __init__(self) -> None:
        self._left = _STEP_PARTITIONS

    def is_over(self, count: int) -> bool:
        self._left -= count
        if self._left > 0:
            return False
        self._left = _STEP_PARTITIONS
        return True


def handle(
    request: MetadataRequest, context: Context
) -> MetadataResponse | Awaitable[MetadataResponse]:
    missing = _to_create(request, context)
    if missing:
        return _create_first(missing, request, context)
    return context.replicas.turns.begin(_answer(request, context, {}))


def key_of(asked: MetadataRequestTopic) -> Hashable:
    """A topic is described once, however often it is named."""
    return asked.name, asked.topic_id


async def _create_first(
    names: Iterable[str], request: MetadataRequest, context: Context
) -> MetadataResponse:
    failures: dict[str, BrokerError] = {}
    for name in names:
        try:
            await context.cluster.auto_create_topic(name)
        except BrokerError as error:
            failures[name] = error
    return await context.replicas.turns.run(_answer(request, context, failures))


def _to_create(request: MetadataRequest, context: Context) -> dict[str, None]:
    """Auto-creation: by the broker's leave, the client's wish and the principal's right."""
    if not (_wishes_creation(request, context) and context.config.auto_create_topics_enable):
        return {}
    known = context.cluster.image.topics
    return {
        asked.name: None
        for asked in request.topics or ()
        if asked.name and asked.name not in known and _may_create(asked.name, context)
    }


def _wishes_creation(request: MetadataRequest, context: Context) -> bool:
    return context.version < 4 or request.allow_auto_topic_creation


def _may_create(name: str, context: Context) -> bool:
    return context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name) and (
        context.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
        or context.allows(Operation.CREATE, ResourceType.TOPIC, name)
    )


def _answer(
    request: MetadataRequest, context: Context, failures: Mapping[str, BrokerError]
) -> Steps[MetadataResponse]:
    cluster = context.cluster
    image, endpoints = cluster.image, cluster.endpoints_with_grace
    topics: list[MetadataResponseTopic] = []
    step = _Step()
    if request.topics is None or (context.version == 0 and not request.topics):
        for name in context.permitted(Operation.DESCRIBE, ResourceType.TOPIC, image.topics):
            known = image.topics.get(name)  # it may be deleted between two steps
            if known is not None:
                topics.append((yield from _described(known, request, context, step)))
    else:
        for asked in {key_of(asked): asked for asked in request.topics}.values():
            topic = yield from _topic(asked, request, context, failures, step)
            topics.append(topic)
        if not topics:  # who asks for brokers alone looks for no leaders
            endpoints = cluster.endpoints
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
            )
            for broker, endpoint in endpoints(context.listener)
        ],
        cluster_id=image.cluster_id,
        controller_id=-1 if image.controller_id is None else image.controller_id,
        topics=topics,
        cluster_authorized_operations=context.operations(ResourceType.CLUSTER)
        if request.include_cluster_authorized_operations
        else _NOT_ASKED,
    )


def refuse(request: MetadataRequest, error: BrokerError) -> MetadataResponse:
    return MetadataResponse(
        error_code=error.code,
        topics=[
            MetadataResponseTopic(
                error_code=error.code, name=asked.name or "", topic_id=asked.topic_id
            )
            for asked in request.topics or []
        ],
    )


def _topic(
    asked: MetadataRequestTopic,
    request: MetadataRequest,
    context: Context,
    failures: Mapping[str, BrokerError],
    step: _Step,
) -> Steps[MetadataResponseTopic]:
    try:
        if not asked.name:
            return (yield from _described(_by_id(asked, context), request, context, step))
        context.authorize(Operation.DESCRIBE, ResourceType.TOPIC, asked.name)
        topic = context.cluster.image.topics.get(asked.name)
        if topic is None:
            raise failures.get(asked.name) or _why_missing(asked.name, request, context)
        return (yield from _described(topic, request, context, step))
    except BrokerError as error:
        name = asked.name if context.version >= _BY_ID_SINCE_VERSION else asked.name or ""
        return MetadataResponseTopic(error_code=error.code, name=name, topic_id=asked.topic_id)


def _why_missing(name: str, request: MetadataRequest, context: Context) -> BrokerError:
    """It is not there, and was not created."""
    context.cluster.check_topic_name(name)
    if _wishes_creation(request, context) and context.config.auto_create_topics_enable:
        context.authorize(Operation.CREATE, ResourceType.TOPIC, name)
    return BrokerError(f"topic '{name}' does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _by_id(asked: MetadataRequestTopic, context: Context) -> TopicImage:
    if context.version < _BY_ID_SINCE_VERSION:
        raise BrokerError(
            f"Metadata v{context.version} asks by name, not by id", ErrorCode.INVALID_REQUEST
        )
    if asked.topic_id == NO_TOPIC_ID:
        raise BrokerError("a topic without name and id", ErrorCode.INVALID_REQUEST)
    topic = context.cluster.image.topics_by_id.get(asked.topic_id)
    if topic is None or not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
        raise BrokerError("no such topic id", ErrorCode.UNKNOWN_TOPIC_ID)
    return topic


def _described(
    topic: TopicImage, request: MetadataRequest, context: Context, step: _Step
) -> Steps[MetadataResponseTopic]:
    partitions: list[MetadataResponsePartition] = []
    failed = context.replicas.failed(topic.name)
    for first in range(0, len(topic.partitions), _STEP_PARTITIONS):
        some = topic.partitions[first : first + _STEP_PARTITIONS]
        partitions += _partitions(some, first, failed, context)
        if step.is_over(len(some)):
            yield
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=partitions,
        topic_authorized_operations=context.operations(ResourceType.TOPIC, topic.name)
        if request.include_topic_authorized_operations
        else _NOT_ASKED,
    )


def _partitions(
    some: Sequence[PartitionImage], first: int, failed: frozenset[int], context: Context
) -> Iterable[MetadataResponsePartition]:
    for index, partition in enumerate(some, first):
        yield MetadataResponsePartition(
            error_code=ErrorCode.NONE if partition.leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=[context.broker_id] if index in failed else [],
        )
