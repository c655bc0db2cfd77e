"""Settings of groups (resource type 32): Kafka 4.3's names and bounds. Unset ones have the broker's value.

A group keeps what was set for it; values are bounded by the broker's settings when they are set, and again where they rule.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from penstock.model.broker_configs import BROKER_SETTINGS, BrokerConfig
from penstock.model.errors import InvalidConfig
from penstock.model.settings import Kind, Setting, Update, Value
from penstock.model.units import Unit

_NO_SHARE: Final = "there are no share groups"
_NO_STREAMS: Final = "there are no streams groups"
_RESET: Final = (
    r"earliest|latest"
    r"|by_duration:P(?=[\dT])(?:\d{1,9}D)?(?:T(?=\d)(?:\d{1,9}H)?(?:\d{1,9}M)?(?:\d{1,9}(?:\.\d{1,9})?S)?)?"
)


class ConsumerTimes(NamedTuple):
    """The times that rule the members of one consumer group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


def _setting(name: str, kind: Kind, default: Value, doc: str, **more: Any) -> Setting:
    reason = more.get("no_effect", "")
    text = f"{doc} No effect: {reason}." if reason else doc
    return Setting(
        name, kind, default, text, unit=Unit.of(name), update=Update.CLUSTER_WIDE, **more
    )


def _inherited(name: str, doc: str, *, at_least: int, no_effect: str = "") -> Setting:
    """Its default is the broker's `group.NAME`."""
    broker = BROKER_SETTINGS[f"group.{name}"]
    return _setting(
        name,
        broker.kind,
        broker.default,
        doc,
        at_least=at_least,
        synonyms=(broker.name,),
        no_effect=no_effect,
    )


# fmt: off
_ROWS: Final = (
    _inherited("consumer.session.timeout.ms", "Silence after which a member is dropped.", at_least=1),
    _inherited("consumer.heartbeat.interval.ms", "Heartbeat interval given to members.", at_least=1),
    _inherited("consumer.assignment.interval.ms", "Shortest time between two assignments.", at_least=0, no_effect=BROKER_SETTINGS["group.consumer.assignment.interval.ms"].no_effect),
    _inherited("share.session.timeout.ms", "Silence after which a member is dropped.", at_least=1, no_effect=_NO_SHARE),
    _inherited("share.heartbeat.interval.ms", "Heartbeat interval given to members.", at_least=1, no_effect=_NO_SHARE),
    _inherited("share.assignment.interval.ms", "Shortest time between two assignments.", at_least=0, no_effect=_NO_SHARE),
    _inherited("share.record.lock.duration.ms", "For how long a delivered record is locked.", at_least=1000, no_effect=_NO_SHARE),
    _inherited("share.delivery.count.limit", "How often a record is delivered at most.", at_least=2, no_effect=_NO_SHARE),
    _inherited("share.partition.max.record.locks", "Locked records of a partition.", at_least=100, no_effect=_NO_SHARE),
    _setting("share.auto.offset.reset", Kind.STRING, "latest", "Where a group begins to read.", form=_RESET, form_doc="earliest, latest or by_duration:PnDTnHnMn.nS", no_effect=_NO_SHARE),
    _setting("share.isolation.level", Kind.STRING, "read_uncommitted", "Whether aborted records are delivered.", choices=("read_committed", "read_uncommitted"), no_effect=_NO_SHARE),
    _setting("share.renew.acknowledge.enable", Kind.BOOLEAN, True, "Whether a lock can be renewed.", no_effect=_NO_SHARE),
    _inherited("streams.session.timeout.ms", "Silence after which a member is dropped.", at_least=1, no_effect=_NO_STREAMS),
    _inherited("streams.heartbeat.interval.ms", "Heartbeat interval given to members.", at_least=1, no_effect=_NO_STREAMS),
    _inherited("streams.assignment.interval.ms", "Shortest time between two assignments.", at_least=0, no_effect=_NO_STREAMS),
    _inherited("streams.initial.rebalance.delay.ms", "Wait for more members before the first assignment.", at_least=0, no_effect=_NO_STREAMS),
    _inherited("streams.num.standby.replicas", "Standby replicas of a task.", at_least=0, no_effect=_NO_STREAMS),
)
# fmt: on
GROUP_SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({it.name: it for it in _ROWS})

_BOUNDED_BY_NAME: Final = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "assignment.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
)  # group.KIND.min.NAME and group.KIND.max.NAME
_STANDBYS: Final = "streams.num.standby.replicas"


class _Bounds(NamedTuple):
    least: str | None  # the broker settings that hold them
    most: str | None


def _bounds_of(name: str) -> _Bounds:
    kind, _, rest = name.partition(".")
    if name == _STANDBYS:
        return _Bounds(None, "group.streams.max.standby.replicas")
    if rest in _BOUNDED_BY_NAME:
        return _Bounds(f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}")
    return _Bounds(None, None)


def group_setting(name: str) -> Setting:
    """The row of a group setting; raises InvalidConfig with the nearest name that exists."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        from difflib import get_close_matches  # rarely needed, and slow to load

        nearest = get_close_matches(name, GROUP_SETTINGS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise InvalidConfig(f"unknown group setting {name!r}{hint}")
    return setting


def check_group_overrides(overrides: Mapping[str, str], broker_values: Mapping[str, str]) -> None:
    """Raise InvalidConfig unless each value is within the broker's bounds, and sessions outlast heartbeats."""
    for name, text in overrides.items():
        value = group_setting(name).parse(text)
        least, most = (_broker_value(bound, broker_values) for bound in _bounds_of(name))
        if isinstance(value, int) and (
            (least is not None and value < least) or (most is not None and value > most)
        ):
            raise InvalidConfig(_out_of_bounds(name, value, least, most))
    for kind in ("consumer", "share", "streams"):
        names = (f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms")
        if any(name in overrides for name in names):
            _check_session(names, overrides, broker_values)


def _check_session(
    names: Iterable[str], overrides: Mapping[str, str], broker_values: Mapping[str, str]
) -> None:
    (short, heartbeat_ms), (long, session_ms) = (
        (name, _effective(name, overrides, broker_values)) for name in names
    )
    if session_ms <= heartbeat_ms:
        raise InvalidConfig(f"{long} ({session_ms}) must be larger than {short} ({heartbeat_ms})")


def _effective(name: str, overrides: Mapping[str, str], broker_values: Mapping[str, str]) -> int:
    text = overrides.get(name)
    value = _broker_value(f"group.{name}", broker_values) if text is None else int(text)
    assert value is not None, "every such setting of a broker has a default"
    return value


def _broker_value(name: str | None, broker_values: Mapping[str, str]) -> int | None:
    if name is None:
        return None
    setting = BROKER_SETTINGS[name]
    text = broker_values.get(name)
    value = setting.default if text is None else setting.parse(text)
    assert isinstance(value, int), "all bounds are numbers"
    return value


def _out_of_bounds(name: str, value: int, least: int | None, most: int | None) -> str:
    low, high = _bounds_of(name)
    allowed = f"at most {most} ({high})"
    if least is not None:
        allowed = f"{least} ({low}) to {most} ({high})"
    return f"{name} is {value}; brokers allow {allowed}"


def consumer_times(overrides: Mapping[str, str], config: BrokerConfig) -> ConsumerTimes:
    """What rules a consumer group with these overrides on this broker, within its bounds (KIP-1240).

    The bounds can have changed since the overrides were set.
    """
    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    session_ms = config.group_consumer_session_timeout_ms
    heartbeat_ms = config.group_consumer_heartbeat_interval_ms
    if session in overrides:
        session_ms = min(
            max(int(overrides[session]), config.group_consumer_min_session_timeout_ms),
            config.group_consumer_max_session_timeout_ms,
        )
    if heartbeat in overrides:
        heartbeat_ms = min(
            max(int(overrides[heartbeat]), config.group_consumer_min_heartbeat_interval_ms),
            config.group_consumer_max_heartbeat_interval_ms,
        )
    return ConsumerTimes(session_ms, heartbeat_ms)
