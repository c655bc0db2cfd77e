"""OffsetFetch without the metadata store: it confirms the coordinator, and holds up nobody."""

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.image import PartitionImage
from penstock.model.errors import ErrorCode
from penstock.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.support.context import BROKER_ID, BrokerContext, broker_context
from tests.support.wired import Client, Door, door_to

OTHER = 77  # a follower that is silent
VERSION = 8
MANY, FEW = 600, 40  # groups: of a request that is handled in parts, and of one that is not
_DEADLINE_MS = 5_000
_LOOKS_S = 0.05


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerContext]:
    """It coordinates all groups, has a silent follower, and does not reach the store."""
    with broker_context(tmp_path) as broker:
        broker.run(broker.services.groups.coordinator_of("g0"))
        while broker.call(lambda: broker.services.groups.is_loading):
            broker.run(asyncio.sleep(0.01))
        for partition in coordinators(broker):
            followed = PartitionImage(
                BROKER_ID, partition.leader_epoch, 9, (BROKER_ID, OTHER), (BROKER_ID, OTHER)
            )
            broker.call(partial(partition.lead, BROKER_ID, followed))
        broker.call(lambda: broker.replicas.connection_changed(False))
        yield broker


@pytest.fixture
def door(broker: BrokerContext) -> Iterator[Door]:
    with door_to(broker) as door:
        yield door


def coordinators(broker: BrokerContext) -> list[Partition]:
    topic = broker.replicas.topic("__consumer_offsets")
    return [partition for partition in topic.partitions if partition is not None]


def offsets_of(count: int) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=f"g{it}", topics=topics) for it in range(count)]
    )


def pass_time(broker: BrokerContext, ms: int) -> None:
    broker.services.clock.advance(ms)  # type: ignore[attr-defined] # the tests' own
    broker.run(asyncio.sleep(_LOOKS_S))


def waiting(broker: BrokerContext) -> int:
    """Coordinator partitions that are being confirmed."""
    return len(broker.services.confirmations._running)


def codes(client: Client) -> list[int]:
    response = client.receive_as(OffsetFetchResponse, VERSION)[1]
    return [group.error_code for group in response.groups]


def test_requests_that_wait_hold_no_place_of_other_long_requests(
    broker: BrokerContext, door: Door
) -> None:
    for _ in range(3):
        door.connect().send(offsets_of(MANY), VERSION)
    broker.run(asyncio.sleep(_LOOKS_S))
    assert waiting(broker) == len(coordinators(broker))
    other = door.connect()
    topics = [MetadataRequestTopic(name=f"n{it}") for it in range(MANY)]
    other.send(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 8)
    assert len(other.receive_as(MetadataResponse, 8)[1].topics) == MANY


@pytest.mark.parametrize("count", [FEW, MANY])
def test_all_groups_of_a_request_have_one_deadline(
    broker: BrokerContext, door: Door, count: int
) -> None:
    client = door.connect()
    client.send(offsets_of(count), VERSION)
    broker.run(asyncio.sleep(_LOOKS_S))
    pass_time(broker, _DEADLINE_MS + 1)
    assert codes(client) == [ErrorCode.NOT_COORDINATOR] * count


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_request_whose_client_is_gone_waits_no_longer(
    broker: BrokerContext, door: Door, count: int
) -> None:
    client = door.connect()
    client.send(offsets_of(count), VERSION)
    broker.run(asyncio.sleep(_LOOKS_S))
    assert waiting(broker)
    client.socket.close()
    broker.run(asyncio.sleep(_LOOKS_S))
    assert not waiting(broker)
    assert not door.loop.long_requests.locked()
    assert door.loop.memory.used_bytes == 0


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_client_without_the_right_causes_no_wait(
    broker: BrokerContext, door: Door, count: int
) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.GROUP)
    client = door.connect()
    client.send(offsets_of(count), VERSION)
    assert codes(client) == [ErrorCode.GROUP_AUTHORIZATION_FAILED] * count
    assert not waiting(broker)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_a_coordinator_without_followers_answers(
    broker: BrokerContext, door: Door, count: int
) -> None:
    for partition in coordinators(broker):
        alone = PartitionImage(
            BROKER_ID, partition.leader_epoch, 10, (BROKER_ID, OTHER), (BROKER_ID,)
        )
        broker.call(partial(partition.lead, BROKER_ID, alone))
    client = door.connect()
    client.send(offsets_of(count), VERSION)
    assert codes(client) == [ErrorCode.NONE] * count


def test_a_part_of_a_long_request_does_not_wait_when_the_store_is_lost_meanwhile(
    broker: BrokerContext, door: Door
) -> None:
    """Nothing was confirmed when the request arrived, and the part holds a place."""
    places = door.loop.long_requests
    for _ in range(2):
        broker.run(places.acquire())
    broker.call(lambda: broker.replicas.connection_changed(True))
    client = door.connect()
    client.send(offsets_of(MANY), VERSION)
    broker.call(lambda: broker.replicas.connection_changed(False))
    for _ in range(2):
        broker.call(places.release)
    assert codes(client) == [ErrorCode.NOT_COORDINATOR] * MANY
    assert not waiting(broker)
