"""Changing settings at run time: what is stored, what is refused."""

from time import thread_time

import pytest

from penstock.metadata.rules import config_changes
from penstock.metadata.rules.config_changes import (
    ConfigOp,
    Op,
    Resource,
    alter_configs,
    distinct_overrides,
    replace_configs,
)
from penstock.metadata.rules.controller import TopicSpec
from penstock.metadata.store import Delete
from penstock.model.errors import BrokerError, ErrorCode
from tests.unit.metadata.worlds import World


def with_topic(**config: str) -> World:
    world = World()
    world.create(TopicSpec("t", config={key.replace("_", "."): it for key, it in config.items()}))
    return world


def alter(
    world: World, *ops: ConfigOp, resource: Resource = Resource.TOPIC, name: str = "t"
) -> None:
    world.carry_out(alter_configs(world.image, resource, name, ops, world.layers))


def refused(
    world: World, *ops: ConfigOp, resource: Resource = Resource.TOPIC, name: str = "t"
) -> BrokerError:
    with pytest.raises(BrokerError) as error:
        alter_configs(world.image, resource, name, ops, world.layers)
    return error.value


def settings_of(world: World) -> dict[str, str]:
    return dict(world.image.topics["t"].config)


def test_settings_are_set_changed_and_deleted_one_by_one() -> None:
    world = with_topic(retention_ms="1d")
    alter(world, ConfigOp("segment.bytes", Op.SET, "1MiB"), ConfigOp("retention.ms", Op.SET, "2d"))
    assert settings_of(world) == {"retention.ms": "172800000", "segment.bytes": "1048576"}
    alter(world, ConfigOp("retention.ms", Op.DELETE), ConfigOp("flush.ms", Op.DELETE))
    assert settings_of(world) == {"segment.bytes": "1048576"}
    decision = alter_configs(
        world.image, Resource.TOPIC, "t", [ConfigOp("segment.bytes", Op.DELETE)], world.layers
    )
    assert decision.writes == [Delete("cfg/topic/t")]
    world.carry_out(decision)
    assert settings_of(world) == {}


def test_a_long_list_is_subtracted_in_linear_time() -> None:
    world = with_topic()
    name, replicas = "leader.replication.throttled.replicas", [f"{n}:1" for n in range(30_000)]
    alter(world, ConfigOp(name, Op.SET, ",".join(replicas)))
    start_s = thread_time()
    alter(world, ConfigOp(name, Op.SUBTRACT, ",".join(reversed(replicas[1:]))))
    assert thread_time() - start_s < 0.5
    assert settings_of(world) == {name: "0:1"}


def test_what_changes_nothing_is_not_written() -> None:
    world = with_topic(retention_ms="1d")
    op = ConfigOp("retention.ms", Op.SET, "24h")
    assert not alter_configs(world.image, Resource.TOPIC, "t", [op], world.layers).writes


def test_lists_are_appended_to_and_subtracted_from() -> None:
    world = with_topic()
    alter(world, ConfigOp("cleanup.policy", Op.APPEND, "compact"))
    assert settings_of(world) == {"cleanup.policy": "delete,compact"}
    alter(world, ConfigOp("cleanup.policy", Op.SUBTRACT, "delete"))
    assert settings_of(world) == {"cleanup.policy": "compact"}
    alter(world, ConfigOp("cleanup.policy", Op.SUBTRACT, "compact"))
    assert settings_of(world) == {"cleanup.policy": ""}
    alter(world, ConfigOp("cleanup.policy", Op.APPEND, "delete"))
    assert settings_of(world) == {"cleanup.policy": "delete"}
    error = refused(world, ConfigOp("retention.ms", Op.APPEND, "1"))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "not a list" in str(error)


def test_appending_starts_from_the_default_of_the_broker() -> None:
    world = World(static={"log.cleanup.policy": "compact"})
    world.create(TopicSpec("t"))
    alter(world, ConfigOp("cleanup.policy", Op.APPEND, "delete"))
    assert settings_of(world) == {"cleanup.policy": "compact,delete"}


def test_appending_to_an_empty_default_adds_nothing_else() -> None:
    world = World(static={"log.cleanup.policy": ""})
    world.create(TopicSpec("t"))
    alter(world, ConfigOp("cleanup.policy", Op.APPEND, "compact"))
    assert settings_of(world) == {"cleanup.policy": "compact"}
    append = ConfigOp("log.cleanup.policy", Op.APPEND, "compact")
    alter(world, append, resource=Resource.BROKER, name="")
    assert world.image.broker_configs[""] == {"log.cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("ops", "code", "says"),
    [
        ([ConfigOp("nope", Op.SET, "1")], ErrorCode.INVALID_CONFIG, "unknown topic setting"),
        ([ConfigOp("nope", Op.DELETE)], ErrorCode.INVALID_CONFIG, "unknown topic setting"),
        ([ConfigOp("retention.ms", Op.SET, "x")], ErrorCode.INVALID_CONFIG, "retention.ms"),
        ([ConfigOp("retention.ms", Op.SET)], ErrorCode.INVALID_REQUEST, "has no value"),
        ([ConfigOp("retention.ms", Op.DELETE)] * 2, ErrorCode.INVALID_REQUEST, "more than once"),
        ([ConfigOp("preallocate", Op.SET, "true")], ErrorCode.INVALID_CONFIG, "preallocate"),
        (
            [
                ConfigOp("min.compaction.lag.ms", Op.SET, "10"),
                ConfigOp("max.compaction.lag.ms", Op.SET, "1"),
            ],
            ErrorCode.INVALID_CONFIG,
            "is larger than",
        ),
    ],
)
def test_what_would_not_be_honoured_is_refused(
    ops: list[ConfigOp], code: ErrorCode, says: str
) -> None:
    error = refused(with_topic(), *ops)
    assert error.code is code
    assert says in str(error)


def test_settings_of_an_unknown_topic_are_refused() -> None:
    op = ConfigOp("retention.ms", Op.SET, "1")
    assert refused(World(), op).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_old_way_drops_what_is_not_named() -> None:
    world = with_topic(retention_ms="1d", flush_ms="5")
    decision = replace_configs(
        world.image, Resource.TOPIC, "t", [("segment.ms", "1h"), ("flush.ms", "6")], world.layers
    )
    world.carry_out(decision)
    assert settings_of(world) == {"segment.ms": "3600000", "flush.ms": "6"}
    with pytest.raises(BrokerError, match="more than once"):
        replace_configs(
            world.image, Resource.TOPIC, "t", [("flush.ms", "1"), ("flush.ms", "2")], world.layers
        )


@pytest.mark.parametrize(("name", "own"), [("", {}), ("1", {"log.retention.ms": "5"})])
def test_broker_settings_are_set_for_one_or_for_all(name: str, own: dict[str, str]) -> None:
    world = World(static={"log.retention.ms": "7"})
    alter(world, ConfigOp("log.retention.ms", Op.SET, "5"), resource=Resource.BROKER, name=name)
    assert world.layers.own == own
    assert world.layers.in_force == {"log.retention.ms": "5"}
    alter(world, ConfigOp("log.retention.ms", Op.DELETE), resource=Resource.BROKER, name=name)
    assert world.layers.in_force == {"log.retention.ms": "7"}


@pytest.mark.parametrize(
    ("op", "name", "code", "says"),
    [
        (
            ConfigOp("listeners", Op.SET, "x:1"),
            "1",
            ErrorCode.INVALID_REQUEST,
            "listeners cannot change",
        ),
        (ConfigOp("penstock.htpp", Op.SET, "1"), "", ErrorCode.INVALID_CONFIG, "penstock.http"),
        (ConfigOp("num.io.threads", Op.SET, "0"), "", ErrorCode.INVALID_CONFIG, "num.io.threads"),
        (
            ConfigOp("ssl.key.password", Op.SET, "x"),
            "1",
            ErrorCode.INVALID_REQUEST,
            "listener.name.LISTENER.ssl.key.password",
        ),
        (
            ConfigOp("listener.name.x.ssl.key.password", Op.SET, "x"),
            "",
            ErrorCode.INVALID_REQUEST,
            "one broker",
        ),
        (
            ConfigOp("cleanup.policy", Op.SET, "x" * 32_769),
            "",
            ErrorCode.INVALID_CONFIG,
            "the limit is 32768",
        ),
        (
            ConfigOp("log.retention.ms", Op.SET, "x"),
            "",
            ErrorCode.INVALID_CONFIG,
            "log.retention.ms",
        ),
        (
            ConfigOp("log.retention.ms", Op.SET, "1"),
            "9",
            ErrorCode.INVALID_REQUEST,
            "not registered",
        ),
        (
            ConfigOp("log.retention.ms", Op.SET, "1"),
            "x",
            ErrorCode.INVALID_REQUEST,
            "not registered",
        ),
    ],
)
def test_broker_settings_that_cannot_change_are_refused_by_name(
    op: ConfigOp, name: str, code: ErrorCode, says: str
) -> None:
    error = refused(World(), op, resource=Resource.BROKER, name=name)
    assert error.code is code
    assert says in str(error)


@pytest.mark.parametrize("name", ["1" * 5000, "01", "\u0661"])
def test_only_the_exact_id_names_a_broker(name: str) -> None:
    op = ConfigOp("log.retention.ms", Op.SET, "1")
    error = refused(with_topic(), op, resource=Resource.BROKER, name=name)
    assert "not registered" in str(error)


def test_defaults_that_contradict_a_topics_own_settings_are_refused() -> None:
    world = with_topic(max_compaction_lag_ms="10")
    op = ConfigOp("log.cleaner.min.compaction.lag.ms", Op.SET, "11")
    error = refused(world, op, resource=Resource.BROKER, name="")
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "topic 't' would have no valid settings" in str(error)


def test_equal_sets_of_settings_are_looked_at_once() -> None:
    world = World()
    same = {"retention.ms": "1"}
    world.create(TopicSpec("a", config=same), TopicSpec("b", config=same), TopicSpec("c"))
    assert [dict(config) for _, config in distinct_overrides(world.image)] == [same]


def test_a_broker_stores_what_has_no_effect() -> None:
    world = World()
    names = {
        "cleanup.policy": "delete",
        "sasl.kerberos.min.time.before.relogin": "58000",
        "listener.name.x.ssl.key.password": "sesame",
    }
    ops = [ConfigOp(name, Op.SET, value) for name, value in names.items()]
    alter(world, *ops, resource=Resource.BROKER, name="1")
    assert world.image.broker_configs["1"] == names
    alter(world, ConfigOp("cleanup.policy", Op.DELETE), resource=Resource.BROKER, name="1")
    assert "cleanup.policy" not in world.image.broker_configs["1"]


def test_names_that_nobody_knows_are_limited_in_number() -> None:
    world = World()
    ops = [ConfigOp(f"custom.{number}", Op.SET, "x") for number in range(100)]
    alter(world, *ops, resource=Resource.BROKER, name="")
    error = refused(world, ConfigOp("one.more", Op.SET, "x"), resource=Resource.BROKER, name="")
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "the limit is 100" in str(error)


def test_settings_of_groups_are_kept_by_group() -> None:
    world = World()
    session = ConfigOp("consumer.session.timeout.ms", Op.SET, "50s")
    for group in ("g", "a/b"):
        alter(world, session, resource=Resource.GROUP, name=group)
    assert world.image.group_configs == {
        group: {"consumer.session.timeout.ms": "50000"} for group in ("g", "a/b")
    }
    deletion = ConfigOp("consumer.session.timeout.ms", Op.DELETE)
    alter(world, deletion, resource=Resource.GROUP, name="g")
    assert list(world.image.group_configs) == ["a/b"]


@pytest.mark.parametrize(
    ("op", "name", "code"),
    [
        (ConfigOp("retention.ms", Op.SET, "1"), "g", ErrorCode.INVALID_CONFIG),
        (ConfigOp("consumer.session.timeout.ms", Op.SET, "1"), "g", ErrorCode.INVALID_CONFIG),
        (ConfigOp("share.isolation.level", Op.APPEND, "x"), "g", ErrorCode.INVALID_CONFIG),
        (ConfigOp("share.isolation.level", Op.SET), "g", ErrorCode.INVALID_REQUEST),
        (ConfigOp("share.isolation.level", Op.DELETE), "", ErrorCode.INVALID_REQUEST),
        (ConfigOp("share.isolation.level", Op.DELETE), "g" * 32_768, ErrorCode.INVALID_REQUEST),
    ],
)
def test_settings_that_no_group_can_have_are_refused(
    op: ConfigOp, name: str, code: ErrorCode
) -> None:
    assert refused(World(), op, resource=Resource.GROUP, name=name).code is code


def test_groups_with_settings_are_limited_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "_GROUPS_MAX", 2)
    world = World()
    op = ConfigOp("consumer.session.timeout.ms", Op.SET, "50000")
    for group in ("a", "b", "b"):
        alter(world, op, resource=Resource.GROUP, name=group)
    error = refused(world, op, resource=Resource.GROUP, name="c")
    assert error.code is ErrorCode.POLICY_VIOLATION
    alter(world, op._replace(op=Op.DELETE), resource=Resource.GROUP, name="a")
    alter(world, op, resource=Resource.GROUP, name="c")
