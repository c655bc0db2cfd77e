"""Settings: names, units, bounds, and which layer wins."""

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.configs import (
    BROKER_SETTINGS,
    EFFECTIVE_SETTINGS,
    TOPIC_SETTINGS,
    BrokerConfig,
    Kind,
    Setting,
    TopicConfig,
    Update,
    broker_setting,
    check_topic_overrides,
    resolve_broker_config,
    resolve_topic_config,
    run_time_broker_setting,
    without_effect,
)
from penstock.model.errors import ErrorCode, InvalidConfig

KAFKA_4_TOPIC_SETTINGS = """
cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
index.interval.bytes leader.replication.throttled.replicas local.retention.bytes local.retention.ms
max.compaction.lag.ms max.message.bytes message.timestamp.after.max.ms message.timestamp.before.max.ms
message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""


def refusal(overrides: Mapping[str, str]) -> str:
    with pytest.raises(InvalidConfig) as refused:
        resolve_topic_config(overrides, {})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    return str(refused.value)


def test_throttled_replicas_are_pairs_of_numbers_or_all() -> None:
    for name in (
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    ):
        resolve_topic_config({name: "0:1,13:2"}, {})
        resolve_topic_config({name: "*"}, {})
        assert refusal({name: "0:1,some"}).endswith("'some' is not PARTITION:BROKER, or * for all")


def test_the_topic_settings_are_those_of_kafka_4_and_our_own() -> None:
    own = {name for name in TOPIC_SETTINGS if name.startswith("penstock.")}
    assert sorted(TOPIC_SETTINGS.keys() - own) == sorted(KAFKA_4_TOPIC_SETTINGS.split())
    assert own == {"penstock.mirror.source"}


@pytest.mark.parametrize(
    ("config", "table"), [(TopicConfig, TOPIC_SETTINGS), (BrokerConfig, EFFECTIVE_SETTINGS)]
)
def test_each_attribute_is_a_setting_with_dots_for_underscores(
    config: type[TopicConfig] | type[BrokerConfig], table: Mapping[str, Setting]
) -> None:
    assert [field.name for field in fields(config)] == [row.attribute for row in table.values()]
    defaults = config()
    assert all(getattr(defaults, row.attribute) == row.default for row in table.values())


@pytest.mark.parametrize("table", [TOPIC_SETTINGS, BROKER_SETTINGS])
def test_every_default_passes_its_own_checks(table: Mapping[str, Setting]) -> None:
    for row in table.values():
        text = row.render(row.default)
        if text is not None:
            assert row.parse(text) == row.default
            assert row.doc


def test_topics_inherit_only_from_broker_settings_that_exist_with_the_same_type() -> None:
    for row in TOPIC_SETTINGS.values():
        for name in row.synonyms:
            twin = BROKER_SETTINGS[name]
            assert twin.kind is row.kind or twin.unit is not row.unit
        if row.synonyms:
            assert BROKER_SETTINGS[row.synonyms[0]].update is Update.CLUSTER_WIDE


def test_without_any_setting_the_defaults_of_kafka_rule() -> None:
    assert resolve_topic_config({}, {}) == TopicConfig()
    assert resolve_broker_config({}) == BrokerConfig()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("segment.bytes", "64KiB", 65536),
        ("segment.bytes", "1GB", 1_000_000_000),
        ("segment.bytes", "1 mib", 1_048_576),
        ("retention.ms", "7d", 604_800_000),
        ("retention.ms", "500ms", 500),
        ("retention.ms", " -1 ", -1),
        ("flush.ms", "90s", 90_000),
        ("preallocate", "FALSE", False),
        ("min.cleanable.dirty.ratio", "0.1", 0.1),
        ("cleanup.policy", "compact, delete", frozenset({"compact", "delete"})),
        ("cleanup.policy", "", frozenset()),
        ("compression.gzip.level", "9", 9),
    ],
)
def test_values_are_read_in_every_notation(name: str, text: str, value: object) -> None:
    config = resolve_topic_config({name: text}, {})
    assert getattr(config, TOPIC_SETTINGS[name].attribute) == value


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("segment.bytes", "abc", "a size such as 64KiB"),
        ("segment.bytes", "7d", "a size such as 64KiB"),
        ("segment.bytes", "13", "the least is 14"),
        ("segment.bytes", "2147483648", "the most is 2147483647"),
        ("segment.bytes", "-1KiB", "a size such as 64KiB"),
        ("segment.bytes", "", "a size such as 64KiB"),
        ("segment.bytes", "٣", "a size such as 64KiB"),
        ("retention.ms", "-2", "the least is -1"),
        ("retention.ms", "1.5h", "a duration such as 7d"),
        ("flush.messages", "5ms", "give a whole number"),
        ("preallocate", "yes", "give true or false"),
        ("min.cleanable.dirty.ratio", "1.1", "the most is 1"),
        ("min.cleanable.dirty.ratio", "nan", "give a number"),
        ("cleanup.policy", "shred", "'shred' is unknown; choose from compact, delete"),
        ("compression.type", "brotli", "choose from uncompressed"),
        ("compression.gzip.level", "0", "choose from -1, 1"),
        ("message.timestamp.type", "createtime", "choose from CreateTime"),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_the_remedy(name: str, text: str, says: str) -> None:
    message = refusal({name: text})
    assert name in message
    assert says in message


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("remote.storage.enable", "true", "tiered storage is not available"),
        ("local.retention.ms", "1000", "tiered storage is not available"),
        ("local.retention.bytes", "-1", "tiered storage is not available"),
        ("preallocate", "true", "segment files grow"),
    ],
)
def test_what_cannot_be_honoured_is_refused_and_its_off_value_accepted(
    name: str, text: str, says: str
) -> None:
    assert f"{name}={text} is not supported: " in refusal({name: text})
    assert says in refusal({name: text})
    row = TOPIC_SETTINGS[name]
    assert resolve_topic_config({name: row.render(row.default) or ""}, {}) == TopicConfig()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("retension.ms", "unknown topic setting 'retension.ms'; did you mean 'retention.ms'?"),
        ("zzzzzzz", "unknown topic setting 'zzzzzzz'"),
        ("message.format.version", "unknown topic setting 'message.format.version'"),
        ("log.retention.hours", "a broker setting; for a topic it is 'retention.ms'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(name: str, says: str) -> None:
    assert says in refusal({name: "1"})


def test_an_unknown_broker_setting_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean 'num\.partitions'"):
        broker_setting("num.partition")


def test_at_run_time_a_name_that_nobody_knows_is_stored_and_has_no_effect() -> None:
    row = run_time_broker_setting("num.partition")
    assert (row.kind, row.update, row.is_sensitive) == (Kind.UNKNOWN, Update.CLUSTER_WIDE, True)
    assert "did you mean 'num.partitions'" in row.no_effect
    assert resolve_broker_config({"num.partition": "many"}) == BrokerConfig()
    assert resolve_broker_config({"broker_id": "9"}) == BrokerConfig(), "no attribute of ours"


@pytest.mark.parametrize("name", ["penstock.htpp", "", "a b", "x" * 256, "größe"])
def test_a_name_of_our_own_that_does_not_exist_and_an_odd_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidConfig):
        run_time_broker_setting(name)


@pytest.mark.parametrize(
    ("name", "kind", "update"),
    [
        ("listener.name.external.ssl.keystore.password", Kind.PASSWORD, Update.PER_BROKER),
        ("listener.name.x.scram-sha-256.sasl.jaas.config", Kind.PASSWORD, Update.PER_BROKER),
        ("listener.name.x.connections.max.reauth.ms", Kind.LONG, Update.PER_BROKER),
        ("listener.name.x.max.connections", Kind.INT, Update.CLUSTER_WIDE),
    ],
)
def test_one_listener_may_have_a_setting_of_its_own_without_effect(
    name: str, kind: Kind, update: Update
) -> None:
    row = broker_setting(name)
    assert (row.name, row.kind, row.update) == (name, kind, update)
    assert row.no_effect
    assert resolve_broker_config({name: "7"}) == BrokerConfig()


def test_settings_without_effect_are_checked_and_told_unless_they_are_at_their_default() -> None:
    values = {
        "num.io.threads": "8",
        "background.threads": "20",
        "log.retention.ms": "1",
        "listener.name.x.max.connections": "5",
        "cleanup.policy": "delete",
    }
    told = without_effect(values)
    assert sorted(told) == [
        "background.threads",
        "cleanup.policy",
        "listener.name.x.max.connections",
    ]
    assert "set max.connections" in told["listener.name.x.max.connections"]
    assert "did you mean 'log.cleanup.policy'" in told["cleanup.policy"]
    with pytest.raises(InvalidConfig, match=r"num\.io\.threads: the least is 1"):
        resolve_broker_config({"num.io.threads": "0"})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("authorizer.class.name", "x.Authorizer", "every request is allowed"),
        ("security.inter.broker.protocol", "SASL_SSL", "brokers speak plaintext"),
        ("remote.log.storage.system.enable", "true", "tiered storage"),
        ("node.id", "3", "set broker.id"),
        ("log.dir", "/data", "set log.dirs"),
    ],
)
def test_what_would_be_unsafe_to_ignore_is_refused(name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        resolve_broker_config({name: text})
    row = BROKER_SETTINGS[name]
    default = row.render(row.default)
    assert default is None or resolve_broker_config({name: default}) == BrokerConfig()


def test_every_setting_has_an_effect_or_a_reason_for_none() -> None:
    ineffective = BROKER_SETTINGS.keys() - EFFECTIVE_SETTINGS.keys()
    assert all(
        bool(BROKER_SETTINGS[name].no_effect) != bool(BROKER_SETTINGS[name].unsupported)
        for name in ineffective
    )
    assert not any(row.no_effect for row in EFFECTIVE_SETTINGS.values())


def test_the_page_lists_every_setting_without_effect_under_its_reason() -> None:
    page = (Path(__file__).parents[3] / "docs" / "settings-without-effect.md").read_text("utf-8")
    listed = {
        name: reason
        for reason, names in re.findall(r"^\| (.+?) \| (`.+`) \|$", page, re.MULTILINE)
        for name in re.findall(r"`([^`]+)`", names)
    }
    rows = (BROKER_SETTINGS[name] for name in BROKER_SETTINGS.keys() - EFFECTIVE_SETTINGS.keys())
    assert listed == {row.name: row.no_effect or row.unsupported for row in rows}


def test_settings_that_contradict_each_other_are_refused() -> None:
    assert "min.compaction.lag.ms (10) is larger than max.compaction.lag.ms (5)" in refusal(
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"}
    )
    with pytest.raises(InvalidConfig, match=r"session\.timeout\.ms \(45000\) is larger than group"):
        resolve_broker_config({"group.consumer.session.timeout.ms": "30000"})
    with pytest.raises(InvalidConfig, match=r"heartbeat\.interval\.ms \(20000\) is larger than"):
        resolve_broker_config({"group.consumer.heartbeat.interval.ms": "20000"})
    with pytest.raises(InvalidConfig, match="is larger than"):
        resolve_broker_config({"group.min.session.timeout.ms": "1h"})
    with pytest.raises(InvalidConfig, match=r"default\.replication\.factor"):
        resolve_broker_config({"default.replication.factor": "0"})


@pytest.mark.parametrize(
    ("broker", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log.retention.hours": "1"}, 3_600_000),
        ({"log.retention.hours": "1", "log.retention.minutes": "1"}, 60_000),
        ({"log.retention.minutes": "2h"}, 7_200_000),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "1", "log.retention.ms": "7"}, 7),
    ],
)
def test_the_finest_broker_setting_gives_the_topic_its_default(
    broker: dict[str, str], retention_ms: int
) -> None:
    assert resolve_topic_config({}, broker).retention_ms == retention_ms
    assert resolve_topic_config({"retention.ms": "9"}, broker).retention_ms == 9


def test_a_duration_must_be_whole_in_the_unit_of_its_setting() -> None:
    with pytest.raises(InvalidConfig, match="not a whole number of hours"):
        resolve_broker_config({"log.retention.hours": "90m"})


@pytest.mark.parametrize(("replicas", "expected"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_unless_set_two_in_sync_replicas_are_needed_from_three_replicas_on(
    replicas: int, expected: int
) -> None:
    def needed(topic: dict[str, str], broker: dict[str, str]) -> int:
        return resolve_topic_config(topic, broker, replication_factor=replicas).min_insync_replicas

    assert needed({}, {}) == expected
    assert needed({}, {"min.insync.replicas": "1"}) == 1
    assert needed({"min.insync.replicas": "4"}, {"min.insync.replicas": "1"}) == 4


def test_overrides_are_kept_in_the_notation_of_kafka() -> None:
    given_overrides = {
        "retention.ms": "7d",
        "segment.bytes": "1MiB",
        "cleanup.policy": " delete , compact,delete",
        "preallocate": "False",
        "min.cleanable.dirty.ratio": ".25",
    }
    assert check_topic_overrides(given_overrides) == {
        "retention.ms": "604800000",
        "segment.bytes": "1048576",
        "cleanup.policy": "delete,compact",
        "preallocate": "false",
        "min.cleanable.dirty.ratio": "0.25",
    }


def test_doubles_are_rendered_as_java_does() -> None:
    row = BROKER_SETTINGS["log.cleaner.io.max.bytes.per.second"]
    assert row.render(row.default) == "1.7976931348623157E308"
    assert row.parse("10MB") == 10_000_000.0


NUMBERS = [row for row in TOPIC_SETTINGS.values() if row.kind in (Kind.INT, Kind.LONG)]


@settings(deadline=None)
@given(st.sampled_from(NUMBERS), st.integers(-(2**31), 2**31 - 1))
def test_an_accepted_number_survives_rendering(row: Setting, number: int) -> None:
    try:
        text = row.canonical(str(number))
    except InvalidConfig:
        return
    assert int(text) == number
    assert row.canonical(text) == text


@settings(deadline=None)
@given(st.sampled_from(NUMBERS), st.integers(2**63) | st.integers(max_value=-(2**63) - 1))
def test_a_number_beyond_its_type_is_refused(row: Setting, number: int) -> None:
    with pytest.raises(InvalidConfig, match=row.name):
        row.parse(str(number))


@settings(deadline=None)
@given(st.sampled_from(list(BROKER_SETTINGS.values())), st.text())
def test_no_text_gives_anything_but_a_value_or_a_refusal(row: Setting, text: str) -> None:
    try:
        canonical = row.canonical(text)
    except InvalidConfig:
        return
    assert row.parse(canonical) == row.parse(text)
