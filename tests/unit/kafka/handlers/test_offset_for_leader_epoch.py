from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.support.context import BrokerContext, broker_context


def end_of(
    broker: BrokerContext,
    epoch: int,
    topic: str = "orders",
    *,
    current: int = -1,
    index: int = 0,
    version: int = 4,
) -> EpochEndOffset:
    asked = OffsetForLeaderPartition(
        partition=index, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )
    (answered,) = broker.ask(request, version).topics
    (result,) = answered.partitions
    assert isinstance(result, EpochEndOffset)
    return result


@pytest.mark.parametrize("version", range(2, 5))
def test_the_current_epoch_ends_where_the_log_ends(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    assert (end_of(broker, 0).leader_epoch, end_of(broker, 0).end_offset) == (0, 0)
    broker.append("orders", count=5)
    result = end_of(broker, 0, version=version)
    assert (result.error_code, result.leader_epoch, result.end_offset) == (ErrorCode.NONE, 0, 5)


def test_an_earlier_epoch_ends_where_the_next_one_began(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("orders")
        broker.append("orders", count=5)
    with broker_context(tmp_path) as broker:
        broker.append("orders", count=5)
        current = broker.partition("orders").leader_epoch
        first, last = end_of(broker, 0), end_of(broker, current)
    assert current > 0
    assert (first.leader_epoch, first.end_offset) == (0, 5)
    assert (last.leader_epoch, last.end_offset) == (current, 10)


def test_an_epoch_that_has_not_been_is_unknown(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    result = end_of(broker, 9)
    assert (result.error_code, result.leader_epoch, result.end_offset) == (ErrorCode.NONE, -1, -1)


def test_a_client_that_believes_in_another_leader_is_told(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert end_of(broker, 0, current=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_unknown_partitions_are_refused(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    codes = {end_of(broker, 0, "absent").error_code, end_of(broker, 0, index=4).error_code}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_brokers_and_who_may_see_the_topic_may_ask(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.allow_only()
    assert end_of(broker, 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    broker.allow_only((Operation.DESCRIBE, ResourceType.TOPIC, "orders"))
    assert end_of(broker, 0).error_code == ErrorCode.NONE
    broker.allow_only((Operation.CLUSTER_ACTION, ResourceType.CLUSTER, "*"))
    assert end_of(broker, 0).error_code == ErrorCode.NONE
