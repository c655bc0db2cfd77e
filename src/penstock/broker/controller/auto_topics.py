"""A topic that is created because it was asked for, as a request to the controller."""

from penstock.metadata.rules.controller import TopicSpec
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)


def creation_request(spec: TopicSpec, timeout_ms: int) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=spec.name,
        num_partitions=spec.partition_count,
        replication_factor=spec.replication_factor,
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in spec.config.items()
        ],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)


def refusal(response: CreateTopicsResponse) -> BrokerError | None:
    for topic in response.topics:
        if topic.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return BrokerError(topic.error_message or topic.name, ErrorCode(topic.error_code))
    return None
