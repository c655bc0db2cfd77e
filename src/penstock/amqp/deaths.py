"""Dead letters: the headers that a message gets when a queue drops it, and cycles of dead-lettering.

The header `x-death` has one table for each pair of queue and reason, the newest first. It is bounded:
a message that died in too many queues goes no further.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.amqp.routing.messages import BCC, CC, RoutedMessage
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.properties import (
    check_properties,
    decode_properties,
    encode_properties,
)
from penstock.wire.amqp.tables import FieldTable, FieldValue

X_DEATH: Final = "x-death"
MAX_DEATHS: Final = 128


class DeathReason(StrEnum):
    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


class DeadLetter(NamedTuple):
    """A message on its way from a queue to a dead-letter exchange."""

    message: RoutedMessage  # addressed to the dead-letter exchange
    reason: DeathReason
    deaths: list[FieldTable]  # the newest first
    obstacle: str | None  # why it cannot be sent


def dead_letter(
    message: RoutedMessage,
    *,
    queue: str,
    reason: DeathReason,
    exchange: str,
    routing_key: str | None,
    now_ms: int,
) -> DeadLetter:
    """Return what a queue sends to its dead-letter exchange `exchange`.

    Without a `routing_key` the message keeps its own keys, with those of its CC header.
    """
    properties = decode_properties(message.properties_bytes, 0, len(message.properties_bytes))
    headers = dict(properties.headers or {})
    deaths = record_death(
        headers,
        queue=queue,
        reason=reason,
        exchange=message.exchange,
        routing_keys=message.visible_routing_keys(),
        now_ms=now_ms,
        expiration=properties.expiration,
    )
    headers.pop(BCC, None)
    if routing_key is not None:
        headers.pop(CC, None)
    properties.headers = headers
    properties.expiration = None  # or it would expire again at once
    key = message.routing_key if routing_key is None else routing_key
    encoded = encode_properties(properties)
    sent = RoutedMessage(exchange, key, encoded, message.random_number)
    return DeadLetter(sent, reason, deaths, _obstacle(deaths, encoded))


def _obstacle(deaths: list[FieldTable], properties: bytes) -> str | None:
    if len(deaths) > MAX_DEATHS:
        return f"it died {len(deaths)} times for different queues or reasons; limit {MAX_DEATHS}"
    try:
        check_properties(properties, 0, len(properties))
    except AmqpError as error:  # the client's headers left no room for ours
        return error.text
    return None


def record_death(
    headers: FieldTable,
    *,
    queue: str,
    reason: DeathReason,
    exchange: str,
    routing_keys: Iterable[str],
    now_ms: int,
    expiration: str | None,
) -> list[FieldTable]:
    """Update the death headers of a message in place. Return the deaths, the newest first."""
    deaths = read_deaths(headers)
    death = _take(deaths, queue, reason)
    if death is None:
        death = _new_death(queue, reason, exchange, routing_keys, now_ms)
        if expiration is not None:
            death["original-expiration"] = ("S", expiration)
    else:
        death["count"] = ("l", _count(death) + 1)
    deaths.insert(0, death)
    headers[X_DEATH] = ("A", [("F", each) for each in deaths])
    ages = ("last",) if "x-first-death-reason" in headers else ("first", "last")
    for age in ages:
        headers[f"x-{age}-death-reason"] = ("S", str(reason))
        headers[f"x-{age}-death-queue"] = ("S", queue)
        headers[f"x-{age}-death-exchange"] = ("S", exchange)
    return deaths


def read_deaths(headers: FieldTable) -> list[FieldTable]:
    """Return copies of the tables in `x-death`. What a client wrote there wrongly is left out."""
    letter, content = headers.get(X_DEATH, ("A", []))
    if letter != "A":
        return []
    return [dict(value) for kind, value in content if kind == "F" and _is_death(value)]


def is_cycle(target: str, letter: DeadLetter) -> bool:
    """Return whether a dead letter must not go to the queue `target`, because it would go in circles.

    It may if it was rejected by a client since it was in that queue: then the circle has an end.
    """
    if letter.reason is DeathReason.REJECTED:
        return False
    for death in letter.deaths:
        if _text(death, "reason") == DeathReason.REJECTED:
            return False
        if _text(death, "queue") == target:
            return True
    return False


def _new_death(
    queue: str, reason: DeathReason, exchange: str, routing_keys: Iterable[str], now_ms: int
) -> FieldTable:
    return {
        "count": ("l", 1),
        "reason": ("S", str(reason)),
        "queue": ("S", queue),
        "time": ("T", now_ms // 1000),
        "exchange": ("S", exchange),
        "routing-keys": ("A", [("S", key) for key in routing_keys]),
    }


def _take(deaths: list[FieldTable], queue: str, reason: DeathReason) -> FieldTable | None:
    for at, death in enumerate(deaths):
        if _text(death, "queue") == queue and _text(death, "reason") == reason:
            return deaths.pop(at)
    return None


def _is_death(table: FieldTable) -> bool:
    return all(table.get(name, ("V", None))[0] == "S" for name in ("queue", "reason"))


def _text(death: FieldTable, name: str) -> str:
    return str(death[name][1])


def _count(death: FieldTable) -> int:
    value: FieldValue = death.get("count", ("l", 1))
    content: Any = value[1]
    return content if isinstance(content, int) and content < 1 << 62 else 1
