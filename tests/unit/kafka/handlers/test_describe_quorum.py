"""DescribeQuorum: the metadata store and the controller, as Kafka's tools show a quorum."""

import asyncio
from typing import Any

import pytest

from penstock.broker.controller.broker_lifecycle import Report
from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionRequest,
    TopicRequest,
)
from tests.support.context import ADDRESS, BROKER_ID, LISTENER, BrokerContext

TOPIC = "__cluster_metadata"


def request_for(*places: tuple[str, int]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=[
            TopicRequest(topic_name=name, partitions=[PartitionRequest(partition_index=index)])
            for name, index in places
        ]
    )


def quorum(broker: BrokerContext, version: int = 2) -> Any:
    answer = broker.ask(request_for((TOPIC, 0)), version)
    assert answer.error_code == ErrorCode.NONE
    ((partition,),) = [topic.partitions for topic in answer.topics]
    assert (partition.partition_index, partition.error_code) == (0, ErrorCode.NONE)
    return partition


@pytest.mark.parametrize("version", range(3))
def test_the_controller_leads_and_is_caught_up(broker: BrokerContext, version: int) -> None:
    image, now_ms = broker.cluster.image, broker.services.clock.wall_ms()

    found = quorum(broker, version)

    assert (found.leader_id, found.leader_epoch) == (BROKER_ID, image.controller_epoch)
    assert found.high_watermark == image.revision
    assert found.observers == []
    (itself,) = found.current_voters
    assert (itself.replica_id, itself.log_end_offset) == (BROKER_ID, image.revision)
    seen_ms = now_ms if version >= 1 else -1
    assert (itself.last_fetch_timestamp, itself.last_caught_up_timestamp) == (seen_ms, seen_ms)


def test_from_version_2_voters_have_addresses(broker: BrokerContext) -> None:
    (node,) = broker.ask(request_for((TOPIC, 0)), 2).nodes
    assert node.node_id == BROKER_ID
    told = [(it.name, it.host, it.port) for it in node.listeners]
    assert told == [(LISTENER, *ADDRESS)]
    assert broker.ask(request_for((TOPIC, 0)), 1).nodes == []


def test_other_brokers_are_voters_with_what_they_last_reported(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, now_ms = broker.cluster.image, broker.services.clock.wall_ms()
    own = image.brokers[BROKER_ID]
    away = own._replace(id=9, epoch=0, listeners={}, fenced=True)
    behind = own._replace(id=8, directory_id="AAAAAAAAAAAAAAAAAAAAAQ")
    monkeypatch.setitem(image.brokers, 9, away)
    monkeypatch.setitem(image.brokers, 8, behind)
    now_s = broker.call(lambda: asyncio.get_running_loop().time())
    report = Report(own.epoch, image.revision - 2, now_s - 1.0, now_s - 30.0)
    monkeypatch.setattr(broker.cluster, "last_report", {8: report}.get)

    itself, second, third = quorum(broker).current_voters

    assert [it.replica_id for it in (itself, second, third)] == [BROKER_ID, 8, 9]
    assert second.log_end_offset == image.revision - 2
    assert second.replica_directory_id == bytes(15) + b"\x01"
    assert now_ms - second.last_fetch_timestamp == pytest.approx(1_000, abs=500)
    assert now_ms - second.last_caught_up_timestamp == pytest.approx(30_000, abs=500)
    unknown = (third.log_end_offset, third.last_fetch_timestamp, third.last_caught_up_timestamp)
    assert unknown == (-1, -1, -1)


@pytest.mark.parametrize(
    "places", [((TOPIC, 1),), (("orders", 0),), ((TOPIC, 0), (TOPIC, 0)), ((TOPIC, 0), ("x", 0))]
)
def test_nothing_else_has_a_quorum(broker: BrokerContext, places: Any) -> None:
    answer = broker.ask(request_for(*places))
    codes = [p.error_code for topic in answer.topics for p in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * len(places)
    assert answer.error_code == ErrorCode.NONE
    assert broker.ask(request_for()).topics == []


def test_it_needs_the_right_to_describe_the_cluster(broker: BrokerContext) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    answer = broker.ask(request_for((TOPIC, 0)))
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert answer.error_message
    assert answer.topics == []
