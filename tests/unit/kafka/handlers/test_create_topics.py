from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.model.ids import NO_TOPIC_ID
from penstock.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
)
from tests.support.context import BROKER_ID, BrokerContext, broker_context

TOPIC_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 4, 5


def create(
    broker: BrokerContext,
    name: str = "orders",
    partitions: int = -1,
    replicas: int = -1,
    *,
    assignments: dict[int, list[int]] | None = None,
    configs: dict[str, str | None] | None = None,
    validate_only: bool = False,
    version: int = 7,
) -> CreatableTopicResult:
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ],
        configs=[
            CreatableTopicConfig(name=name, value=value) for name, value in (configs or {}).items()
        ],
    )
    request = CreateTopicsRequest(topics=[topic], validate_only=validate_only)
    (result,) = broker.ask(request, version).topics
    assert isinstance(result, CreatableTopicResult)
    return result


def configs_of(result: CreatableTopicResult) -> dict[str, CreatableTopicConfigs]:
    assert result.configs is not None
    return {config.name: config for config in result.configs}


def test_a_topic_is_created_and_can_be_used_at_once(broker: BrokerContext) -> None:
    result = create(broker, "orders", 3, 1)

    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert result.topic_id == broker.cluster.image.topics["orders"].id
    assert (result.num_partitions, result.replication_factor) == (3, 1)
    assert len(broker.replicas.topic("orders").partitions) == 3


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_can_create_a_topic(broker: BrokerContext, version: int) -> None:
    assert create(broker, "orders", 1, 1, version=version).error_code == ErrorCode.NONE


def test_counts_of_minus_one_mean_the_brokers_defaults(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"num.partitions": "4"}) as broker:
        result = create(broker, "orders", -1, -1)
    assert (result.num_partitions, result.replication_factor) == (4, 1)


def test_the_answer_shows_the_settings_in_force_and_where_they_come_from(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"log.segment.bytes": "1000000"}) as broker:
        result = create(broker, configs={"retention.ms": "7d"})

    configs = configs_of(result)
    retention, segment = configs["retention.ms"], configs["segment.bytes"]
    assert (retention.value, retention.config_source) == ("604800000", TOPIC_SOURCE)
    assert (segment.value, segment.config_source) == ("1000000", STATIC_SOURCE)
    assert configs["cleanup.policy"].config_source == DEFAULT_SOURCE


def test_who_may_not_see_settings_is_not_told_them(broker: BrokerContext) -> None:
    broker.forbid(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC)

    result = create(broker, "orders", 2, 1)

    assert result.error_code == ErrorCode.NONE
    assert result.topic_config_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert (result.configs, result.num_partitions, result.replication_factor) == (None, -1, -1)


def test_validate_only_answers_as_if_and_creates_nothing(broker: BrokerContext) -> None:
    result = create(broker, "orders", 3, 1, validate_only=True)

    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 3)
    assert result.topic_id == NO_TOPIC_ID
    assert "orders" not in broker.cluster.image.topics


def test_validate_only_finds_what_creation_would_find(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    result = create(broker, "orders", validate_only=True)
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_partitions_can_be_placed_by_hand(broker: BrokerContext) -> None:
    result = create(broker, assignments={1: [BROKER_ID], 0: [BROKER_ID]})
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 2)


@pytest.mark.parametrize(
    ("partitions", "assignments", "code"),
    [
        (-1, {0: [BROKER_ID, BROKER_ID]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, {0: [99]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, {0: []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (-1, {1: [BROKER_ID]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (2, {0: [BROKER_ID]}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_assignment_is_refused_with_a_reason(
    broker: BrokerContext, partitions: int, assignments: dict[int, list[int]], code: ErrorCode
) -> None:
    result = create(broker, partitions=partitions, assignments=assignments)
    assert result.error_code == code
    assert result.error_message


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "code"),
    [
        ("a b", 1, 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("", 1, 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, 1, 1, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("orders", 0, 1, ErrorCode.INVALID_PARTITIONS),
        ("orders", -2, 1, ErrorCode.INVALID_PARTITIONS),
        ("orders", 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("orders", 1, 2, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("existing", 1, 1, ErrorCode.TOPIC_ALREADY_EXISTS),
        ("exist_ing", 1, 1, ErrorCode.NONE),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_its_code_and_a_reason(
    broker: BrokerContext, name: str, partitions: int, replicas: int, code: ErrorCode
) -> None:
    broker.create_topic("existing")
    result = create(broker, name, partitions, replicas)
    assert result.error_code == code
    assert bool(result.error_message) is bool(code)


@pytest.mark.parametrize(
    ("config", "value", "said"),
    [
        ("retention.ms", "soon", "retention.ms"),
        ("retention.msec", "1", "retention.ms"),
        ("remote.storage.enable", "true", "remote.storage.enable"),
        ("cleanup.policy", None, "cleanup.policy"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    broker: BrokerContext, config: str, value: str | None, said: str
) -> None:
    result = create(broker, configs={config: value})
    assert result.error_code == ErrorCode.INVALID_CONFIG
    assert said in (result.error_message or "")


def test_a_topic_named_twice_is_refused_once_and_the_others_are_created(
    broker: BrokerContext,
) -> None:
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("twice", "once", "twice")
    ]
    results = broker.ask(CreateTopicsRequest(topics=topics)).topics

    assert [(result.name, result.error_code) for result in results] == [
        ("once", ErrorCode.NONE),
        ("twice", ErrorCode.INVALID_REQUEST),
    ]
    assert "twice" not in broker.cluster.image.topics


def test_the_right_to_create_on_the_cluster_or_on_the_topic_is_enough(
    broker: BrokerContext,
) -> None:
    broker.allow_only((Operation.CREATE, ResourceType.TOPIC, "mine"))
    assert create(broker, "mine").error_code == ErrorCode.NONE
    assert create(broker, "yours").error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    broker.allow_only((Operation.CREATE, ResourceType.CLUSTER, "kafka-cluster"))
    assert create(broker, "yours").error_code == ErrorCode.NONE


def test_a_client_that_will_not_wait_is_answered_when_the_topic_is_there(
    broker: BrokerContext,
) -> None:
    topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
    (result,) = broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=0)).topics
    assert result.error_code == ErrorCode.NONE
    assert "orders" in broker.cluster.image.topics
