"""What is asked for at start by tools, and has little or nothing to show yet."""

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.errors import ErrorCode
from penstock.wire.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
)
from penstock.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from penstock.wire.messages.list_config_resources import ListConfigResourcesRequest
from penstock.wire.messages.list_groups import ListGroupsRequest
from tests.support.context import BROKER_ID, BrokerContext

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


@pytest.mark.parametrize("version", range(6))
def test_there_are_no_groups(broker: BrokerContext, version: int) -> None:
    answer = broker.ask(ListGroupsRequest(), version)
    assert (answer.error_code, answer.groups) == (ErrorCode.NONE, [])


def test_topics_and_brokers_have_settings(broker: BrokerContext) -> None:
    broker.create_topic("orders")

    def listed(*types: int) -> list[tuple[int, str]]:
        request = ListConfigResourcesRequest(resource_types=list(types))
        resources = broker.ask(request).config_resources
        return [(found.resource_type, found.resource_name) for found in resources]

    assert listed() == [(TOPIC, "orders"), (BROKER, str(BROKER_ID))]
    assert listed(TOPIC) == [(TOPIC, "orders")]
    assert listed(LOGGER, CLIENT_METRICS, GROUP) == []


def test_groups_with_settings_of_their_own_are_listed(broker: BrokerContext) -> None:
    ops = [ConfigOp("consumer.session.timeout.ms", Op.SET, "50000")]
    for group in ("b", "a"):
        broker.run(broker.cluster.alter_configs(Resource.GROUP, group, ops))
    resources = broker.ask(ListConfigResourcesRequest(resource_types=[GROUP])).config_resources
    found = [(it.resource_type, it.resource_name) for it in resources]
    assert found == [(GROUP, "a"), (GROUP, "b")]


def test_an_unknown_type_of_resource_is_refused(broker: BrokerContext) -> None:
    answer = broker.ask(ListConfigResourcesRequest(resource_types=[77]))
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_version_0_lists_client_metrics_only(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert broker.ask(ListConfigResourcesRequest(), 0).config_resources == []


@pytest.mark.parametrize("version", range(2))
def test_there_are_no_quotas(broker: BrokerContext, version: int) -> None:
    components = [
        ComponentData(entity_type="user", match_type=EXACT, match="ann"),
        ComponentData(entity_type="client-id", match_type=SPECIFIED, match=None),
    ]
    answer = broker.ask(DescribeClientQuotasRequest(components=components), version)
    assert (answer.error_code, answer.error_message, answer.entries) == (ErrorCode.NONE, None, [])


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", EXACT, "x")], ErrorCode.INVALID_REQUEST),
        ([("planet", EXACT, "x")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", SPECIFIED, "x")], ErrorCode.INVALID_REQUEST),
        ([("user", 7, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("user", EXACT, "b")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, "a"), ("ip", EXACT, "b")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_filter_without_sense_is_refused(
    broker: BrokerContext, components: list[tuple[str, int, str | None]], code: ErrorCode
) -> None:
    filters = [
        ComponentData(entity_type=kind, match_type=match_type, match=match)
        for kind, match_type, match in components
    ]
    answer = broker.ask(DescribeClientQuotasRequest(components=filters))
    assert answer.error_code == code
    assert answer.error_message


def test_no_user_has_scram_credentials(broker: BrokerContext) -> None:
    assert broker.ask(DescribeUserScramCredentialsRequest(users=None)).results == []
    users = [UserName(name=name) for name in ("ann", "bob", "bob")]
    results = broker.ask(DescribeUserScramCredentialsRequest(users=users)).results
    assert [(result.user, result.error_code) for result in results] == [
        ("ann", ErrorCode.RESOURCE_NOT_FOUND),
        ("bob", ErrorCode.DUPLICATE_RESOURCE),
    ]
    assert all(result.error_message for result in results)


def test_quotas_credentials_and_resources_need_rights_on_the_cluster(
    broker: BrokerContext,
) -> None:
    broker.forbid(Operation.DESCRIBE, ResourceType.CLUSTER)
    broker.forbid(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    for request in (
        DescribeClientQuotasRequest(),
        DescribeUserScramCredentialsRequest(),
        ListConfigResourcesRequest(),
    ):
        assert broker.ask(request).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
