"""Settings in force: topic overrides over the broker's settings over Kafka's defaults, checked by name and by value."""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from penstock.model.broker_configs import BROKER_SETTINGS, EFFECTIVE_SETTINGS, BrokerConfig
from penstock.model.errors import InvalidConfig
from penstock.model.settings import Kind, Setting, Update, Value
from penstock.model.topic_configs import TOPIC_SETTINGS, TopicConfig
from penstock.model.units import Unit

__all__ = [
    "BROKER_SETTINGS",
    "EFFECTIVE_SETTINGS",
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
    "run_time_broker_setting",
    "topic_default",
    "topic_setting",
    "without_effect",
]

_OWN_PREFIX: Final = "penstock."
_NAME: Final = re.compile(r"[!-~]{1,255}")
_LISTENER_PREFIX: Final = re.compile(r"listener\.name\.[^.]+\.")
_OF_LISTENERS_OF_ALL_BROKERS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
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
    setting = BROKER_SETTINGS.get(name) or _of_listener(name)
    if setting is None:
        raise InvalidConfig(_unknown("broker", name, BROKER_SETTINGS))
    return setting


def run_time_broker_setting(name: str) -> Setting:
    """As `broker_setting`, but Kafka also stores names that it does not know, and so does a broker here.

    A name under `penstock.` is ours, so an unknown one is a mistake.
    """
    setting = BROKER_SETTINGS.get(name) or _of_listener(name)
    if setting is not None:
        return setting
    if name.startswith(_OWN_PREFIX) or not _NAME.fullmatch(name):
        raise InvalidConfig(_unknown("broker", name, BROKER_SETTINGS))
    return Setting(
        name,
        Kind.UNKNOWN,
        None,
        "No effect: no broker knows this name.",
        update=Update.CLUSTER_WIDE,
        no_effect=_unknown("broker", name, BROKER_SETTINGS),
    )


def _of_listener(name: str) -> Setting | None:
    """`listener.name.NAME.SETTING` and `listener.name.NAME.MECHANISM.SETTING`: one listener's own value."""
    match = _LISTENER_PREFIX.match(name)
    if match is None:
        return None
    rest = name[match.end() :]
    base = BROKER_SETTINGS.get(rest) or BROKER_SETTINGS.get(rest.partition(".")[2])
    if base is None:
        return None
    is_for_all = base.name in _OF_LISTENERS_OF_ALL_BROKERS
    reason = base.no_effect or f"listeners have no settings of their own; set {base.name}"
    return base._replace(
        name=name,
        doc=f"No effect: {reason}.",
        no_effect=reason,
        update=Update.CLUSTER_WIDE if is_for_all else Update.PER_BROKER,
        synonyms=(),
    )


def without_effect(values: Mapping[str, str]) -> dict[str, str]:
    """Why a setting has no effect, for each of `values` that asks for something else than the default."""
    found = {}
    for name, text in values.items():
        setting = run_time_broker_setting(name)
        if setting.no_effect and (name not in BROKER_SETTINGS or _differs(setting, text)):
            found[name] = setting.no_effect
    return found


def _differs(setting: Setting, text: str) -> bool:
    try:
        return setting.parse(text) != setting.default
    except InvalidConfig:
        return True


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
        value = run_time_broker_setting(name).parse(text)
        if name in EFFECTIVE_SETTINGS:
            attributes[EFFECTIVE_SETTINGS[name].attribute] = value
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
