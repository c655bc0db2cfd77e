"""Whether a second declaration of a queue or exchange agrees with the first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.amqp.failures import inequivalent, quote_value
from penstock.wire.amqp.tables import FieldTable, FieldValue

_CLASSES: Final = {**dict.fromkeys("bBsuIilD", "int"), **dict.fromkeys("fd", "float")}
_QUEUE_TYPE: Final = "x-queue-type"
_CLASSIC: Final[FieldValue] = ("S", "classic")


def check_field_equivalent(
    name: str, resource: str, received: str | bool, current: str | bool
) -> None:
    if received != current:
        raise inequivalent(name, resource, quote_value(received), quote_value(current))


def check_arguments_equivalent(
    resource: str, received: FieldTable, current: FieldTable, keys: Iterable[str]
) -> None:
    """Compare the named arguments by value. Integers of different widths are equal."""
    for key in keys:
        new, old = received.get(key), current.get(key)
        if not _are_equivalent(key, new, old):
            raise inequivalent(key, resource, quote_value(new), quote_value(old))


def _are_equivalent(key: str, new: FieldValue | None, old: FieldValue | None) -> bool:
    if new == old:
        return True
    if new is None or old is None:  # a classic queue may be declared without its type
        return key == _QUEUE_TYPE and _CLASSIC in (new, old)
    same_class = _CLASSES.get(new[0], new[0]) == _CLASSES.get(old[0], old[0])
    return same_class and bool(new[1] == old[1])
