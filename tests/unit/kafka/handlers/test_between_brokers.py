"""What brokers ask of the controller: only brokers may, and only in their present session."""

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.allocate_producer_ids import AllocateProducerIdsRequest
from penstock.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
    PartitionData,
    TopicData,
)
from penstock.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.wire.messages.unregister_broker import UnregisterBrokerRequest
from penstock.wire.schema import Message
from tests.support.context import BROKER_ID, BrokerContext


def test_a_heartbeat_tells_a_broker_where_it_stands(broker: BrokerContext) -> None:
    image = broker.cluster.image
    answer = broker.ask(
        BrokerHeartbeatRequest(
            broker_id=BROKER_ID,
            broker_epoch=broker.cluster.epoch,
            current_metadata_offset=image.revision,
        )
    )
    assert (answer.error_code, answer.is_caught_up, answer.is_fenced) == (0, True, False)
    assert not answer.should_shut_down


@pytest.mark.parametrize(
    ("broker_id", "epoch_step", "code"),
    [(BROKER_ID, 1, ErrorCode.STALE_BROKER_EPOCH), (99, 0, ErrorCode.BROKER_ID_NOT_REGISTERED)],
)
def test_a_heartbeat_of_another_session_is_refused(
    broker: BrokerContext, broker_id: int, epoch_step: int, code: ErrorCode
) -> None:
    epoch = broker.cluster.epoch + epoch_step
    answer = broker.ask(BrokerHeartbeatRequest(broker_id=broker_id, broker_epoch=epoch))
    assert answer.error_code == code


def test_producer_ids_come_in_blocks(broker: BrokerContext) -> None:
    request = AllocateProducerIdsRequest(broker_id=BROKER_ID, broker_epoch=broker.cluster.epoch)
    first, second = broker.ask(request), broker.ask(request)
    assert (first.error_code, first.producer_id_len) == (0, 1000)
    assert second.producer_id_start == first.producer_id_start + 1000
    request.broker_epoch += 1
    assert broker.ask(request).error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_is_answered_for_each_partition(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    topic = broker.cluster.image.topics["orders"]
    partition = PartitionData(partition_index=0, leader_epoch=0, partition_epoch=0)
    absent = PartitionData(partition_index=1, leader_epoch=0, partition_epoch=0)
    for data in (partition, absent):
        if version == 2:
            data.new_isr = [BROKER_ID]
        else:
            member = BrokerState(broker_id=BROKER_ID, broker_epoch=broker.cluster.epoch)
            data.new_isr_with_epochs = [member]
    answer = broker.ask(
        AlterPartitionRequest(
            broker_id=BROKER_ID,
            broker_epoch=broker.cluster.epoch,
            topics=[TopicData(topic_id=topic.id, partitions=[absent, partition])],
        ),
        version,
    )
    assert answer.error_code == ErrorCode.NONE
    first, second = answer.topics[0].partitions
    assert (first.partition_index, first.error_code, first.isr) == (0, 0, [BROKER_ID])
    assert (second.partition_index, second.error_code) == (
        1,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def test_only_a_broker_that_does_not_run_can_be_struck_off(broker: BrokerContext) -> None:
    running = broker.ask(UnregisterBrokerRequest(broker_id=BROKER_ID))
    assert (running.error_code, running.error_message) == (
        ErrorCode.INVALID_REQUEST,
        f"broker {BROKER_ID} is running: stop it, then unregister it",
    )
    unknown = broker.ask(UnregisterBrokerRequest(broker_id=99))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize(
    ("request_", "operation"),
    [
        (BrokerHeartbeatRequest(), Operation.CLUSTER_ACTION),
        (AllocateProducerIdsRequest(), Operation.CLUSTER_ACTION),
        (AlterPartitionRequest(), Operation.CLUSTER_ACTION),
        (UnregisterBrokerRequest(), Operation.ALTER),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Message) else "",
)
def test_rights_on_the_cluster_are_needed(
    broker: BrokerContext, request_: Message, operation: Operation
) -> None:
    broker.forbid(operation, ResourceType.CLUSTER)
    assert broker.ask(request_).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_fetch_that_knows_a_newer_epoch_makes_the_broker_look_and_stops_nothing(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B6: a bogus request must never stop a partition."""
    broker.create_topic("orders")
    broker.append("orders")
    looks: list[bool] = []
    monkeypatch.setattr(broker.cluster, "look_again", lambda: looks.append(True))
    topic_id = broker.cluster.image.topics["orders"].id

    def fetch(epoch: int) -> int:
        wanted = FetchPartition(partition=0, current_leader_epoch=epoch, fetch_offset=1)
        topic = FetchTopic(topic_id=topic_id, partitions=[wanted])
        answer = broker.ask(FetchRequest(topics=[topic], max_wait_ms=0, min_bytes=0))
        return int(answer.responses[0].partitions[0].error_code)

    assert fetch(5) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert looks == [True]
    assert fetch(0) == ErrorCode.NONE
