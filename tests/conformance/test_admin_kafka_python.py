"""What operators do with kafka-python's KafkaAdminClient, and what it raises when it cannot be done."""

import uuid
from collections.abc import Iterator
from typing import Any

import kafka
import pytest
from kafka import TopicPartition, errors
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from penstock.testing import Broker
from tests.support.clients import CONFLUENT, KAFKA_PYTHON, PATIENCE_S, Sent

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(broker: Broker) -> str:
    return broker.create_topic(partitions=2)


def fresh() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


def described(admin: KafkaAdminClient, name: str) -> dict[str, Any]:
    (found,) = admin.describe_topics([name])
    assert isinstance(found, dict)
    return found


def settings(admin: KafkaAdminClient, name: str, which: str = "all") -> dict[str, dict[str, Any]]:
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    found = admin.describe_configs([resource], include_synonyms=True, config_filter=which)
    topic: dict[str, dict[str, Any]] = found["topic"][name]
    return topic


# topics and partitions


def test_a_topic_is_created_described_and_deleted_by_name(admin: KafkaAdminClient) -> None:
    name = fresh()
    options = {"num_partitions": 3, "replication_factor": 1, "configs": {"retention.ms": "60000"}}
    created = admin.create_topics({name: options}, wait_for_metadata=True)
    (result,) = created["topics"]
    assert (result["name"], result["num_partitions"], result["replication_factor"]) == (name, 3, 1)
    assert result["configs"]["retention.ms"]["value"] == "60000"
    assert result["configs"]["retention.ms"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"

    assert len(described(admin, name)["partitions"]) == 3
    assert name in admin.list_topics()
    admin.delete_topics([name])
    assert name not in admin.list_topics()


def test_a_topic_is_described_and_deleted_by_id(admin: KafkaAdminClient) -> None:
    name = fresh()
    (created,) = admin.create_topics([name])["topics"]
    topic_id = created["topic_id"]
    topic_id = topic_id if isinstance(topic_id, uuid.UUID) else uuid.UUID(topic_id)
    (found,) = admin.describe_topics([topic_id])
    assert found["name"] == name
    admin.delete_topics([topic_id])
    assert name not in admin.list_topics()


def test_a_topic_grows_and_never_shrinks(admin: KafkaAdminClient, topic: str) -> None:
    admin.create_partitions({topic: {"count": 4, "assignments": [[1], [1]]}})
    assert len(described(admin, topic)["partitions"]) == 4
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_partitions({topic: kafka.admin.NewPartitions(2)})


def test_topics_are_described_in_pages(admin: KafkaAdminClient) -> None:
    name = fresh()
    admin.create_topics({name: {"num_partitions": 5, "replication_factor": 1}})
    first = admin.describe_topic_partitions([name], response_partition_limit=3)
    assert len(first["topics"][0]["partitions"]) == 3
    assert first["next_cursor"]["partition_index"] == 3


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("a b", {}, errors.InvalidTopicError),
        ("ok", {"num_partitions": 0}, errors.InvalidPartitionsError),
        ("ok", {"replication_factor": 9}, errors.InvalidReplicationFactorError),
        ("ok", {"assignments": {0: [99]}}, errors.InvalidReplicationAssignmentError),
        ("ok", {"configs": {"retention.ms": "soon"}}, errors.InvalidConfigurationError),
    ],
)
def test_a_topic_that_cannot_be_created_is_refused_with_its_code(
    admin: KafkaAdminClient, name: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        admin.create_topics({name: options})


def test_a_topic_that_exists_is_not_created_again(admin: KafkaAdminClient, topic: str) -> None:
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([topic])


def test_a_topic_that_does_not_exist_is_not_deleted(admin: KafkaAdminClient) -> None:
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([fresh()])


# records


def test_records_are_deleted_up_to_an_offset(
    admin: KafkaAdminClient, broker: Broker, topic: str
) -> None:
    CONFLUENT.produce(broker.bootstrap, topic, [Sent(None, b"x")] * 10, "none")
    partition = TopicPartition(topic, 0)
    assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
    assert admin.delete_records({partition: -1})[partition]["low_watermark"] == 10
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 11})


def test_records_of_a_compacted_topic_are_not_deleted(
    admin: KafkaAdminClient, broker: Broker
) -> None:
    name = broker.create_topic(settings={"cleanup.policy": "compact"})
    with pytest.raises(errors.PolicyViolationError):
        admin.delete_records({TopicPartition(name, 0): -1})


# settings


@pytest.mark.parametrize("incremental", [True, False])
def test_settings_are_changed_and_reset(
    admin: KafkaAdminClient, topic: str, incremental: bool
) -> None:
    def resource(configs: dict[str, str] | None) -> ConfigResource:
        return ConfigResource(ConfigResourceType.TOPIC, topic, configs)

    changed = admin.alter_configs([resource({"retention.ms": "1000"})], incremental=incremental)
    assert changed == {"topic": {topic: "OK"}}
    assert set(settings(admin, topic, "modified")) == {"retention.ms"}

    admin.alter_configs([resource({"segment.bytes": "100000"})], incremental=incremental)
    assert set(settings(admin, topic, "modified")) == {"retention.ms", "segment.bytes"}

    admin.reset_configs([resource({"retention.ms": ""})], incremental=incremental)
    assert set(settings(admin, topic, "modified")) == {"segment.bytes"}


def test_a_setting_says_its_type_its_source_and_its_synonyms(
    admin: KafkaAdminClient, topic: str
) -> None:
    found = settings(admin, topic)["retention.ms"]
    assert (found["value"], found["config_source"]) == ("604800000", "DEFAULT_CONFIG")
    assert found["config_type"] == "LONG"
    assert [synonym["name"] for synonym in found["synonyms"]] == ["log.retention.hours"]


def test_a_wrong_setting_is_refused_with_a_reason(admin: KafkaAdminClient, topic: str) -> None:
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "soon"})
    refused = admin.alter_configs([resource])["topic"][topic]
    assert "retention.ms" in refused


def test_topics_and_brokers_are_listed_as_having_settings(
    admin: KafkaAdminClient, topic: str
) -> None:
    listed = admin.list_config_resources()
    assert topic in listed["topic"]
    assert listed["broker"]


# the cluster


def test_the_cluster_is_described(admin: KafkaAdminClient, broker: Broker) -> None:
    found = admin.describe_cluster()
    (node,) = found["brokers"]
    assert f"{node['host']}:{node['port']}" == broker.bootstrap
    assert found["controller_id"] == node["broker_id"]


def test_sizes_and_room_are_shown(admin: KafkaAdminClient, broker: Broker, topic: str) -> None:
    KAFKA_PYTHON.produce(broker.bootstrap, topic, [Sent(None, b"x" * 1000)] * 20, "none")
    (answer,) = admin.describe_log_dirs({topic: [0, 1]})
    (directory,) = answer["log_dirs"]
    assert directory["log_dir"] == str(broker.data_dir)
    assert directory["total_bytes"] >= directory["usable_bytes"] > 0
    (found,) = directory["topics"]
    sizes = {part["partition_index"]: part["partition_size"] for part in found["partitions"]}
    assert sizes[0] > 20_000
    assert sizes[1] == 0


def test_leaders_that_lead_need_no_election(admin: KafkaAdminClient, topic: str) -> None:
    answer = admin.elect_leaders(0, {topic: [0]}, raise_errors=False)
    (result,) = answer.replica_election_results[0].partition_result
    assert result.error_code == errors.ElectionNotNeededError.errno


def test_replicas_stay_where_they_are(admin: KafkaAdminClient, topic: str) -> None:
    assert admin.list_partition_reassignments() == {}
    partition = TopicPartition(topic, 0)

    def outcome(replicas: list[int] | None) -> Any:
        return admin.alter_partition_reassignments({partition: replicas})[partition]

    assert outcome([1]) is None
    assert outcome([99]) is errors.InvalidReplicationAssignmentError
    assert outcome(None) is errors.NoReassignmentInProgressError


def test_producers_are_described(admin: KafkaAdminClient, broker: Broker, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    producer.send(topic, b"x", partition=0).get(PATIENCE_S)
    producer.close()
    partition = TopicPartition(topic, 0)
    found = admin.describe_producers([partition])[partition]
    assert len(found.active_producers) == 1


def test_users_are_not_there_yet(admin: KafkaAdminClient) -> None:
    assert admin.describe_user_scram_credentials() == {}


def test_the_metadata_quorum_is_the_controller_and_the_brokers(admin: KafkaAdminClient) -> None:
    controller = admin.describe_cluster()["controller_id"]
    (topic,) = admin.describe_metadata_quorum()["topics"]
    (partition,) = topic["partitions"]
    assert (topic["topic_name"], partition["partition_index"]) == ("__cluster_metadata", 0)
    assert (partition["error"], partition["leader_id"]) == (None, controller)
    assert partition["leader_epoch"] > 0
    (voter,) = partition["current_voters"]
    assert (voter["replica_id"], partition["observers"]) == (controller, [])
    assert voter["log_end_offset"] == partition["high_watermark"] > 0


def test_a_replica_is_in_its_directory_and_in_no_other(
    admin: KafkaAdminClient, broker: Broker, topic: str
) -> None:
    replica = kafka.TopicPartitionReplica(topic, 0, 1)
    elsewhere = kafka.TopicPartitionReplica(topic, 1, 1)
    absent = kafka.TopicPartitionReplica(topic, 9, 1)
    codes = admin.alter_replica_log_dirs(
        {replica: str(broker.data_dir), elsewhere: "/elsewhere", absent: str(broker.data_dir)}
    )
    assert codes == {
        replica: errors.NoError,
        elsewhere: errors.LogDirNotFoundError,
        absent: errors.UnknownTopicOrPartitionError,
    }
