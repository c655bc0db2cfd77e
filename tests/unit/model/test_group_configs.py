"""Settings of groups: names, bounds by the broker's settings, and what rules on a coordinator."""

from collections.abc import Mapping

import pytest

from penstock.model.configs import BROKER_SETTINGS, BrokerConfig
from penstock.model.errors import ErrorCode, InvalidConfig
from penstock.model.group_configs import (
    GROUP_SETTINGS,
    ConsumerTimes,
    check_group_overrides,
    consumer_times,
    group_setting,
)

KAFKA_4_3_GROUP_SETTINGS = """
consumer.assignment.interval.ms consumer.heartbeat.interval.ms consumer.session.timeout.ms
share.assignment.interval.ms share.auto.offset.reset share.delivery.count.limit
share.heartbeat.interval.ms share.isolation.level share.partition.max.record.locks
share.record.lock.duration.ms share.renew.acknowledge.enable share.session.timeout.ms
streams.assignment.interval.ms streams.heartbeat.interval.ms streams.initial.rebalance.delay.ms
streams.num.standby.replicas streams.session.timeout.ms
"""


def refusal(overrides: Mapping[str, str], broker: Mapping[str, str] | None = None) -> str:
    with pytest.raises(InvalidConfig) as refused:
        check_group_overrides(overrides, broker or {})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    return str(refused.value)


def test_the_group_settings_are_those_of_kafka() -> None:
    assert sorted(GROUP_SETTINGS) == sorted(KAFKA_4_3_GROUP_SETTINGS.split())
    effective = {name for name, row in GROUP_SETTINGS.items() if not row.no_effect}
    assert effective == {"consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"}


def test_every_default_is_accepted_and_is_the_one_of_the_broker() -> None:
    defaults = {name: row.render(row.default) or "" for name, row in GROUP_SETTINGS.items()}
    check_group_overrides(defaults, {})
    for row in GROUP_SETTINGS.values():
        assert row.doc
        assert all(BROKER_SETTINGS[name].default == row.default for name in row.synonyms)


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfig, match=r"did you mean 'consumer\.session\.timeout\.ms'"):
        group_setting("consumer.session.timeouts.ms")
    assert "unknown group setting" in refusal({"retention.ms": "1"})


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "45000 (group.consumer.min.session.timeout.ms)"),
        ({"consumer.session.timeout.ms": "60001"}, "60000 (group.consumer.max.session.timeout.ms)"),
        ({"consumer.session.timeout.ms": "soon"}, "a duration such as 7d"),
        ({"consumer.heartbeat.interval.ms": "4999"}, "brokers allow 5000"),
        ({"consumer.assignment.interval.ms": "15001"}, "to 15000"),
        ({"share.record.lock.duration.ms": "14999"}, "brokers allow 15000"),
        ({"share.delivery.count.limit": "11"}, "to 10"),
        ({"share.partition.max.record.locks": "4001"}, "to 4000"),
        ({"share.auto.offset.reset": "by_duration:-P1D"}, "by_duration:PnDTnHnMn.nS"),
        ({"share.auto.offset.reset": "by_duration:P"}, "by_duration:PnDTnHnMn.nS"),
        ({"share.isolation.level": "serializable"}, "choose from read_committed"),
        ({"share.renew.acknowledge.enable": "maybe"}, "give true or false"),
        ({"streams.num.standby.replicas": "3"}, "at most 2 (group.streams.max.standby.replicas)"),
    ],
)
def test_a_value_out_of_the_brokers_bounds_is_refused(overrides: dict[str, str], says: str) -> None:
    message = refusal(overrides)
    assert says in message
    assert next(iter(overrides)) in message


@pytest.mark.parametrize("text", ["earliest", "by_duration:PT1H30M", "by_duration:P7DT0.5S"])
def test_a_share_group_may_begin_anywhere(text: str) -> None:
    check_group_overrides({"share.auto.offset.reset": text}, {})


def test_a_session_outlasts_its_heartbeats_also_with_the_brokers_default() -> None:
    broker = {
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.max.heartbeat.interval.ms": "50000",
    }
    assert "must be larger than" in refusal({"consumer.session.timeout.ms": "5000"}, broker)
    assert "must be larger than" in refusal({"consumer.heartbeat.interval.ms": "45000"}, broker)
    check_group_overrides({"consumer.session.timeout.ms": "5001"}, broker)


def test_a_group_has_its_own_times_within_the_bounds_of_the_coordinator() -> None:
    config = BrokerConfig(
        group_consumer_session_timeout_ms=50_000, group_consumer_max_session_timeout_ms=55_000
    )
    own = {"consumer.heartbeat.interval.ms": "7000"}
    assert consumer_times(own, config) == ConsumerTimes(50_000, 7000)
    too_long = {"consumer.session.timeout.ms": "60000"}
    assert consumer_times(too_long, config) == ConsumerTimes(55_000, 5000)
    too_short = {"consumer.session.timeout.ms": "1", "consumer.heartbeat.interval.ms": "1"}
    assert consumer_times(too_short, config) == ConsumerTimes(45_000, 5000)
