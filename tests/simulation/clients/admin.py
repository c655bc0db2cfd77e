"""Admin requests of a simulated cluster: create and delete topics, move partitions."""

import asyncio
from collections.abc import Mapping
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from penstock.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from penstock.wire.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tests.simulation.clients.client import PAUSE_S, TOPIC, Client

_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


async def create_topic(
    client: Client, name: str, partitions: int, configs: Mapping[str, str]
) -> None:
    """Retry until the topic exists."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=-1,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout_ms=5000)
    while True:
        try:
            connection = await client.any_connection()
            response = await connection.request(request, CreateTopicsResponse, timeout_ms=6000)
        except BrokerError:
            await asyncio.sleep(PAUSE_S)
            continue
        if response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            return
        await asyncio.sleep(PAUSE_S)


async def delete_topic(client: Client, name: str = TOPIC) -> None:
    """Retry until no topic has the name."""
    await _delete(client, DeleteTopicState(name=name))


async def delete_topic_by_id(client: Client, topic_id: bytes) -> None:
    """As `delete_topic`; a request that arrives late does nothing to another topic of the same name."""
    await _delete(client, DeleteTopicState(name=None, topic_id=topic_id))


async def _delete(client: Client, topic: DeleteTopicState) -> None:
    request = DeleteTopicsRequest(topics=[topic], timeout_ms=5000)
    while True:
        try:
            connection = await client.any_connection()
            response = await connection.request(request, DeleteTopicsResponse, timeout_ms=6000)
        except BrokerError:
            await asyncio.sleep(PAUSE_S)
            continue
        if response.responses[0].error_code in _GONE:
            return
        await asyncio.sleep(PAUSE_S)


async def move_partition(client: Client, topic: str, index: int, replicas: list[int]) -> None:
    """Send one reassignment. The broker may reject it, and its response may be lost."""
    partition = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=2000, topics=[ReassignableTopic(name=topic, partitions=[partition])]
    )
    try:
        connection = await client.any_connection()
        await connection.request(request, AlterPartitionReassignmentsResponse, timeout_ms=3000)
    except BrokerError:
        pass
