"""AMQP errors in RabbitMQ's words, because clients match parts of them."""

from __future__ import annotations

from typing import Final

from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.tables import FieldValue

RESERVED_PREFIX: Final = "amq."
REPLY_TO: Final = "amq.rabbitmq.reply-to"

# how RabbitMQ names the type letters of a field table
TYPE_NAMES: Final = {
    "t": "bool",
    "b": "byte",
    "B": "unsignedbyte",
    "s": "short",
    "u": "unsignedshort",
    "I": "signedint",
    "i": "unsignedint",
    "l": "long",
    "f": "float",
    "d": "double",
    "D": "decimal",
    "S": "longstr",
    "T": "timestamp",
    "F": "table",
    "A": "array",
    "V": "void",
    "x": "binary",
}


def describe(kind: str, name: str, vhost: str) -> str:
    """Return for example `queue 'orders' in vhost '/'`."""
    return f"{kind} '{name}' in vhost '{vhost}'"


def quote_value(value: FieldValue | str | bool | None) -> str:
    """Describe one side of a declaration that is not equivalent to an earlier one."""
    match value:
        case None:
            return "none"
        case bool():
            return f"'{str(value).lower()}'"
        case str():
            return f"'{value}'"
        case letter, content:
            shown = str(content).lower() if letter == "t" else content
            return f"the value '{shown}' of type '{TYPE_NAMES[letter]}'"


def inequivalent(argument: str, resource: str, received: str, current: str) -> AmqpError:
    return precondition_failed(
        f"inequivalent arg '{argument}' for {resource}: received {received} but current is {current}"
    )


def not_found(kind: str, name: str, vhost: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_FOUND, f"no {describe(kind, name, vhost)}")


def precondition_failed(text: str) -> AmqpError:
    return AmqpError(ReplyCode.PRECONDITION_FAILED, text)


def access_refused(text: str) -> AmqpError:
    return AmqpError(ReplyCode.ACCESS_REFUSED, text)


def resource_error(text: str) -> AmqpError:
    return AmqpError(ReplyCode.RESOURCE_ERROR, text)


def not_allowed(text: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_ALLOWED, text)


def not_implemented(text: str) -> AmqpError:
    return AmqpError(ReplyCode.NOT_IMPLEMENTED, text)


def locked(name: str, vhost: str) -> AmqpError:
    """Return the error for a queue that is exclusive to another connection."""
    resource = describe("queue", name, vhost)
    return AmqpError(
        ReplyCode.RESOURCE_LOCKED,
        f"cannot obtain exclusive access to locked {resource}. It could be originally declared on "
        "another connection or the exclusive property value does not match that of the original "
        "declaration.",
    )


def check_not_reserved(kind: str, name: str) -> None:
    """Reject a new name that begins with `amq.`. Existing ones may be declared again."""
    if name.startswith(RESERVED_PREFIX):
        raise access_refused(f"{kind} name '{name}' contains reserved prefix 'amq.*'")


def check_not_default_exchange(name: str) -> None:
    if not name:
        raise access_refused("operation not permitted on the default exchange")


def strip_line_ends(name: str) -> str:
    """Remove carriage returns and line feeds from a name, as RabbitMQ does."""
    return name.replace("\r", "").replace("\n", "")
