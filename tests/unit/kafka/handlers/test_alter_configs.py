import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.model.errors import ErrorCode
from penstock.wire.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
)
from tests.support.context import BROKER_ID, BrokerContext

TOPIC, BROKER, LOGGER = 2, 4, 8


def resource(kind: int, name: str, configs: dict[str, str | None]) -> AlterConfigsResource:
    return AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[AlterableConfig(name=key, value=value) for key, value in configs.items()],
    )


def alter(
    broker: BrokerContext,
    *resources: AlterConfigsResource,
    validate_only: bool = False,
    version: int = 2,
) -> list[AlterConfigsResourceResponse]:
    request = AlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    responses: list[AlterConfigsResourceResponse] = broker.ask(request, version).responses
    return responses


@pytest.mark.parametrize("version", range(3))
def test_what_is_left_out_goes_back_to_its_default(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders", config={"retention.ms": "1000", "segment.bytes": "2000"})

    (result,) = alter(broker, resource(TOPIC, "orders", {"segment.bytes": "3000"}), version=version)

    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    assert broker.cluster.image.topics["orders"].config == {"segment.bytes": "3000"}
    assert broker.replicas.topic("orders").config.segment_bytes == 3000
    assert broker.replicas.topic("orders").config.retention_ms == 604_800_000


def test_validate_only_changes_nothing(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    (good,) = alter(broker, resource(TOPIC, "orders", {"retention.ms": "1"}), validate_only=True)
    (bad,) = alter(broker, resource(TOPIC, "orders", {"retention.ms": "x"}), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_CONFIG)
    assert broker.cluster.image.topics["orders"].config == {}


def test_settings_of_the_broker_take_effect(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    (result,) = alter(broker, resource(BROKER, "", {"log.retention.ms": "5000"}))
    assert result.error_code == ErrorCode.NONE
    assert broker.replicas.topic("orders").config.retention_ms == 5000


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "absent", {}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "orders", {"no.such": "1"}, ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", {"retention.ms": None}, ErrorCode.INVALID_REQUEST),
        (BROKER, "99", {}, ErrorCode.INVALID_REQUEST),
        (BROKER, str(BROKER_ID), {"log.dirs": "elsewhere"}, ErrorCode.INVALID_REQUEST),
        (LOGGER, str(BROKER_ID), {}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_altered_is_refused_with_a_reason(
    broker: BrokerContext, kind: int, name: str, configs: dict[str, str | None], code: ErrorCode
) -> None:
    broker.create_topic("orders")
    (result,) = alter(broker, resource(kind, name, configs))
    assert result.error_code == code
    assert result.error_message


def test_a_resource_named_twice_is_not_altered(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    results = alter(
        broker,
        resource(TOPIC, "orders", {"retention.ms": "1"}),
        resource(TOPIC, "orders", {"retention.ms": "2"}),
    )
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2
    assert broker.cluster.image.topics["orders"].config == {}


def test_altering_needs_the_right_to_alter_settings(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.ALTER_CONFIGS, ResourceType.TOPIC, "orders")
    broker.forbid(Operation.ALTER_CONFIGS, ResourceType.CLUSTER)
    topic, itself = alter(
        broker, resource(TOPIC, "orders", {}), resource(BROKER, str(BROKER_ID), {})
    )
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert itself.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
