"""AlterReplicaLogDirs: a replica is in the one data directory already, or it cannot be moved."""

from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode, StorageFault
from penstock.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tests.support.context import BrokerContext, broker_context

Codes = dict[tuple[str, int], int]


def move(broker: BrokerContext, *moves: tuple[str, str, list[int]], version: int = 2) -> Codes:
    request = AlterReplicaLogDirsRequest(
        dirs=[
            AlterReplicaLogDir(
                path=path, topics=[AlterReplicaLogDirTopic(name=topic, partitions=partitions)]
            )
            for path, topic, partitions in moves
        ]
    )
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in broker.ask(request, version).results
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_stays_in_the_directory_where_it_is(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders", 2)
    here = broker.replicas.directory.path
    assert move(broker, (here, "orders", [0, 1]), version=version) == {
        ("orders", 0): ErrorCode.NONE,
        ("orders", 1): ErrorCode.NONE,
    }


def test_any_other_directory_is_not_found_whatever_the_partition_is(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert move(broker, ("/elsewhere", "orders", [0]), ("/elsewhere", "absent", [3])) == {
        ("orders", 0): ErrorCode.LOG_DIR_NOT_FOUND,
        ("absent", 3): ErrorCode.LOG_DIR_NOT_FOUND,
    }


def test_partitions_that_are_not_here_have_the_codes_of_kafka(
    broker: BrokerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders", 2)
    topic = broker.replicas.topic("orders")
    monkeypatch.setattr(topic, "partitions", [topic.partitions[0], None])
    here = broker.replicas.directory.path
    assert move(broker, (here, "orders", [-1, 1, 2]), (here, "absent", [0])) == {
        ("orders", -1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 1): ErrorCode.REPLICA_NOT_AVAILABLE,
        ("orders", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_of_two_directories_for_one_partition_the_last_counts(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    here = broker.replicas.directory.path
    first, last = ("/elsewhere", "orders", [0]), (here, "orders", [0])
    assert move(broker, first, last) == {("orders", 0): ErrorCode.NONE}
    assert move(broker, last, first) == {("orders", 0): ErrorCode.LOG_DIR_NOT_FOUND}


def test_a_directory_that_is_offline_is_a_storage_error(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("orders")
        broker.call(lambda: broker.replicas.disk_failed(StorageFault("it smokes")))
        codes = move(broker, (broker.replicas.directory.path, "orders", [0]))
    assert codes == {("orders", 0): ErrorCode.KAFKA_STORAGE_ERROR}


def test_moving_needs_the_right_to_alter_the_cluster(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.ALTER, ResourceType.CLUSTER)
    codes = move(broker, (broker.replicas.directory.path, "orders", [0]))
    assert codes == {("orders", 0): ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
