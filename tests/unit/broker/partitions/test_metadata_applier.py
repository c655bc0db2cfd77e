from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.waiters import watch
from penstock.metadata.image import Delta, TopicChange
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import BrokerError
from tests.support.context import BROKER_ID, BrokerContext, broker_context
from tests.unit.broker.partitions.test_partition import Listener


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerContext]:
    with broker_context(tmp_path) as started:
        yield started


def set_config(broker: BrokerContext, name: str, key: str, value: str, kind: Resource) -> None:
    ops = [ConfigOp(key, Op.SET, value)]
    broker.run(broker.cluster.alter_configs(kind, name, ops))


def test_a_topic_that_the_cluster_creates_is_hosted_at_once(broker: BrokerContext) -> None:
    broker.create_topic("orders", partitions=3, config={"segment.bytes": "4096"})
    topic = broker.replicas.topic("orders")
    assert topic.id == broker.cluster.image.topics["orders"].id
    assert topic.config.segment_bytes == 4096
    assert [p.index for p in topic.partitions if p is not None] == [0, 1, 2]


def test_more_partitions_are_hosted_and_the_old_ones_stay_as_they_are(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    first = broker.partition("orders")
    broker.run(broker.cluster.create_partitions("orders", 3))
    topic = broker.replicas.topic("orders")
    assert len(topic.partitions) == 3
    assert topic.partitions[0] is first


def test_a_topic_deleted_and_created_anew_is_another_one(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.append("orders", count=3)
    old = broker.partition("orders")
    broker.run(broker.cluster.delete_topics(["orders"]))
    assert "orders" not in broker.replicas.topics
    broker.create_topic("orders")
    new = broker.partition("orders")
    assert new is not old
    assert isinstance(old.failure, BrokerError)
    assert new.log.next_offset == 0


def test_settings_of_a_topic_and_defaults_of_the_broker_take_effect(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    broker.create_topic("own", config={"segment.bytes": "9000"})
    set_config(broker, "orders", "flush.messages", "1", Resource.TOPIC)
    assert broker.replicas.topic("orders").sync_each_append
    set_config(broker, str(BROKER_ID), "log.segment.bytes", "5000", Resource.BROKER)
    assert broker.replicas.topic("orders").config.segment_bytes == 5000
    assert broker.replicas.topic("own").config.segment_bytes == 9000


def test_a_higher_epoch_is_taken_and_wakes_who_waits_a_lower_one_is_not(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    partition, listener = broker.partition("orders"), Listener()
    watch(partition, listener)
    before = partition.leader_epoch
    change_epoch(broker, partition, before + 2)
    assert (partition.leader_epoch, listener.heard) == (before + 2, [("changed", 0)])
    change_epoch(broker, partition, before + 1)
    assert (partition.leader_epoch, len(listener.heard)) == (before + 2, 1)


def change_epoch(broker: BrokerContext, partition: Partition, epoch: int) -> None:
    """As another broker's decision would arrive."""
    old = broker.cluster.image.topics[partition.topic.name]
    new = old._replace(
        partitions=tuple(state._replace(leader_epoch=epoch) for state in old.partitions)
    )
    delta = Delta(broker.cluster.image.revision, changed=[TopicChange(old, new)])
    broker.applier._apply(delta)


def test_a_start_hosts_what_is_there_and_sets_aside_what_nobody_knows(tmp_path: Path) -> None:
    with broker_context(tmp_path) as broker:
        broker.create_topic("kept", partitions=2)
        broker.create_topic("deleted")
        broker.append("kept")
        broker.append("deleted")
        broker.run(broker.cluster.delete_topics(["deleted"]))
    stray = tmp_path / "data" / "stranger" / "partition-0"
    stray.mkdir(parents=True)
    (stray / f"{0:020d}.log").write_bytes(b"")

    with broker_context(tmp_path) as broker:
        assert list(broker.replicas.topics) == ["kept"]
        assert broker.partition("kept").log.next_offset == 1
        assert not stray.exists()


def test_deleted_topics_are_confirmed_once_their_files_are_out_of_use(
    broker: BrokerContext,
) -> None:
    broker.create_topic("orders")
    broker.append("orders")
    topic_id = broker.cluster.image.topics["orders"].id
    broker.run(broker.cluster.delete_topics(["orders"]))
    assert topic_id in broker.cluster.image.tombstones
    broker.run(broker.applier.confirm_deleted())
    assert topic_id not in broker.cluster.image.tombstones


def test_operators_are_told_of_topics_that_come_change_and_go(
    broker: BrokerContext, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "penstock.broker.partitions.metadata_applier"):
        broker.create_topic("orders", 2, {"retention.ms": "1000"})
        broker.run(broker.cluster.create_partitions("orders", 3))
        set_config(broker, "orders", "segment.ms", "5", Resource.TOPIC)
        broker.run(broker.cluster.delete_topics(["orders"]))
    assert caplog.messages == [
        "topic-created topic=orders partitions=2 settings=retention.ms=1000",
        "topic-altered topic=orders partitions=3 settings=retention.ms=1000",
        "topic-altered topic=orders partitions=3 settings=retention.ms=1000,segment.ms=5",
        "topic-deleted topic=orders",
    ]
