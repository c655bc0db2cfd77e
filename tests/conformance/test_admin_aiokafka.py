"""What operators do with aiokafka's AIOKafkaAdminClient, which speaks the older versions of everything."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from penstock.testing import Broker
from tests.support.clients import CONFLUENT, Sent

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

T = TypeVar("T")


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def with_admin(broker: Broker, work: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
    async def run() -> T:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    return asyncio.run(run())


async def created(admin: AIOKafkaAdminClient, topic: NewTopic) -> tuple[int, str | None]:
    answer = await admin.create_topics([topic])
    ((_, code, message),) = answer.topic_errors
    return code, message


def test_a_topic_is_created_grown_described_and_deleted(broker: Broker) -> None:
    name = fresh()

    async def work(admin: AIOKafkaAdminClient) -> None:
        assert await created(admin, NewTopic(name, 2, 1)) == (0, None)
        assert name in await admin.list_topics()
        await admin.create_partitions({name: NewPartitions(total_count=4)})
        (described,) = await admin.describe_topics([name])
        assert (described["error_code"], len(described["partitions"])) == (0, 4)
        await admin.delete_topics([name])
        assert name not in await admin.list_topics()

    with_admin(broker, work)


@pytest.mark.parametrize(
    ("topic", "error", "said"),
    [
        (NewTopic("a b", 1, 1), errors.InvalidTopicError, "a b"),
        (NewTopic("ok", 0, 1), errors.InvalidPartitionsError, "0 partitions"),
        (NewTopic("ok", 1, 5), errors.InvalidReplicationFactorError, "factor 5"),
        (
            NewTopic("ok", 1, 1, topic_configs={"retention.ms": "soon"}),
            errors.InvalidConfigurationError,
            "retention.ms",
        ),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused_with_a_code_and_a_reason(
    broker: Broker, topic: NewTopic, error: Any, said: str
) -> None:
    code, message = with_admin(broker, lambda admin: created(admin, topic))
    assert code == error.errno
    assert said in (message or "")


def test_a_topic_that_exists_is_not_created_again(broker: Broker, topic: str) -> None:
    code, message = with_admin(broker, lambda admin: created(admin, NewTopic(topic, 1, 1)))
    assert code == errors.TopicAlreadyExistsError.errno
    assert topic in (message or "")


def test_a_topic_never_shrinks(broker: Broker, topic: str) -> None:
    async def shrink(admin: AIOKafkaAdminClient) -> None:
        await admin.create_partitions({topic: NewPartitions(total_count=1)})

    with pytest.raises(errors.InvalidPartitionsError, match="2 partitions"):
        with_admin(broker, shrink)


def test_settings_are_replaced_and_described(broker: Broker, topic: str) -> None:
    async def work(admin: AIOKafkaAdminClient) -> dict[str, str]:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})
        (changed,) = await admin.alter_configs([resource])
        ((code, message, _, name),) = changed.resources
        assert (code, message, name) == (0, None, topic)
        asked = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = await admin.describe_configs([asked], include_synonyms=True)
        ((code, _, _, _, entries),) = answer.resources
        assert code == 0
        return {entry[0]: entry[1] for entry in entries}

    found = with_admin(broker, work)
    assert (found["retention.ms"], found["segment.bytes"]) == ("1000", "1073741824")


def test_records_are_deleted_up_to_an_offset(broker: Broker, topic: str) -> None:
    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"x")] * 10, "none")
    partition = TopicPartition(topic, 0)

    async def delete(admin: AIOKafkaAdminClient) -> int:
        deleted = await admin.delete_records({partition: RecordsToDelete(before_offset=7)})
        return int(deleted[partition])

    assert with_admin(broker, delete) == 7


def test_the_cluster_is_described_and_a_coordinator_found(broker: Broker) -> None:
    async def work(admin: AIOKafkaAdminClient) -> None:
        cluster = await admin.describe_cluster()
        (node,) = cluster["brokers"]
        assert f"{node['host']}:{node['port']}" == broker.bootstrap
        assert await admin.find_coordinator("readers") == node["node_id"]

    with_admin(broker, work)


def test_an_idempotent_producer_works(broker: Broker, topic: str) -> None:
    async def work() -> int:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
        await producer.start()
        sent = await producer.send_and_wait(topic, b"x", partition=0)
        await producer.stop()
        return int(sent.offset)

    assert asyncio.run(work()) == 0
