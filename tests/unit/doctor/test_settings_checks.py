"""Settings that do nothing or differ, and versions that differ."""

from typing import Any

import pytest

from penstock.client.features import Features
from penstock.client.reassignments import Members
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Found, examine
from penstock.doctor.settings_checks import SETTINGS_CHECKS
from penstock.model.features import Levels

RULES = {check.id: check for check in SETTINGS_CHECKS}
OURS = {"penstock.http": "off", "num.io.threads": "8"}


def facts(**more: Any) -> ClusterFacts:
    return ClusterFacts(Members("c", 1, ()), {}, 0, **more)


def found(name: str, known: ClusterFacts) -> list[Found]:
    return list(RULES[name].rule(known))


def features(*supported: int, level: int = 1) -> Features:
    ranges = {n: {"group.version": Levels(0, most)} for n, most in enumerate(supported, 1)}
    return Features(1, {"group.version": level}, ranges)


def test_nothing_known_is_nothing_found() -> None:
    assert examine(SETTINGS_CHECKS, facts(), "cluster") == []
    assert examine(SETTINGS_CHECKS, facts(features=Features(1, {}, {})), "cluster") == []


def test_a_setting_without_effect() -> None:
    [row] = found("settings-without-effect", facts(brokers={1: OURS | {"num.io.threads": "64"}}))
    assert row.subjects == ["num.io.threads"]
    assert "one event loop" in row.fact
    assert found("settings-without-effect", facts(brokers={1: OURS})) == []


def test_settings_of_other_brokers_are_not_judged_by_what_works_here() -> None:
    kafka = {"num.io.threads": "64", "offsets.topic.num.partitions": "50"}
    assert found("settings-without-effect", facts(brokers={1: kafka})) == []


def test_a_name_that_this_command_does_not_know_is_left_alone() -> None:
    newer = OURS | {"penstock.of.the.future": "1"}
    assert found("settings-without-effect", facts(brokers={1: newer})) == []


def test_settings_that_differ() -> None:
    brokers = {1: {"message.max.bytes": "1"}, 2: {"message.max.bytes": "2"}}
    [row] = found("settings-differ", facts(brokers=brokers))
    assert row.fact == "brokers differ in: message.max.bytes (message.max.bytes: 1 and 2)"


@pytest.mark.parametrize("name", ["broker.id", "broker.rack", "listeners", "log.dirs"])
def test_what_is_a_brokers_own_may_differ(name: str) -> None:
    assert found("settings-differ", facts(brokers={1: {name: "1"}, 2: {name: "2"}})) == []
    assert found("settings-differ", facts(brokers={1: {"x": "1"}, 2: {"x": "1"}})) == []


def test_brokers_of_different_versions() -> None:
    [row] = found("version-skew", facts(features=features(1, 2)))
    assert "broker 1 supports 0 to 1, broker 2 supports 0 to 2" in row.fact
    assert found("version-skew", facts(features=features(1, 1))) == []


def test_a_feature_that_could_be_higher() -> None:
    [row] = found("features-behind", facts(features=features(2, 2)))
    assert row.fact == "group.version is at 1, and could be at 2"
    assert found("features-behind", facts(features=features(1, 2))) == []
