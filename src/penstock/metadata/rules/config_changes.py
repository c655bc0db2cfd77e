"""Changing settings at run time: of a topic, of one broker, of all brokers, of a group.

Nothing is stored that would not be honoured, unless it is known to have no effect.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from penstock.metadata.image import ClusterImage
from penstock.metadata.rules.controller import find_topic
from penstock.metadata.rules.decisions import Decision, unchanged
from penstock.metadata.rules.elections import clear_stale_elrs
from penstock.metadata.rules.partition_rules import ElectionSettingsCache
from penstock.metadata.rules.promotions import check_may_mirror, promotion_after, topic_write
from penstock.metadata.store import Delete, Put, Write
from penstock.metadata.values import broker_config_key, encode, group_config_key, topic_config_key
from penstock.model.configs import (
    BROKER_SETTINGS,
    Kind,
    Setting,
    Update,
    resolve_broker_config,
    resolve_topic_config,
    run_time_broker_setting,
    topic_default,
    topic_setting,
)
from penstock.model.errors import BrokerError, ErrorCode, InvalidConfig
from penstock.model.group_configs import check_group_overrides, group_setting
from penstock.model.settings import split_list

ALL_BROKERS: Final = ""
MAX_GROUP_ID_BYTES: Final = 32_767  # what a record's key can hold
_GROUPS_MAX: Final = 10_000  # with settings of their own
_UNLISTED_MAX: Final = 100  # names in one broker resource that no table lists
_IDLE_VALUE_MAX_CHARS: Final = 32_768  # of a value that has no effect


class Resource(Enum):
    TOPIC = "topic"
    BROKER = "broker"  # a broker's id, or the empty name for all of them
    GROUP = "group"  # a group's id, whether there is such a group or not


class Op(IntEnum):
    """Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigOp(NamedTuple):
    name: str
    op: Op
    value: str | None = None


class BrokerLayers(NamedTuple):
    """What was set for a broker, from the strongest to the weakest."""

    own: Mapping[str, str]  # at run time, for this broker
    all_brokers: Mapping[str, str]  # at run time, for all
    static: Mapping[str, str]  # file, environment or command line

    @property
    def in_force(self) -> dict[str, str]:
        return {**self.static, **self.all_brokers, **self.own}


def broker_layers(image: ClusterImage, broker_id: int, static: Mapping[str, str]) -> BrokerLayers:
    configs = image.broker_configs
    return BrokerLayers(configs.get(str(broker_id), {}), configs.get(ALL_BROKERS, {}), static)


def alter_configs(
    image: ClusterImage,
    resource: Resource,
    name: str,
    ops: Sequence[ConfigOp],
    layers: BrokerLayers,
) -> Decision[Mapping[str, str]]:
    """IncrementalAlterConfigs: the result is all that is set for the resource afterwards."""
    _refuse_doubles(ops)
    target = _target(image, resource, name, layers)
    changed = dict(target.present)
    for op in ops:
        _apply(changed, op, target)
    return target.decide(image, changed)


def replace_configs(
    image: ClusterImage,
    resource: Resource,
    name: str,
    values: Sequence[tuple[str, str | None]],
    layers: BrokerLayers,
) -> Decision[Mapping[str, str]]:
    """AlterConfigs, the old way: what is not named goes back to its default."""
    given = [ConfigOp(setting, Op.SET, value) for setting, value in values]
    named = {setting for setting, _ in values}
    present = _target(image, resource, name, layers).present
    dropped = [ConfigOp(setting, Op.DELETE) for setting in present if setting not in named]
    return alter_configs(image, resource, name, [*given, *dropped], layers)


class _Target(NamedTuple):
    key: str
    present: Mapping[str, str]
    find: Callable[[str], Setting]  # refuses what is unknown or cannot change
    default: Callable[[Setting], str]
    check: Callable[[Mapping[str, str]], None]
    elrs: Callable[[Mapping[str, str]], Sequence[Decision[None]]]  # that do not outlive the change
    write: Callable[[Mapping[str, str]], Write]

    def decide(
        self, image: ClusterImage, changed: Mapping[str, str]
    ) -> Decision[Mapping[str, str]]:
        self.check(changed)
        if changed == self.present:
            return Decision(changed)
        first = self.elrs(changed)
        writes = [write for decision in first for write in decision.writes]
        compares = [compare for decision in first for compare in decision.compares]
        writes.append(self.write(changed))
        return Decision(changed, writes, [*compares, unchanged(image, self.key)])


def _target(image: ClusterImage, resource: Resource, name: str, layers: BrokerLayers) -> _Target:
    if resource is Resource.TOPIC:
        return _topic_target(image, name, layers)
    if resource is Resource.GROUP:
        return _group_target(image, name, layers)
    return _broker_target(image, name, layers)


def _topic_target(image: ClusterImage, name: str, layers: BrokerLayers) -> _Target:
    topic = find_topic(image, name)

    def check(overrides: Mapping[str, str]) -> None:
        resolve_topic_config(
            overrides, layers.in_force, replication_factor=topic.replication_factor
        )
        check_may_mirror(image, name, overrides)

    def default(setting: Setting) -> str:
        found = topic_default(setting, layers.in_force)
        return found if found is not None else setting.render(setting.default) or ""

    def elrs(overrides: Mapping[str, str]) -> Sequence[Decision[None]]:
        settings_cache = ElectionSettingsCache(layers.in_force)
        return clear_stale_elrs(image, settings_cache, [topic._replace(config=overrides)])

    def write(overrides: Mapping[str, str]) -> Write:
        return topic_write(name, overrides, promotion_after(image, topic, overrides))

    key = topic_config_key(name)
    return _Target(key, topic.config, topic_setting, default, check, elrs, write)


def _broker_target(image: ClusterImage, name: str, layers: BrokerLayers) -> _Target:
    if name != ALL_BROKERS and not any(name == str(broker) for broker in image.brokers):
        raise BrokerError(f"broker {name!r} is not registered", ErrorCode.INVALID_REQUEST)
    one_broker = name != ALL_BROKERS

    def find(setting_name: str) -> Setting:
        return _dynamic_setting(setting_name, one_broker)

    def default(setting: Setting) -> str:
        found = layers.static.get(setting.name)
        return found if found is not None else setting.render(setting.default) or ""

    def in_force(overrides: Mapping[str, str]) -> Mapping[str, str]:
        return layers._replace(**{"own" if one_broker else "all_brokers": overrides}).in_force

    def check(overrides: Mapping[str, str]) -> None:
        _check_unlisted(overrides)
        _check_brokers(image, in_force(overrides))

    def elrs(overrides: Mapping[str, str]) -> Sequence[Decision[None]]:
        return clear_stale_elrs(
            image, ElectionSettingsCache(in_force(overrides)), image.topics.values()
        )

    key, present = broker_config_key(name), image.broker_configs.get(name, {})

    def write(overrides: Mapping[str, str]) -> Write:
        return Put(key, encode(set=overrides)) if overrides else Delete(key)

    return _Target(key, present, find, default, check, elrs, write)


def _group_target(image: ClusterImage, name: str, layers: BrokerLayers) -> _Target:
    if not name or len(name.encode()) > MAX_GROUP_ID_BYTES:
        raise BrokerError(
            f"a group id has 1 to {MAX_GROUP_ID_BYTES} bytes; groups have no common settings",
            ErrorCode.INVALID_REQUEST,
        )

    def default(setting: Setting) -> str:
        return setting.render(setting.default) or ""  # no setting of groups is a list

    def check(overrides: Mapping[str, str]) -> None:
        check_group_overrides(overrides, layers.in_force)
        is_new = bool(overrides) and name not in image.group_configs
        if is_new and len(image.group_configs) >= _GROUPS_MAX:
            raise BrokerError(
                f"{_GROUPS_MAX} groups have settings of their own, which is the limit:"
                " delete those of groups that are gone",
                ErrorCode.POLICY_VIOLATION,
            )

    def elrs(_: Mapping[str, str]) -> Sequence[Decision[None]]:
        return ()

    key, present = group_config_key(name), image.group_configs.get(name, {})

    def write(overrides: Mapping[str, str]) -> Write:
        return Put(key, encode(set=overrides)) if overrides else Delete(key)

    return _Target(key, present, group_setting, default, check, elrs, write)


def _dynamic_setting(name: str, one_broker: bool) -> Setting:
    setting = run_time_broker_setting(name)
    if setting.update is Update.PER_LISTENER:
        raise BrokerError(
            f"{name} can change while a broker runs only for one listener:"
            f" listener.name.LISTENER.{name}",
            ErrorCode.INVALID_REQUEST,
        )
    if setting.update is Update.READ_ONLY:
        raise BrokerError(
            f"{name} cannot change while a broker runs: set it in the broker's file and restart",
            ErrorCode.INVALID_REQUEST,
        )
    if setting.update is Update.PER_BROKER and not one_broker:
        raise BrokerError(
            f"{name} can only be set for one broker at a time", ErrorCode.INVALID_REQUEST
        )
    return setting


def _check_unlisted(overrides: Mapping[str, str]) -> None:
    """Kafka stores any name. These are bounded, as all brokers keep them in memory."""
    count = sum(name not in BROKER_SETTINGS for name in overrides)
    if count > _UNLISTED_MAX:
        raise InvalidConfig(
            f"{count} settings have names that no broker knows; the limit is {_UNLISTED_MAX}"
        )


def _check_brokers(image: ClusterImage, in_force: Mapping[str, str]) -> None:
    """New defaults must suit every topic that builds on them."""
    resolve_broker_config(in_force)
    for name, overrides in distinct_overrides(image):
        try:
            resolve_topic_config(overrides, in_force)
        except InvalidConfig as error:
            raise InvalidConfig(f"topic '{name}' would have no valid settings: {error}") from None


def distinct_overrides(image: ClusterImage) -> Iterable[tuple[str, Mapping[str, str]]]:
    """Every set of overrides that some topic has, each once, with the name of such a topic."""
    seen: set[frozenset[tuple[str, str]]] = set()
    for topic in image.topics.values():
        overrides = frozenset(topic.config.items())
        if topic.config and overrides not in seen:
            seen.add(overrides)
            yield topic.name, topic.config


def _apply(changed: dict[str, str], op: ConfigOp, target: _Target) -> None:
    if op.op is Op.DELETE:
        if op.name not in changed:
            target.find(op.name)
        changed.pop(op.name, None)
        return
    setting = target.find(op.name)
    if op.value is None:
        raise BrokerError(f"{op.name} has no value", ErrorCode.INVALID_REQUEST)
    value = op.value
    if setting.no_effect and len(value) > _IDLE_VALUE_MAX_CHARS:
        raise InvalidConfig(
            f"the value of {op.name} has {len(value)} characters; the limit is {_IDLE_VALUE_MAX_CHARS}"
        )
    if op.op is not Op.SET:
        if setting.kind is not Kind.LIST:
            raise InvalidConfig(f"{op.name} is not a list: it can be set or deleted only")
        value = _edited(changed.get(op.name, target.default(setting)), op.op, value)
    changed[op.name] = setting.canonical(value)


def _edited(present: str, op: Op, items: str) -> str:
    listed, named = split_list(present), split_list(items)
    if op is Op.APPEND:
        return ",".join((*listed, *named))
    removed = frozenset(named)
    return ",".join(item for item in listed if item not in removed)


def _refuse_doubles(ops: Sequence[ConfigOp]) -> None:
    for name, count in Counter(op.name for op in ops).items():
        if count > 1:
            raise BrokerError(f"{name} is named more than once", ErrorCode.INVALID_REQUEST)
