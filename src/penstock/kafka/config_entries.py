"""Settings as clients see them: the value in force, where it comes from, and what it would be otherwise."""

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.metadata.rules.config_changes import BrokerLayers
from penstock.model.configs import (
    BROKER_SETTINGS,
    TOPIC_SETTINGS,
    Setting,
    TopicConfig,
    Update,
    run_time_broker_setting,
)
from penstock.model.group_configs import GROUP_SETTINGS


class Source(IntEnum):
    """Kafka's numbers for where a value comes from; the first that has one wins."""

    TOPIC = 1
    BROKER = 2  # set at run time for this broker
    ALL_BROKERS = 3  # set at run time for all brokers
    STATIC = 4  # file, environment or command line
    DEFAULT = 5
    GROUP = 8


_LAYERS: Final = (Source.BROKER, Source.ALL_BROKERS, Source.STATIC)  # of BrokerLayers


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: Source


class Entry(NamedTuple):
    setting: Setting
    value: str | None
    source: Source
    read_only: bool
    synonyms: Sequence[Synonym]  # the first is the one in force


def topic_entries(
    config: TopicConfig, overrides: Mapping[str, str], layers: BrokerLayers
) -> list[Entry]:
    return [_topic_entry(setting, config, overrides, layers) for setting in TOPIC_SETTINGS.values()]


def broker_entries(layers: BrokerLayers) -> list[Entry]:
    """Every setting, and what was set under names that are not in the table."""
    others = {name for layer in layers for name in layer if name not in BROKER_SETTINGS}
    settings = [*BROKER_SETTINGS.values(), *map(run_time_broker_setting, sorted(others))]
    return [_broker_entry(setting, layers) for setting in settings]


def _setting(name: str) -> Setting:
    return BROKER_SETTINGS.get(name) or run_time_broker_setting(name)


def all_brokers_entries(layers: BrokerLayers) -> list[Entry]:
    """Only what was set for all brokers at run time: the rest belongs to each of them."""
    return [
        _all_brokers_entry(_setting(name), value)
        for name, value in sorted(layers.all_brokers.items())
    ]


def group_entries(overrides: Mapping[str, str], layers: BrokerLayers) -> list[Entry]:
    """Every setting of a group: its own value, else the broker's."""
    return [_group_entry(setting, overrides, layers) for setting in GROUP_SETTINGS.values()]


def _group_entry(setting: Setting, overrides: Mapping[str, str], layers: BrokerLayers) -> Entry:
    synonyms = list(_synonyms(setting.synonyms, layers))
    if not synonyms:
        synonyms = [_synonym(setting, setting.render(setting.default), Source.DEFAULT)]
    if setting.name in overrides:
        synonyms.insert(0, _synonym(setting, overrides[setting.name], Source.GROUP))
    return Entry(setting, synonyms[0].value, synonyms[0].source, False, synonyms)


def _topic_entry(
    setting: Setting, config: TopicConfig, overrides: Mapping[str, str], layers: BrokerLayers
) -> Entry:
    synonyms = list(_synonyms(setting.synonyms, layers))
    value = setting.render(getattr(config, setting.attribute))
    if setting.name in overrides:
        value = overrides[setting.name]
        synonyms.insert(0, _synonym(setting, value, Source.TOPIC))
    return Entry(
        setting,
        None if setting.is_sensitive else value,
        synonyms[0].source if synonyms else Source.DEFAULT,
        bool(setting.unsupported),
        synonyms,
    )


def _broker_entry(setting: Setting, layers: BrokerLayers) -> Entry:
    synonyms = list(_synonyms(setting.synonyms or (setting.name,), layers))
    own = [synonym for synonym in synonyms if synonym.name == setting.name]
    return Entry(
        setting,
        own[0].value if own else None,
        own[0].source if own else Source.DEFAULT,
        setting.update is Update.READ_ONLY,
        synonyms,
    )


def _all_brokers_entry(setting: Setting, value: str) -> Entry:
    synonym = _synonym(setting, value, Source.ALL_BROKERS)
    return Entry(
        setting, synonym.value, synonym.source, setting.update is Update.READ_ONLY, [synonym]
    )


def _synonyms(names: Sequence[str], layers: BrokerLayers) -> Iterator[Synonym]:
    """Every place that gives one of `names` a value, in the order in which they count."""
    for layer, source in zip(layers, _LAYERS, strict=True):
        for name in names:
            if name in layer:
                yield _synonym(_setting(name), layer[name], source)
    for name in names:
        setting = _setting(name)
        if setting.default is not None:
            yield _synonym(setting, setting.render(setting.default), Source.DEFAULT)


def _synonym(setting: Setting, value: str | None, source: Source) -> Synonym:
    return Synonym(setting.name, None if setting.is_sensitive else value, source)
