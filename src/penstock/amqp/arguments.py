"""The arguments of queue declarations and of consumers: checked with RabbitMQ's errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.amqp.equivalence import check_arguments_equivalent, check_field_equivalent
from penstock.amqp.expiry import expiry_error
from penstock.amqp.failures import TYPE_NAMES, describe, precondition_failed
from penstock.amqp.overflow import Overflow
from penstock.amqp.stream_arguments import parse_max_age, parse_stream_offset
from penstock.wire.amqp.tables import FieldTable, FieldValue

MAX_PRIORITY: Final = 255


class QueueType(StrEnum):
    CLASSIC = "classic"
    QUORUM = "quorum"
    STREAM = "stream"


class QueueProperties(NamedTuple):
    """What a declaration says about a queue."""

    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: FieldTable = {}  # noqa: RUF012  # never changed

    @property
    def type(self) -> QueueType:
        _, value = self.arguments.get("x-queue-type", ("S", QueueType.CLASSIC))
        return QueueType(value)


# Checks: each returns RabbitMQ's words for what is wrong, or None ---------------------------------------

_Check: TypeAlias = Callable[[FieldValue, FieldTable], str | None]
_INTEGERS: Final = frozenset("bBsuIil")


def _integer(value: FieldValue, _: FieldTable) -> str | None:
    if value[0] in _INTEGERS:
        return None
    return f'"expected integer, got {TYPE_NAMES[value[0]]}"'


def _not_negative(value: FieldValue, table: FieldTable) -> str | None:
    error = _integer(value, table)
    if error is None and value[1] < 0:
        return f"{{value_negative,{value[1]}}}"
    return error


def _positive(value: FieldValue, table: FieldTable) -> str | None:
    error = _not_negative(value, table)
    return "{value_zero,0}" if error is None and not value[1] else error


def _ttl(value: FieldValue, table: FieldTable) -> str | None:
    return _integer(value, table) or expiry_error(value[1])


def _expires(value: FieldValue, table: FieldTable) -> str | None:
    error = _integer(value, table)
    if error is None and not value[1]:
        return "{value_zero,0}"
    return error or expiry_error(value[1])


def _priority(value: FieldValue, table: FieldTable) -> str | None:
    error = _not_negative(value, table)
    if error is None and value[1] > MAX_PRIORITY:
        return f"{{max_value_exceeded,{value[1]}}}"
    return error


def _unacceptable(value: FieldValue) -> str:
    return f"{{unacceptable_type,{TYPE_NAMES[value[0]]}}}"


def _text(value: FieldValue, _: FieldTable) -> str | None:
    return None if value[0] == "S" else _unacceptable(value)


def _boolean(value: FieldValue, _: FieldTable) -> str | None:
    return None if value[0] == "t" else _unacceptable(value)


def _one_of(error: str, *allowed: str) -> _Check:
    def check(value: FieldValue, table: FieldTable) -> str | None:
        return _text(value, table) or (None if value[1] in allowed else error)

    return check


def _dead_letter_key(value: FieldValue, table: FieldTable) -> str | None:
    error = _text(value, table)
    if error is None and "x-dead-letter-exchange" not in table:
        return "routing_key_but_no_dlx_defined"
    return error


def _queue_type(value: FieldValue, table: FieldTable) -> str | None:
    error = _text(value, table)
    if error is None and value[1] not in list(QueueType):
        return f"\"unsupported queue type '{value[1]}'\""
    return error


def _max_age(value: FieldValue, table: FieldTable) -> str | None:
    return _text(value, table) or (None if parse_max_age(value[1]) else "invalid_max_age")


def _queue_version(value: FieldValue, table: FieldTable) -> str | None:
    error = _not_negative(value, table)
    if error is None and value[1] not in (1, 2):
        return f"\"unsupported queue version '{value[1]}'\""
    return error


def _stream_offset(value: FieldValue, _: FieldTable) -> str | None:
    if parse_stream_offset(value) is not None:
        return None
    return f"{{invalid_stream_offset_arg,{{{TYPE_NAMES[value[0]]},{value[1]!r}}}}}"


# Which arguments exist ------------------------------------------------------------------------------------

_LOCATORS: Final = ("client-local", "balanced", "random", "least-leaders", "min-masters")
_CHECKS: Final[Mapping[str, _Check]] = {
    "x-expires": _expires,
    "x-message-ttl": _ttl,
    "x-dead-letter-exchange": _text,
    "x-dead-letter-routing-key": _dead_letter_key,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _not_negative,
    "x-max-length-bytes": _not_negative,
    "x-max-in-memory-length": _not_negative,
    "x-max-in-memory-bytes": _not_negative,
    "x-max-priority": _priority,
    "x-overflow": _one_of("invalid_overflow", *Overflow),
    "x-queue-mode": _one_of("invalid_queue_mode", "default", "lazy"),
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _boolean,
    "x-consumer-timeout": _not_negative,
    "x-delivery-limit": _integer,
    "x-delayed-retry-type": _one_of("invalid_delayed_retry_type", "all", "failed", "returned"),
    "x-delayed-retry-min": _not_negative,
    "x-delayed-retry-max": _not_negative,
    "x-quorum-initial-group-size": _positive,
    "x-initial-cluster-size": _positive,
    "x-max-age": _max_age,
    "x-stream-max-segment-size-bytes": _not_negative,
    "x-stream-filter-size-bytes": _not_negative,
    "x-queue-leader-locator": _one_of("invalid_queue_locator_arg", *_LOCATORS),
    "x-queue-master-locator": _one_of("invalid_queue_locator_arg", *_LOCATORS),
    "x-penstock-retention": _not_negative,
}
_COMMON: Final = (
    *("x-queue-type", "x-queue-leader-locator", "x-max-length-bytes", "x-penstock-retention"),
)
_WORK_QUEUE: Final = (
    *("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key"),
    *("x-max-length", "x-overflow", "x-single-active-consumer", "x-consumer-timeout"),
    "x-delivery-limit",
)
_QUEUE_ARGUMENTS: Final = {
    QueueType.CLASSIC: (
        *_COMMON,
        *_WORK_QUEUE,
        *("x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator"),
    ),
    QueueType.QUORUM: (
        *_COMMON,
        *_WORK_QUEUE,
        *("x-dead-letter-strategy", "x-max-in-memory-length", "x-max-in-memory-bytes"),
        *("x-quorum-initial-group-size", "x-delayed-retry-type"),
        *("x-delayed-retry-min", "x-delayed-retry-max"),
    ),
    QueueType.STREAM: (
        *_COMMON,
        *("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"),
        "x-initial-cluster-size",
    ),
}
_ALL_QUEUE_ARGUMENTS: Final = frozenset().union(*_QUEUE_ARGUMENTS.values())
_CONSUMER_CHECKS: Final[Mapping[str, _Check]] = {
    "x-priority": _integer,
    "x-consumer-timeout": _not_negative,
    "x-stream-offset": _stream_offset,
}
_CONSUMER_ARGUMENTS: Final = {
    QueueType.CLASSIC: ("x-priority", "x-consumer-timeout"),
    QueueType.QUORUM: ("x-priority", "x-consumer-timeout"),
    QueueType.STREAM: ("x-stream-offset", "x-stream-partition"),
}
_ALL_CONSUMER_ARGUMENTS: Final = frozenset({"x-stream-offset", "x-stream-partition", "x-priority"})


def check_queue_declaration(name: str, properties: QueueProperties, vhost: str) -> None:
    """Check the arguments of a new queue, and that its type allows its other properties."""
    resource = describe("queue", name, vhost)
    arguments = properties.arguments
    _check_values(resource, arguments, {"x-queue-type": _queue_type}, ("x-queue-type",))
    kind = properties.type
    _check_values(resource, arguments, _CHECKS, _QUEUE_ARGUMENTS[kind])
    _check_names(resource, arguments, kind, _ALL_QUEUE_ARGUMENTS, _QUEUE_ARGUMENTS[kind])
    if kind is not QueueType.CLASSIC:
        _check_durable_queue(resource, properties)


def check_consumer_arguments(
    name: str, queue_type: QueueType, arguments: FieldTable, vhost: str
) -> None:
    resource = describe("queue", name, vhost)
    allowed = _CONSUMER_ARGUMENTS[queue_type]
    _check_values(resource, arguments, _CONSUMER_CHECKS, allowed)
    _check_names(resource, arguments, queue_type, _ALL_CONSUMER_ARGUMENTS, allowed)


def check_queue_equivalent(
    name: str, declared: QueueProperties, current: QueueProperties, vhost: str
) -> None:
    """Check that a second declaration agrees with the queue. Its exclusive owner is checked before."""
    resource = describe("queue", name, vhost)
    check_field_equivalent("durable", resource, declared.durable, current.durable)
    check_field_equivalent("auto_delete", resource, declared.auto_delete, current.auto_delete)
    keys = _QUEUE_ARGUMENTS[current.type]
    check_arguments_equivalent(resource, declared.arguments, current.arguments, keys)


def plain_argument(arguments: FieldTable, name: str) -> Any:
    """Return the value of an argument without its type, or `None` if it is absent."""
    value = arguments.get(name)
    return None if value is None else value[1]


def _check_values(
    resource: str, arguments: FieldTable, checks: Mapping[str, _Check], names: Iterable[str]
) -> None:
    for name in names:
        if name in arguments and name in checks:
            error = checks[name](arguments[name], arguments)
            if error is not None:
                raise precondition_failed(f"invalid arg '{name}' for {resource}: {error}")


def _check_names(
    resource: str,
    arguments: FieldTable,
    kind: QueueType,
    known: Iterable[str],
    allowed: Iterable[str],
) -> None:
    """Reject arguments that only other queue types have. Unknown ones are accepted."""
    forbidden = set(known).difference(allowed)
    for name in arguments:
        if name in forbidden:
            raise precondition_failed(f"invalid arg '{name}' for {resource} of queue type {kind}")


def _check_durable_queue(resource: str, properties: QueueProperties) -> None:
    if properties.auto_delete:
        raise precondition_failed(f"invalid property 'auto-delete' for {resource}")
    if properties.exclusive:
        raise precondition_failed(f"invalid property 'exclusive-owner' for {resource}")
    if not properties.durable:
        raise precondition_failed(f"invalid property 'non-durable' for {resource}")
