"""DeleteTopics: by name, or from version 6 by id. Who may not delete a topic does not learn its name."""

from collections import Counter

from penstock.kafka.context import Context
from penstock.kafka.security import Operation, ResourceType
from penstock.kafka.timeouts import patience_ms
from penstock.metadata.image import TopicImage
from penstock.model.errors import BrokerError, ErrorCode, UnknownTopicOrPartition
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

Asked = tuple[str | None, bytes]  # a topic's name or its id


async def handle(request: DeleteTopicsRequest, context: Context) -> DeleteTopicsResponse:
    if not context.config.delete_topic_enable:
        raise BrokerError(
            "topics cannot be deleted here: delete.topic.enable is false",
            ErrorCode.TOPIC_DELETION_DISABLED
            if context.version >= 3
            else ErrorCode.INVALID_REQUEST,
        )
    meant = [(asked, _look_up(asked, context)) for asked in _asked(request)]
    counts = Counter(topic.name for _, topic in meant if topic is not None)
    results: list[DeletableTopicResult] = []
    allowed: list[tuple[Asked, TopicImage]] = []
    for asked, found in dict(meant).items():
        try:
            topic = _checked(asked, found, context)
            if counts[topic.name] > 1:
                raise BrokerError("a topic is named more than once", ErrorCode.INVALID_REQUEST)
            allowed.append((asked, topic))
        except BrokerError as error:
            results.append(_refused(asked, error))
    outcomes = await context.cluster.delete_topics(
        [topic.id for _, topic in allowed], timeout_ms=patience_ms(request.timeout_ms)
    )
    for (asked, _), outcome in zip(allowed, outcomes, strict=True):
        results.append(_result(asked, outcome))
    return DeleteTopicsResponse(responses=results)


def refuse(request: DeleteTopicsRequest, error: BrokerError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(responses=[_refused(asked, error) for asked in _asked(request)])


def _asked(request: DeleteTopicsRequest) -> list[Asked]:
    names: list[Asked] = [(name, NO_TOPIC_ID) for name in request.topic_names]
    return names + [(topic.name, topic.topic_id) for topic in request.topics]


def _look_up(asked: Asked, context: Context) -> TopicImage | None:
    name, topic_id = asked
    image = context.cluster.image
    return image.topics_by_id.get(topic_id) if name is None else image.topics.get(name)


def _checked(asked: Asked, topic: TopicImage | None, context: Context) -> TopicImage:
    name, topic_id = asked
    if (name is None) is (topic_id == NO_TOPIC_ID):
        raise BrokerError(
            "give the name of a topic or its id: one of them, not both", ErrorCode.INVALID_REQUEST
        )
    if name is None:
        return _checked_by_id(topic, context)
    if topic is not None:
        context.authorize(Operation.DELETE, ResourceType.TOPIC, name)
        return topic
    if not context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name):
        context.authorize(Operation.DELETE, ResourceType.TOPIC, name)
    raise UnknownTopicOrPartition(f"topic '{name}' does not exist")


def _checked_by_id(topic: TopicImage | None, context: Context) -> TopicImage:
    if topic is None:
        raise BrokerError("no topic has this id", ErrorCode.UNKNOWN_TOPIC_ID)
    if not context.allows(Operation.DELETE, ResourceType.TOPIC, topic.name):
        raise BrokerError(
            f"{context.principal} may not delete the topic with this id",
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        )
    return topic


def _result(asked: Asked, outcome: TopicImage | BrokerError) -> DeletableTopicResult:
    if isinstance(outcome, BrokerError):
        return _refused(asked, outcome)
    return DeletableTopicResult(name=outcome.name, topic_id=outcome.id)


def _refused(asked: Asked, error: BrokerError) -> DeletableTopicResult:
    name, topic_id = asked
    return DeletableTopicResult(
        name=name, topic_id=topic_id, error_code=error.code, error_message=str(error)
    )
