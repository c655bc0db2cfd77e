from pathlib import Path

import pytest

from penstock.kafka.security import Operation, ResourceType
from penstock.metadata.rules.config_changes import ConfigOp, Op, Resource
from penstock.model.configs import BROKER_SETTINGS, TOPIC_SETTINGS, Kind
from penstock.model.errors import ErrorCode
from penstock.model.group_configs import GROUP_SETTINGS
from penstock.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResult,
)
from tests.support.context import BROKER_ID, BrokerContext, broker_context

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
FROM_TOPIC, FROM_BROKER, FROM_ALL_BROKERS, STATIC, DEFAULT, FROM_GROUP = 1, 2, 3, 4, 5, 8
LONG_TYPE = 5


def describe(
    broker: BrokerContext,
    kind: int,
    name: str,
    keys: list[str] | None = None,
    *,
    synonyms: bool = False,
    documentation: bool = False,
    version: int = 4,
) -> DescribeConfigsResult:
    asked = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    request = DescribeConfigsRequest(
        resources=[asked], include_synonyms=synonyms, include_documentation=documentation
    )
    (result,) = broker.ask(request, version).results
    assert isinstance(result, DescribeConfigsResult)
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def one(result: DescribeConfigsResult) -> DescribeConfigsResourceResult:
    assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
    (config,) = result.configs
    return config


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_shows_every_setting(broker: BrokerContext, version: int) -> None:
    broker.create_topic("orders")
    result = describe(broker, TOPIC, "orders", version=version)
    assert [config.name for config in result.configs] == list(TOPIC_SETTINGS)


def test_what_was_set_for_the_topic_comes_before_what_it_would_inherit(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"log.retention.hours": "2"}) as broker:
        broker.create_topic("orders", config={"retention.ms": "1000"})
        broker.create_topic("plain")
        own = one(describe(broker, TOPIC, "orders", ["retention.ms"], synonyms=True))
        inherited = one(describe(broker, TOPIC, "plain", ["retention.ms"], synonyms=True))

    chain = [("log.retention.hours", "2", STATIC), ("log.retention.hours", "168", DEFAULT)]
    assert (own.value, own.config_source) == ("1000", FROM_TOPIC)
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [
        ("retention.ms", "1000", FROM_TOPIC),
        *chain,
    ]
    assert (inherited.value, inherited.config_source) == ("7200000", STATIC)
    assert [(s.name, s.value, s.source) for s in inherited.synonyms] == chain


def test_synonyms_and_documentation_come_only_when_asked_for(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    plain = one(describe(broker, TOPIC, "orders", ["retention.ms"]))
    full = one(describe(broker, TOPIC, "orders", ["retention.ms"], documentation=True))
    assert (plain.synonyms, plain.documentation) == ([], None)
    assert full.documentation == TOPIC_SETTINGS["retention.ms"].doc
    assert (full.config_type, full.read_only, full.is_sensitive) == (LONG_TYPE, False, False)


def test_a_setting_that_cannot_be_honoured_is_shown_as_read_only(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert one(describe(broker, TOPIC, "orders", ["remote.storage.enable"])).read_only


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_means_all_of_them(broker: BrokerContext, keys: list[str] | None) -> None:
    assert len(describe(broker, BROKER, str(BROKER_ID), keys).configs) == len(BROKER_SETTINGS)


def test_keys_that_do_not_exist_are_left_out(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    assert describe(broker, TOPIC, "orders", ["no.such.setting"]).configs == []


def test_a_broker_shows_what_was_set_where(tmp_path: Path) -> None:
    with broker_context(tmp_path, {"message.max.bytes": "2000"}) as broker:
        for name, value in ((str(BROKER_ID), "3000"), ("", "4000")):
            ops = [ConfigOp("message.max.bytes", Op.SET, value)]
            broker.run(broker.cluster.alter_configs(Resource.BROKER, name, ops))
        found = one(describe(broker, BROKER, str(BROKER_ID), ["message.max.bytes"], synonyms=True))
        for_all = one(describe(broker, BROKER, ""))

    assert (found.value, found.config_source, found.read_only) == ("3000", FROM_BROKER, False)
    assert [(s.value, s.source) for s in found.synonyms] == [
        ("3000", FROM_BROKER),
        ("4000", FROM_ALL_BROKERS),
        ("2000", STATIC),
        ("1048588", DEFAULT),
    ]
    assert (for_all.name, for_all.value) == ("message.max.bytes", "4000")
    assert for_all.config_source == FROM_ALL_BROKERS


def test_a_broker_takes_and_shows_settings_without_effect_and_warns_of_each_once(
    broker: BrokerContext, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "sasl.kerberos.min.time.before.relogin": "58000",
        "cleanup.policy": "compact",
        "listener.name.x.ssl.key.password": "sesame",
    }
    ops = [ConfigOp(name, Op.SET, value) for name, value in given.items()]
    for _ in range(2):
        broker.run(broker.cluster.alter_configs(Resource.BROKER, str(BROKER_ID), ops))
        ops = [*ops[:-1], ConfigOp("background.threads", Op.SET, "10")]
    shown = {
        name: one(describe(broker, BROKER, str(BROKER_ID), [name], documentation=True))
        for name in given
    }
    told = [(it.value, it.config_source, it.is_sensitive) for it in shown.values()]
    assert told == [
        ("58000", FROM_BROKER, False),
        (None, FROM_BROKER, True),
        (None, FROM_BROKER, True),
    ]
    assert [it.config_type for it in shown.values()] == [Kind.LONG, Kind.UNKNOWN, Kind.PASSWORD]
    assert all((it.documentation or "").startswith("No effect: ") for it in shown.values())
    warned = [it for it in caplog.messages if it.startswith("setting-without-effect")]
    assert [line.split()[2] for line in warned] == [f"name={name}" for name in sorted(given)]
    assert "sesame" not in caplog.text

    for_all = [ConfigOp("num.io.threads", Op.SET, "16")]
    broker.run(broker.cluster.alter_configs(Resource.BROKER, "", for_all))
    assert [it.value for it in describe(broker, BROKER, "").configs] == ["16"]


def test_a_setting_that_needs_a_restart_is_read_only(broker: BrokerContext) -> None:
    assert one(describe(broker, BROKER, str(BROKER_ID), ["log.dirs"])).read_only


def test_a_setting_without_a_value_is_null(broker: BrokerContext) -> None:
    found = one(describe(broker, BROKER, str(BROKER_ID), ["log.retention.ms"], synonyms=True))
    assert (found.value, found.config_source) == (None, DEFAULT)
    assert [(s.name, s.value) for s in found.synonyms] == [("log.retention.hours", "168")]


def test_a_group_shows_its_own_settings_and_those_of_the_broker(tmp_path: Path) -> None:
    static = {"group.consumer.heartbeat.interval.ms": "6000"}
    with broker_context(tmp_path, static) as broker:
        ops = [ConfigOp("consumer.session.timeout.ms", Op.SET, "50000")]
        broker.run(broker.cluster.alter_configs(Resource.GROUP, "g", ops))
        found = {it.name: it for it in describe(broker, GROUP, "g", synonyms=True).configs}
        (other,) = describe(broker, GROUP, "h", ["consumer.session.timeout.ms"]).configs
    assert sorted(found) == sorted(GROUP_SETTINGS)
    own, inherited = found["consumer.session.timeout.ms"], found["consumer.heartbeat.interval.ms"]
    assert (own.value, own.config_source, own.read_only) == ("50000", FROM_GROUP, False)
    assert [(s.name, s.value, s.source) for s in own.synonyms] == [
        ("consumer.session.timeout.ms", "50000", FROM_GROUP),
        ("group.consumer.session.timeout.ms", "45000", DEFAULT),
    ]
    assert (inherited.value, inherited.config_source) == ("6000", STATIC)
    isolation = found["share.isolation.level"]
    assert (isolation.value, isolation.config_source) == ("read_uncommitted", DEFAULT)
    assert [(s.name, s.source) for s in isolation.synonyms] == [("share.isolation.level", DEFAULT)]
    assert (other.value, other.config_source) == ("45000", DEFAULT)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "99", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (LOGGER, str(BROKER_ID), ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (77, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described_is_refused_with_a_reason(
    broker: BrokerContext, kind: int, name: str, code: ErrorCode
) -> None:
    result = describe(broker, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert result.error_message


def test_describing_needs_the_right_to_describe_settings(broker: BrokerContext) -> None:
    broker.create_topic("orders")
    broker.forbid(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "orders")
    broker.forbid(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    broker.forbid(Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, "g")
    group = describe(broker, GROUP, "g")
    assert group.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
    topic, itself = describe(broker, TOPIC, "orders"), describe(broker, BROKER, str(BROKER_ID))
    assert topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert itself.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
