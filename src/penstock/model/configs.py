"""Settings in force: topic overrides over the broker's settings over Kafka's defaults, checked by name and by value."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from penstock.model.broker_configs import BROKER_SETTINGS, BrokerConfig
from penstock.model.errors import InvalidConfig
from penstock.model.settings import Kind, Setting, Update, Value
from penstock.model.topic_configs import TOPIC_SETTINGS, TopicConfig
from penstock.model.units import Unit

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "Kind",
    "Setting",
    "TopicConfig",
    "Update",
    "Value",
    "broker_setting",
    "check_topic_overrides",
    "default_min_insync_replicas",
    "resolve_broker_config",
    "resolve_topic_config",
    "topic_default",
    "topic_setting",
]

_MS_PER: Final = {Unit.HOURS: 3_600_000, Unit.MINUTES: 60_000}
_ASCENDING: Final = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    (
        "group.consumer.min.heartbeat.interval.ms",
        "group.consumer.heartbeat.interval.ms",
        "group.consumer.max.heartbeat.interval.ms",
    ),
    (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    ),
)


def topic_setting(name: str) -> Setting:
    """The row of a topic setting; raises InvalidConfig with the nearest name that exists."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(_unknown("topic", name, TOPIC_SETTINGS))
    return setting


def broker_setting(name: str) -> Setting:
    """The row of a broker setting; raises InvalidConfig with the nearest name that exists."""
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        raise InvalidConfig(_unknown("broker", name, BROKER_SETTINGS))
    return setting


def check_topic_overrides(overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides in Kafka's notation, each checked; raises InvalidConfig for the first that is wrong."""
    return {name: topic_setting(name).canonical(text) for name, text in overrides.items()}


def resolve_topic_config(
    overrides: Mapping[str, str], broker_defaults: Mapping[str, str], *, replication_factor: int = 1
) -> TopicConfig:
    """What a topic with these overrides is ruled by.

    `broker_defaults` holds what was set on the broker, under the broker's names; what was not set has
    Kafka's default.
    """
    values: dict[str, Any] = {}
    for name, text in overrides.items():
        setting = topic_setting(name)
        values[setting.attribute] = setting.parse(text)
    for setting in _INHERITING:
        if setting.name not in overrides:
            found = topic_default(setting, broker_defaults)
            if found is not None:
                values[setting.attribute] = setting.parse(found)
    values.setdefault("min_insync_replicas", default_min_insync_replicas(replication_factor))
    config = TopicConfig(**values)
    _check_together(config)
    return config


def topic_default(setting: Setting, broker_defaults: Mapping[str, str]) -> str | None:
    """What the broker's own settings say for a topic setting, in the topic setting's unit."""
    for name in setting.synonyms:
        text = broker_defaults.get(name)
        if text is not None:
            return in_unit_of_topic(BROKER_SETTINGS[name], text)
    return None


def in_unit_of_topic(setting: Setting, text: str) -> str:
    """`log.retention.hours` counts hours, `retention.ms` milliseconds; a negative number stays: no limit."""
    factor = _MS_PER.get(setting.unit)
    if factor is None:
        return text
    number = int(setting.canonical(text))
    return str(number * factor if number > 0 else number)


def default_min_insync_replicas(replication_factor: int) -> int:
    return 2 if replication_factor >= 3 else 1


def resolve_broker_config(values: Mapping[str, str]) -> BrokerConfig:
    """What a broker with these settings is ruled by; the rest has its default."""
    attributes: dict[str, Any] = {}
    for name, text in values.items():
        setting = broker_setting(name)
        attributes[setting.attribute] = setting.parse(text)
    config = BrokerConfig(**attributes)
    if config.default_replication_factor == 0:
        raise InvalidConfig("invalid value '0' for default.replication.factor: give -1, 1 or more")
    for names in _ASCENDING:
        _check_ascending(config, names)
    resolve_topic_config({}, values)
    return config


def _check_together(config: TopicConfig) -> None:
    _check_ascending(config, ("min.compaction.lag.ms", "max.compaction.lag.ms"))


def _check_ascending(config: TopicConfig | BrokerConfig, names: Iterable[str]) -> None:
    for (low, least), (high, most) in pairwise(
        (name, getattr(config, name.replace(".", "_"))) for name in names
    ):
        if least > most:
            raise InvalidConfig(f"{low} ({least}) is larger than {high} ({most})")


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    if what == "topic":
        for setting in TOPIC_SETTINGS.values():
            if name in setting.synonyms:
                return f"{name!r} is a broker setting; for a topic it is {setting.name!r}"
    from difflib import get_close_matches  # rarely needed, and slow to load

    nearest = get_close_matches(name, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {what} setting {name!r}{hint}"


_INHERITING: Final = tuple(setting for setting in TOPIC_SETTINGS.values() if setting.synonyms)
