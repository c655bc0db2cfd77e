"""Audit events: who did or tried what, from where, and with which outcome.

An event becomes a JSON object of OCSF 1.5 and is chained: each holds the hash of the one before
it and its own, so that a missing or edited event shows. Values from clients are cut in length;
JSON escapes what could break a line.
"""

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from hashlib import sha256
from typing import Any, Final, NamedTuple

from penstock.security.resources import Principal

OCSF_VERSION: Final = "1.5.0"
MAX_TEXT: Final = 256  # characters of a value that a client chose
CHAIN_START: Final = "0" * 64
_CHAIN: Final = "penstock.chain"
_CUT: Final = "…"


class EventClass(Enum):
    """The class of an event, with OCSF's class number and category number."""

    AUTHENTICATION = (3002, 3)
    ACCOUNT_CHANGE = (3001, 3)
    ACCESS_CHANGE = (3005, 3)
    GROUP_CHANGE = (3006, 3)
    API_ACTIVITY = (6003, 6)
    LIFECYCLE = (6002, 6)

    @property
    def class_number(self) -> int:
        return self.value[0]

    @property
    def category_number(self) -> int:
        return self.value[1]


# OCSF's numbers of activities that we use. What is not listed is 99 (other), with its name.
_ACTIVITIES: Final[Mapping[EventClass, Mapping[str, int]]] = {
    EventClass.AUTHENTICATION: {"login": 1, "logout": 2},
    EventClass.ACCOUNT_CHANGE: {"create": 1, "enable": 2, "change_password": 3, "disable": 5, "delete": 6},
    EventClass.ACCESS_CHANGE: {"assign": 1, "revoke": 2},
    EventClass.GROUP_CHANGE: {"assign": 1, "revoke": 2, "add_user": 3, "remove_user": 4, "delete": 5, "create": 6},
    EventClass.API_ACTIVITY: {"create": 1, "read": 2, "update": 3, "delete": 4},
    EventClass.LIFECYCLE: {"start": 3, "stop": 4},
}  # fmt: skip
_OTHER_ACTIVITY: Final = 99
_INFORMATIONAL, _MEDIUM = 1, 3  # severities
_SUCCESS, _FAILURE = 1, 2
_SERVER: Final = 1  # the type of the device that reports


class Event(NamedTuple):
    """One event, cheap to make. `to_ocsf` gives it its form later, off the request's path."""

    time_ms: int
    event_class: EventClass
    activity: str  # "login", "create", …: lower case
    is_allowed: bool
    principal: Principal | None = None
    host: str = ""
    listener: str = ""
    api: str = ""  # "CREATE_TOPICS"
    operation: str = ""
    resource_type: str = ""
    resource_name: str = ""
    reason: str = ""  # the deciding binding, or why a login failed: never a secret
    times: int = 1  # how many like it this event stands for
    details: tuple[tuple[str, str], ...] = ()  # before and after of a change: never key material


def to_ocsf(event: Event, broker_id: int, sequence: int, version: str) -> dict[str, Any]:
    """Return the event as an object of its OCSF class. Empty values are left out."""
    number = event.event_class.class_number
    activity = _ACTIVITIES[event.event_class].get(event.activity, _OTHER_ACTIVITY)
    found: dict[str, Any] = {
        "class_uid": number,
        "category_uid": event.event_class.category_number,
        "activity_id": activity,
        "activity_name": event.activity,
        "type_uid": number * 100 + activity,
        "time": event.time_ms,
        "severity_id": _INFORMATIONAL if event.is_allowed else _MEDIUM,
        "status_id": _SUCCESS if event.is_allowed else _FAILURE,
        "status_detail": _cut(event.reason),
        "count": event.times,
        "metadata": {
            "version": OCSF_VERSION,
            "product": {"name": "penstock", "vendor_name": "penstock", "version": version},
            "sequence": sequence,
            "uid": f"{broker_id}-{sequence}",
        },
        "device": {"uid": str(broker_id), "type_id": _SERVER},
    }
    found |= _actor(event) | _api(event)
    if event.host:
        found["src_endpoint"] = {"ip": _cut(event.host)}
    if event.resource_type:
        found["resources"] = [{"type": event.resource_type, "name": _cut(event.resource_name)}]
    unmapped = {name: _cut(value) for name, value in event.details}
    if event.listener:
        unmapped["listener"] = event.listener
    if unmapped:
        found["unmapped"] = unmapped
    return {name: value for name, value in found.items() if value != ""}


def _actor(event: Event) -> dict[str, Any]:
    if event.principal is None:
        return {}
    user = {"name": _cut(event.principal.name), "type": _cut(event.principal.kind)}
    if event.event_class is EventClass.API_ACTIVITY:
        return {"actor": {"user": user}}
    return {"user": user}


def _api(event: Event) -> dict[str, Any]:
    operation = event.operation or event.api
    if not operation:
        return {}
    api = {"operation": operation}
    if event.api:
        api["service"] = {"name": event.api}  # type: ignore[assignment]
    return {"api": api}


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + _CUT


# The chain ---------------------------------------------------------------------------------------


class Chain:
    """Links the events of one broker, in order. It starts again from the last hash that is stored."""

    def __init__(self, last_hash: str = CHAIN_START) -> None:
        self.last_hash = last_hash

    def encode(self, event: Mapping[str, Any]) -> bytes:
        """Return the event as one line of JSON with the hash before it and its own."""
        linked = {**event, _CHAIN: {"previous": self.last_hash}}
        self.last_hash = _hash(linked)
        linked[_CHAIN] = {**linked[_CHAIN], "hash": self.last_hash}
        return _canonical(linked)


def find_break(lines: Iterable[bytes], last_hash: str = CHAIN_START) -> int | None:
    """Return the index of the first line that does not continue the chain; None: all do."""
    for index, line in enumerate(lines):
        try:
            event = json.loads(line)
            link = event.pop(_CHAIN)
            stated = link["hash"]
            found = _hash({**event, _CHAIN: {"previous": link["previous"]}})
        except (ValueError, KeyError, TypeError, AttributeError):
            return index
        if link["previous"] != last_hash or found != stated:
            return index
        last_hash = stated
    return None


def _hash(event: Mapping[str, Any]) -> str:
    return sha256(_canonical(event)).hexdigest()


def _canonical(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":"), sort_keys=True).encode()
