import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
)
from tests.support.context import BROKER_ID, BrokerContext

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
Op = tuple[str, int, str | None]


def resource(kind: int, name: str, *ops: Op) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in ops
        ],
    )


def alter(
    broker: BrokerContext,
    *resources: AlterConfigsResource,
    validate_only: bool = False,
    version: int = 1,
) -> list[AlterConfigsResourceResponse]:
    request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses: list[AlterConfigsResourceResponse] = broker.ask(request, version).responses
    return responses


@pytest.mark.parametrize("version", range(2))
def test_what_is_not_named_stays(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders", config={"retention.ms": "1000", "segment.bytes": "2000"})

    (result,) = alter(
        broker,
        resource(TOPIC, "orders", ("flush.ms", SET, "5s"), ("segment.bytes", DELETE, None)),
        version=version,
    )

    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    config = broker.cluster.image.topics["orders"].config
    assert config == {"retention.ms": "1000", "flush.ms": "5000"}
    assert broker.replicas.topic("orders").config.flush_ms == 5000


def test_a_list_can_be_extended_and_cut(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    alter(broker, resource(TOPIC, "orders", ("cleanup.policy", APPEND, "compact")))
    assert broker.replicas.topic("orders").config.cleanup_policy == {"compact", "delete"}
    alter(broker, resource(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete")))
    assert broker.replicas.topic("orders").config.cleanup_policy == {"compact"}
    (result,) = alter(broker, resource(TOPIC, "orders", ("cleanup.policy", SUBTRACT, "compact")))
    assert result.error_code == ErrorCode.NONE
    assert broker.replicas.topic("orders").config.cleanup_policy == frozenset()


def test_settings_of_a_group_are_set_and_refused(
    broker: BrokerContext, caplog: pytest.LogCaptureFixture
) -> None:
    session, isolation = "consumer.session.timeout.ms", "share.isolation.level"
    good, bad, nobody = alter(
        broker,
        resource(GROUP, "g", (session, SET, "50000"), (isolation, SET, "read_committed")),
        resource(GROUP, "h", (session, SET, "1")),
        resource(GROUP, "", (session, SET, "50000")),
    )
    assert good.error_code == ErrorCode.NONE
    assert (bad.error_code, nobody.error_code) == (
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    )
    assert "group.consumer.min.session.timeout.ms" in (bad.error_message or "")
    assert broker.cluster.image.group_configs == {
        "g": {session: "50000", isolation: "read_committed"}
    }
    warned = [it for it in caplog.messages if it.startswith("setting-without-effect")]
    assert warned == [
        f"setting-without-effect group=g name={isolation} reason=there are no share groups"
    ]
    broker.forbid(Operation.ALTER_CONFIGS, ResourceType.GROUP, "g")
    (forbidden,) = alter(broker, resource(GROUP, "g", (session, DELETE, None)))
    assert forbidden.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED


def test_each_resource_is_answered_by_itself(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    good, bad, itself = alter(
        broker,
        resource(TOPIC, "orders", ("retention.ms", SET, "1000")),
        resource(TOPIC, "absent", ("retention.ms", SET, "1000")),
        resource(BROKER, str(BROKER_ID), ("log.flush.interval.ms", SET, "10")),
    )
    assert (good.error_code, itself.error_code) == (ErrorCode.NONE, ErrorCode.NONE)
    assert (bad.error_code, bad.resource_name) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "absent")
    assert broker.replicas.topic("orders").config.flush_ms == 10


@pytest.mark.parametrize(
    ("ops", "code"),
    [
        ([("retention.ms", SET, "soon")], ErrorCode.INVALID_CONFIG),
        ([("no.such", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("no.such", DELETE, None)], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", APPEND, "1")], ErrorCode.INVALID_CONFIG),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_one_wrong_change_refuses_all_changes_of_the_resource(
    broker: BrokerContext, ops: list[Op], code: ErrorCode
) -> None:
    broker.create_topic("orders")
    (result,) = alter(broker, resource(TOPIC, "orders", ("segment.bytes", SET, "1000"), *ops))
    assert result.error_code == code
    assert result.error_message
    assert broker.cluster.image.topics["orders"].config == {}


def test_validate_only_changes_nothing(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    asked = resource(TOPIC, "orders", ("retention.ms", SET, "1"))
    (result,) = alter(broker, asked, validate_only=True)
    assert result.error_code == ErrorCode.NONE
    assert broker.cluster.image.topics["orders"].config == {}


def test_a_resource_named_twice_is_not_altered(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    asked = resource(TOPIC, "orders", ("retention.ms", SET, "1"))
    results = alter(broker, asked, asked)
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_altering_needs_the_right_to_alter_settings(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "orders")
    (result,) = alter(broker, resource(TOPIC, "orders", ("retention.ms", SET, "1")))
    assert result.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
