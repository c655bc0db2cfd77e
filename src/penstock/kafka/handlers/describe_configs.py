"""DescribeConfigs: every setting of topics, brokers and groups, its source, its synonyms and what it means."""

import asyncio
from collections.abc import Hashable

from penstock.kafka.config_entries import (
    Entry,
    all_brokers_entries,
    broker_entries,
    group_entries,
    topic_entries,
)
from penstock.kafka.config_resources import authorize_settings
from penstock.kafka.context import Context
from penstock.kafka.security import Operation
from penstock.metadata.rules.config_changes import Resource
from penstock.model.errors import BrokerError, UnknownTopicOrPartition
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


async def handle(request: DescribeConfigsRequest, context: Context) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    for asked in request.resources:
        response.results.append(_describe(asked, request, context))
        await asyncio.sleep(0)  # a thousand topics take half a second: others have their turn
    return response


def key_of(asked: DescribeConfigsResource) -> Hashable:
    """A resource is described once, however often it is named."""
    keys = asked.configuration_keys
    return asked.resource_type, asked.resource_name, None if keys is None else tuple(keys)


def refuse(request: DescribeConfigsRequest, error: BrokerError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_refused(asked, error) for asked in request.resources])


def _describe(
    asked: DescribeConfigsResource, request: DescribeConfigsRequest, context: Context
) -> DescribeConfigsResult:
    try:
        entries = _entries(asked, context)
    except BrokerError as error:
        return _refused(asked, error)
    keys = asked.configuration_keys
    return DescribeConfigsResult(
        error_message=None,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
        configs=[
            _result(entry, request) for entry in entries if not keys or entry.setting.name in keys
        ],
    )


def _entries(asked: DescribeConfigsResource, context: Context) -> list[Entry]:
    cluster, name = context.cluster, asked.resource_name
    owner = authorize_settings(Operation.DESCRIBE_CONFIGS, asked.resource_type, name, context)
    if owner is Resource.BROKER:
        layers = cluster.broker_layers
        return broker_entries(layers) if name else all_brokers_entries(layers)
    if owner is Resource.GROUP:
        return group_entries(cluster.image.group_configs.get(name, {}), cluster.broker_layers)
    topic = cluster.image.topics.get(name)
    if topic is None:
        cluster.check_topic_name(name)
        raise UnknownTopicOrPartition(f"topic '{name}' does not exist")
    return topic_entries(cluster.topic_config(topic), topic.config, cluster.broker_layers)


def _result(entry: Entry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    setting = entry.setting
    synonyms = entry.synonyms if request.include_synonyms else ()
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=setting.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in synonyms
        ],
        config_type=setting.kind,
        documentation=setting.doc if request.include_documentation else None,
    )


def _refused(asked: DescribeConfigsResource, error: BrokerError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=str(error),
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )
