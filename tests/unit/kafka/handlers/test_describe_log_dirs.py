from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import ErrorCode, StorageFault
from penstock.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from tests.support.context import BROKER_ID, BrokerContext, broker_context


def sizes(result: DescribeLogDirsResult) -> dict[tuple[str, int], int]:
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_each_partition_is_listed_with_its_size(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders", 2)
    broker.append("orders", 1, count=100)

    answer = broker.ask(DescribeLogDirsRequest(topics=None), version)

    (directory,) = answer.results
    assert (answer.error_code, directory.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert directory.log_dir == broker.replicas.directory.path
    written = broker.partition("orders", 1).log.size_bytes
    assert sizes(directory) == {("orders", 0): 0, ("orders", 1): written}
    assert (directory.total_bytes > 0) is (version >= 4)
    assert (directory.total_bytes >= directory.usable_bytes) is True


def test_only_what_was_asked_for_and_exists_is_listed(broker: BrokerContext) -> None:
    broker.create_topic("orders", 3)
    broker.create_topic("other")
    topics = [
        DescribableLogDirTopic(topic="orders", partitions=[2, 2, 3]),
        DescribableLogDirTopic(topic="absent", partitions=[0]),
    ]
    (directory,) = broker.ask(DescribeLogDirsRequest(topics=topics)).results
    assert set(sizes(directory)) == {("orders", 2)}


def test_logs_that_nobody_uses_are_measured_and_stay_closed(tmp_path: Path) -> None:
    names = ("orders", "clean")  # a topic may be called like a file of the broker's own
    with broker_context(tmp_path) as first:
        for name in names:
            first.create_topic(name)
            first.append(name, count=10)
        written = first.partition("orders").log.size_bytes
    with broker_context(tmp_path) as second:
        (directory,) = second.ask(DescribeLogDirsRequest(topics=None)).results
        assert sizes(directory) == {(name, 0): written for name in names}
        assert not any(second.partition(name).is_open for name in names)


def test_a_directory_that_is_offline_is_reported_as_such(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("orders")
        broker.call(lambda: broker.replicas.disk_failed(StorageFault("it smokes")))
        (directory,) = broker.ask(DescribeLogDirsRequest(topics=None)).results
    assert (directory.error_code, directory.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


def test_a_cordoned_broker_says_so_from_version_5(broker: BrokerContext) -> None:
    request = DescribeLogDirsRequest(topics=None)
    assert [broker.ask(request).results[0].is_cordoned] == [False]
    cordon = [ConfigOp("cordoned.log.dirs", Op.SET, "*")]
    broker.run(broker.cluster.alter_configs(Resource.BROKER, str(BROKER_ID), cordon))
    told = [broker.ask(request, version).results[0].is_cordoned for version in (4, 5)]
    assert told == [False, True]


def test_sizes_need_the_right_to_describe_the_cluster(broker: BrokerContext) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    answer = broker.ask(DescribeLogDirsRequest(topics=None))
    assert (answer.error_code, answer.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    assert broker.ask(DescribeLogDirsRequest(topics=None), 1).results == []
