"""Time to live: of messages, by their `expiration` and their queue, and of unused queues."""

from __future__ import annotations

import re
from typing import Final

from penstock.amqp.failures import precondition_failed

MAX_EXPIRY_MS: Final = 315_360_000_000  # ten years, as in RabbitMQ
_NUMBER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)


def expiry_error(value_ms: int) -> str | None:
    """Return RabbitMQ's words for what is wrong with a time to live, or `None`."""
    if value_ms < 0:
        return f"{{value_negative,{value_ms}}}"
    if value_ms > MAX_EXPIRY_MS:
        return f"{{value_too_large,{value_ms}}}"
    return None


def parse_expiration(expiration: str) -> int:
    """Return the milliseconds in the property `expiration` of a message."""
    found = _NUMBER.match(expiration)
    if found is None:
        raise _invalid(expiration, "no_integer")
    rest = expiration[found.end() :]
    if rest:
        raise _invalid(expiration, f'{{leftover_string,"{rest}"}}')
    value_ms = int(expiration)
    error = expiry_error(value_ms)
    if error is not None:
        raise _invalid(expiration, error)
    return value_ms


def _invalid(expiration: str, reason: str) -> Exception:
    return precondition_failed(f"invalid expiration '{expiration}': {reason}")


def message_ttl_ms(queue_ttl_ms: int | None, expiration_ms: int | None) -> int | None:
    """Return how long a message lives in a queue: the smaller of both, or `None` for ever."""
    if queue_ttl_ms is None or expiration_ms is None:
        return expiration_ms if queue_ttl_ms is None else queue_ttl_ms
    return min(queue_ttl_ms, expiration_ms)


def is_expired(ttl_ms: int | None, enqueued_ms: int, now_ms: int) -> bool:
    """Return whether a message that was enqueued at `enqueued_ms` is dead.

    With a time to live of 0 it is dead at once, unless a consumer waits for it.
    """
    return ttl_ms is not None and now_ms >= enqueued_ms + ttl_ms
