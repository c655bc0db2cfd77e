import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tests.support.context import BrokerContext


def trim(
    broker: BrokerContext, topic: str, offset: int, index: int = 0, version: int = 2
) -> DeleteRecordsPartitionResult:
    partition = DeleteRecordsPartition(partition_index=index, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])])
    (answered,) = broker.ask(request, version).topics
    (result,) = answered.partitions
    assert isinstance(result, DeleteRecordsPartitionResult)
    return result


@pytest.mark.parametrize("version", range(3))
def test_the_log_starts_at_the_offset_asked_for(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=10)

    result = trim(broker, "orders", 4, version=version)

    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 4)
    assert broker.partition("orders").log.start_offset == 4


def test_minus_one_means_everything_that_is_committed(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=10)
    assert trim(broker, "orders", -1).low_watermark == 10


def test_an_offset_below_the_start_changes_nothing(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=10)
    trim(broker, "orders", 6)
    result = trim(broker, "orders", 2)
    assert (result.error_code, result.low_watermark) == (ErrorCode.NONE, 6)


@pytest.mark.parametrize("offset", [11, -2])
def test_an_offset_outside_the_log_is_refused(broker: BrokerContext, offset: int) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=10)
    result = trim(broker, "orders", offset)
    assert (result.error_code, result.low_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


def test_unknown_topics_and_partitions_are_refused(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    codes = {trim(broker, "absent", 0).error_code, trim(broker, "orders", 0, 1).error_code}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_topic_that_is_only_compacted_keeps_its_records(broker: BrokerContext) -> None:
    broker.create_topic("table", config={"cleanup.policy": "compact"})
    broker.create_topic("both", config={"cleanup.policy": "compact,delete"})
    assert trim(broker, "table", -1).error_code == ErrorCode.POLICY_VIOLATION
    assert trim(broker, "both", -1).error_code == ErrorCode.NONE


def test_deleting_records_needs_the_right_to_delete(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.DELETE, ResourceType.TOPIC, "orders")
    assert trim(broker, "orders", 0).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
