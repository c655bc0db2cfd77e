"""Beside a Producer's hot path: what its settings become, which headers go along, and why a message was refused."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.sdk import partitioners
from penstock.sdk.errors import (
    ConfigurationError,
    MessageTooLarge,
    PenstockError,
    SerializationError,
    from_kafka,
)
from penstock.sdk.librdkafka import CONNECTION, STATISTICS_INTERVAL_MS
from penstock.sdk.partitioners import Partitioner
from penstock.sdk.positions import Time
from penstock.sdk.settings import Role, translate
from penstock.sdk.tracing import Header

Headers = Mapping[str, bytes | str | None] | Sequence[tuple[str, bytes | str | None]]
Outgoing = tuple[str, Any, Any, Headers | None, Time, int | None]  # as `send` takes them

BUFFER_MEMORY: Final = 32 * 2**20
PART_OVERHEAD_BYTES: Final = (
    1024  # of a record around its value: our header, lengths, the batch's header
)
_DEFAULT_MAX_REQUEST: Final = 1_000_000


def properties_of(
    bootstrap: str,
    client_id: str,
    partitioner: str,
    settings: Mapping[str, Any],
    raw: Mapping[str, Any],
) -> dict[str, Any]:
    """What librdkafka is given; `raw` has the last word."""
    given = translate(Role.PRODUCER, {**settings, "client_id": client_id})
    is_weak = str(given.get("acks", "all")) not in ("all", "-1")
    defaults: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "partitioner": partitioner,
        "queue.buffering.max.kbytes": BUFFER_MEMORY // 1024,
        "statistics.interval.ms": STATISTICS_INTERVAL_MS,
    }
    if not is_weak:
        defaults["enable.idempotence"] = True
    return {**defaults, **given, **raw}


def connection_of(properties: Mapping[str, Any]) -> dict[str, Any]:
    """How the broker is reached, for an admin client beside this one."""
    return {name: value for name, value in properties.items() if name.startswith(CONNECTION)}


def max_request_size(properties: Mapping[str, Any]) -> int:
    return int(properties.get("message.max.bytes", _DEFAULT_MAX_REQUEST))


def split_size(limit_bytes: int) -> int:
    """How much of a value fits into one part."""
    if limit_bytes <= PART_OVERHEAD_BYTES:
        raise ConfigurationError(
            f"max_request_size={limit_bytes} leaves no room for the parts of split_large=True",
            remedy=f"give more than {PART_OVERHEAD_BYTES}",
        )
    return limit_bytes - PART_OVERHEAD_BYTES


def chosen_partitioner(choice: Any) -> tuple[Partitioner | None, str]:
    """Our function, if it needs one, and the name of librdkafka's."""
    if callable(choice):
        return choice, "murmur2_random"
    if choice == "round_robin":
        return partitioners.round_robin(), "murmur2_random"
    if choice not in partitioners.LIBRDKAFKA:
        names = ", ".join((*partitioners.LIBRDKAFKA, "round_robin"))
        raise ConfigurationError(
            f"no partitioner is called {choice!r}", remedy=f"give one of {names}, or a function"
        )
    return None, partitioners.LIBRDKAFKA[choice]


def header_list(headers: Headers | None) -> list[tuple[str, Any]]:
    if headers is None:
        return []
    return list(headers.items()) if isinstance(headers, Mapping) else list(headers)


def with_trace(headers: Headers | None, trace: Sequence[Header]) -> Headers | None:
    """The trace's headers after the application's own, which win: a message sent on keeps the trace it had."""
    if not trace:
        return headers
    own = header_list(headers)
    names = {header[0] for header in own}
    return [*own, *(header for header in trace if header[0] not in names)]


def refusal(error: Exception, message: Outgoing, limit_bytes: int) -> PenstockError:
    """Why librdkafka did not take a message."""
    topic, value, key, _, _, _ = message
    if isinstance(error, TypeError | ValueError | OverflowError):
        return _wrong_type(error, message)
    ours = from_kafka(error.args[0], f"topic {topic!r}")
    if isinstance(ours, MessageTooLarge):
        return MessageTooLarge(
            f"topic {topic!r}: a message of {_size(value) + _size(key)} bytes; max_request_size is {limit_bytes}",
            code=ours.code,
        )
    return ours


def _wrong_type(error: Exception, message: Outgoing) -> PenstockError:
    topic, value, key, headers, timestamp, partition = message
    if not isinstance(topic, str):
        return ConfigurationError(f"topic={topic!r}", remedy="give the name of a topic")
    if partition is not None and not isinstance(partition, int):
        return ConfigurationError(f"partition={partition!r}", remedy="give a number, or None")
    if not isinstance(timestamp, int):
        return ConfigurationError(
            f"timestamp={timestamp!r}", remedy="give milliseconds since 1970, or a datetime"
        )
    for what, given in (("value", value), ("key", key)):
        if given is not None and not isinstance(given, bytes | str):
            return SerializationError(
                f"topic {topic!r}: the {what} is of type {type(given).__name__}",
                remedy=f"give bytes or str, or a {what}_serializer such as 'json'",
            )
    return SerializationError(
        f"topic {topic!r}: {error} (headers={headers!r})"[:500],
        remedy="headers are a dict, or a list of (name, value) pairs, with values of bytes, str or None",
    )


def _size(data: Any) -> int:
    return len(data.encode() if isinstance(data, str) else data or b"")
