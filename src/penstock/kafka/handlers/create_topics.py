"""CreateTopics: each topic is created or refused by itself; with `validate_only` none is created."""

import asyncio
from collections import Counter
from collections.abc import Container

from penstock.kafka.config_entries import Entry, topic_entries
from penstock.kafka.context import Context
from penstock.kafka.security import CLUSTER_NAME, Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.rules.topic_writes import CreatedTopic
from penstock.model.configs import resolve_topic_config
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.model.steps import Steps
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

_STEP_TOPICS = 1000


async def handle(request: CreateTopicsRequest, context: Context) -> CreateTopicsResponse:
    limit = context.config.penstock_partitions_per_request_max
    if len(request.topics) > limit:
        raise BrokerError(
            f"the request names {len(request.topics)} topics and may create {limit} partitions"
            " (penstock.partitions.per.request.max): split it",
            ErrorCode.POLICY_VIOLATION,
        )
    turns = context.replicas.turns
    refused = await turns.run(_refusals(request, context))
    specs = await turns.run(_specs(request, refused))
    outcomes = await context.cluster.create_topics(
        specs,
        validate_only=request.validate_only,
        timeout_ms=patience_ms(request.timeout_ms),
    )
    response = CreateTopicsResponse()
    for spec, outcome in zip(specs, outcomes, strict=True):
        if isinstance(outcome, BrokerError):
            response.topics.append(_refused(spec.name, outcome))
            is_long = len(response.topics) % _STEP_TOPICS == 0
        else:
            response.topics.append(_created(outcome, request, context))
            is_long = True  # a thousand topics take half a second: others have their turn
        if is_long:
            await asyncio.sleep(0)
    response.topics += [_refused(name, error) for name, error in refused.items()]
    return response


def refuse(request: CreateTopicsRequest, error: BrokerError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_refused(topic.name, error) for topic in request.topics])


def _refusals(request: CreateTopicsRequest, context: Context) -> Steps[dict[str, BrokerError]]:
    """What is refused before the cluster is asked, by name."""
    refused: dict[str, BrokerError] = {}
    counts = Counter(topic.name for topic in request.topics)
    may_create_any = context.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
    for number, (name, count) in enumerate(counts.items(), 1):
        try:
            if not may_create_any:
                context.authorize(Operation.CREATE, ResourceType.TOPIC, name)
        except BrokerError as error:
            refused[name] = error
        else:
            if count > 1:
                message = f"topic '{name}' is named more than once"
                refused[name] = BrokerError(message, ErrorCode.INVALID_REQUEST)
        if number % _STEP_TOPICS == 0:
            yield
    return refused


def _specs(request: CreateTopicsRequest, refused: Container[str]) -> Steps[list[TopicSpec]]:
    specs = []
    for number, topic in enumerate(request.topics, 1):
        if topic.name not in refused:
            specs.append(_spec(topic))
        if number % _STEP_TOPICS == 0:
            yield
    return specs


def _spec(asked: CreatableTopic) -> TopicSpec:
    return TopicSpec(
        asked.name,
        asked.num_partitions,
        asked.replication_factor,
        {assignment.partition_index: assignment.broker_ids for assignment in asked.assignments},
        {config.name: config.value for config in asked.configs},
    )


def _created(
    topic: CreatedTopic, request: CreateTopicsRequest, context: Context
) -> CreatableTopicResult:
    result = CreatableTopicResult(
        name=topic.name,
        topic_id=NO_TOPIC_ID if request.validate_only else topic.id,
        error_message=None,
        configs=None,
    )
    if not context.allows(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return result
    layers = context.cluster.broker_layers
    config = resolve_topic_config(
        topic.config, layers.in_force, replication_factor=topic.replication_factor
    )
    result.num_partitions = topic.partition_count
    result.replication_factor = topic.replication_factor
    result.configs = [_config(entry) for entry in topic_entries(config, topic.config, layers)]
    return result


def _config(entry: Entry) -> CreatableTopicConfigs:
    return CreatableTopicConfigs(
        name=entry.setting.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.setting.is_sensitive,
    )


def _refused(name: str, error: BrokerError) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name, error_code=error.code, error_message=str(error), configs=None
    )
