"""What `cluster leaders` and `topic` say of a cluster that is not well; a single broker cannot show it."""

import json
from collections.abc import Iterator

import pytest

from penstock.cli.main import main
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from penstock.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from penstock.wire.schema import Message
from tests.support.fake_broker import FakeBroker, in_a_thread


def metadata(broker: FakeBroker) -> MetadataResponse:
    """Partition 0 is well, 1 lacks a replica, 2 has no leader, and 3 one that cannot use its log."""
    partitions = [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=leader,
            replica_nodes=[1, 2],
            isr_nodes=isr,
            offline_replicas=offline,
        )
        for index, (leader, isr, offline) in enumerate(
            [(1, [1, 2], []), (1, [1], []), (-1, [], []), (1, [1, 2], [1])]
        )
    ]
    address = broker.address
    return MetadataResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=1, host=address.host, port=address.port)],
        topics=[MetadataResponseTopic(name="orders", partitions=partitions)],
    )


def offsets(request: Message) -> ListOffsetsResponse:
    assert isinstance(request, ListOffsetsRequest)
    [topic] = request.topics
    rows = [
        ListOffsetsPartitionResponse(
            partition_index=row.partition_index, offset=5 if row.timestamp == -2 else 42
        )
        for row in topic.partitions
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="orders", partitions=rows)])


def log_dirs() -> DescribeLogDirsResponse:
    rows = [
        DescribeLogDirsPartition(partition_index=index, partition_size=2048) for index in (0, 1)
    ]
    topic = DescribeLogDirsTopic(name="orders", partitions=rows)
    return DescribeLogDirsResponse(results=[DescribeLogDirsResult(log_dir="d", topics=[topic])])


def configs() -> DescribeConfigsResponse:
    rows = [
        DescribeConfigsResourceResult(name="retention.ms", value="1000", config_source=1),
        DescribeConfigsResourceResult(name="segment.ms", value="2000", config_source=5),
    ]
    result = DescribeConfigsResult(resource_name="orders", resource_type=2, configs=rows)
    return DescribeConfigsResponse(results=[result])


@pytest.fixture
def bootstrap() -> Iterator[str]:
    broker = FakeBroker()
    broker.on(MetadataRequest, lambda _: metadata(broker))
    broker.on(ListOffsetsRequest, offsets)
    broker.on(DescribeLogDirsRequest, lambda _: log_dirs())
    broker.on(DescribeConfigsRequest, lambda _: configs())
    with in_a_thread(broker) as address:
        yield address


def test_a_topic_with_partitions_that_cannot_be_asked_can_still_be_described(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "describe", "orders", "--json", "--bootstrap", bootstrap]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["leader"] for row in facts["partitions"]] == [1, 1, None, None]
    assert [row["end_offset"] for row in facts["partitions"]] == [42, 42, None, None]
    assert facts["size_bytes"] == 4096
    assert facts["settings"] == {"retention.ms": "1000"}


def test_describe_as_text_shows_one_row_a_partition(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "describe", "orders", "--all", "--bootstrap", bootstrap]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["segment.ms", "2000"] for line in lines)
    assert lines[-4].split() == ["0", "1", "-1", "1,2", "1,2", "5", "42", "2.0", "KiB"]
    assert lines[-2].split() == ["2", "-", "-1", "1,2", "-", "-", "-"]


def test_leaders_are_counted_beside_who_should_lead(
    bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "leaders", "--json", "--bootstrap", bootstrap]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["leaders"], row["preferred"]) == (3, 4)
    assert main(["cluster", "leaders", "--bootstrap", bootstrap]) == 0
    assert "BROKER" in capsys.readouterr().out
