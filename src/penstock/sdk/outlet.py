"""Where a run puts messages that it cannot handle: retry topics and the dead-letter topic, made when they are missing."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from penstock.sdk import dead_letters
from penstock.sdk.librdkafka import CONNECTION, errors_of
from penstock.sdk.message import Message
from penstock.sdk.retrying import RetryTopics
from penstock.sdk.settings import Role, known

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer
    from penstock.sdk.producer import Producer

_TIMEOUT_S: Final = 30.0


class Outlet:
    """A producer of its own, made when entered; nothing at all when there is neither retry nor dead-letter topic."""

    def __init__(
        self, consumer: "Consumer", dead_letter: str | None, retry_topics: RetryTopics | None
    ) -> None:
        self._consumer = consumer
        self._dead_letter = dead_letter
        self._retry_topics = retry_topics
        self._producer: Producer | None = None
        self._origins = self._topics_by_name()

    def __enter__(self) -> Self:
        retry_names = self._retry_names()
        wanted = [*retry_names, *([self._dead_letter] if self._dead_letter else [])]
        if wanted:
            # split, because a message at the limit has more headers now
            self._producer = helper_producer(self._consumer, split_large=True)
            try:
                ensure_topics(self._producer, self._consumer, wanted)
            except BaseException:
                self._producer.close(0.0)
                raise
        if retry_names:
            self._consumer.subscribe([*self._consumer.topics, *retry_names])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._producer is not None:
            self._producer.close(_TIMEOUT_S)

    def put_aside(self, message: Message, error: BaseException, attempts: int) -> None:
        """To the dead-letter topic; returns when the broker has it."""
        assert self._dead_letter is not None, "the policy puts aside only where there is a topic"
        headers = dead_letters.put_aside(message, self._failure(error, attempts))
        self._send(self._dead_letter, message, headers)

    def put_off(
        self, message: Message, error: BaseException, attempts: int, *, step: int, delay_s: float
    ) -> None:
        """To the retry topic of that step; returns when the broker has it."""
        assert self._retry_topics is not None, "the policy puts off only where there are topics"
        headers = dead_letters.put_off(
            message, self._failure(error, attempts), step=step, delay_s=delay_s
        )
        # not by the headers: a dead letter, or a copy with headers, names a topic that is not read here
        origin = self._origins.get(message.topic, message.topic)
        self._send(self._retry_topics.name(origin, step), message, headers)

    def _send(self, topic: str, message: Message, headers: list[dead_letters.Header]) -> None:
        assert self._producer is not None, "it is entered"
        self._producer.send(topic, message.raw_value, message.raw_key, headers).result()

    def _failure(self, error: BaseException, attempts: int) -> dead_letters.Failure:
        now_ms = time.time_ns() // 1_000_000
        return dead_letters.Failure(error, attempts, self._consumer.group_id, now_ms)

    def _topics_by_name(self) -> dict[str, str]:
        """Each retry topic that is read here, with the topic whose messages it gets."""
        if self._retry_topics is None:
            return {}
        return {
            name: topic
            for topic in self._consumer.topics
            for name in self._retry_topics.names(topic)
        }

    def _retry_names(self) -> list[str]:
        return list(self._origins)


def helper_producer(consumer: "Consumer", **settings: Any) -> "Producer":
    """One that reaches the same cluster as the consumer does."""
    from penstock.sdk.producer import Producer

    own = settings.pop("librdkafka", None) or {}
    return Producer(
        consumer.bootstrap,
        librdkafka={**shared_properties(consumer.librdkafka), **own},
        **{**shared_settings(consumer.settings), **settings},
    )


def shared_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Those of a consumer that its helper producer needs too: names, security, network."""
    both = known(Role.PRODUCER) & known(Role.CONSUMER) - {"client_id", "request_timeout_ms"}
    shared = {name: value for name, value in settings.items() if name in both}
    return {**shared, "client_id": f"{settings['client_id']}-outlet"}


def shared_properties(properties: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name.startswith(CONNECTION)}


def ensure_topics(producer: "Producer", consumer: "Consumer", names: list[str]) -> None:
    """Makes those that are missing, with as many partitions as the topic read has."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    with errors_of("topics"):
        existing = producer.client.list_topics(timeout=_TIMEOUT_S).topics
    missing = [name for name in names if name not in existing]
    if not missing:
        return
    sources = [len(existing[topic].partitions) for topic in consumer.topics if topic in existing]
    partitions = max(sources, default=1)
    admin = AdminClient(producer.connection)  # its futures end with it
    made = admin.create_topics([NewTopic(name, num_partitions=partitions) for name in missing])
    for name, future in made.items():
        with errors_of(f"create topic {name!r}"):
            _await_created(future)


def _await_created(future: Any) -> None:
    from confluent_kafka import KafkaError, KafkaException

    try:
        future.result(_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
