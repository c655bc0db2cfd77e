"""Arguments looked at once, when they are given: a wrong one is refused by its name, not by what it breaks later. Pure."""

from collections.abc import Sequence
from typing import Any

from penstock.sdk.errors import ConfigurationError


def number(name: str, value: Any, *, at_least: float) -> float:
    """A number that is not below `at_least`.

    >>> number("max_block_ms", 500, at_least=0)
    500
    >>> number("max_block_ms", "soon", at_least=0)
    Traceback (most recent call last):
        ...
    penstock.sdk.errors.ConfigurationError: max_block_ms='soon'; give a number of at least 0
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= at_least:
        raise ConfigurationError(
            f"{name}={value!r}", remedy=f"give a number of at least {at_least}"
        )
    return value


def whole(name: str, value: Any, *, at_least: int) -> int:
    """A whole number that is not below `at_least`."""
    if not isinstance(value, int):
        raise ConfigurationError(
            f"{name}={value!r}", remedy=f"give a whole number of at least {at_least}"
        )
    return int(number(name, value, at_least=at_least))


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={value!r}", remedy="give True or False")
    return value


def function(name: str, value: Any) -> None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise ConfigurationError(f"{name} cannot be {value!r}", remedy="give a function")


def text(name: str, value: Any, *, remedy: str) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name}={value!r}", remedy=remedy)
    return value


def bootstrap(value: Any) -> str:
    return text("bootstrap", value, remedy="give 'HOST:PORT', or several with commas")


def topics(given: Any) -> list[str]:
    """One topic or several, as a list.

    >>> topics("orders"), topics(("orders", "returns"))
    (['orders'], ['orders', 'returns'])
    """
    remedy = "give the name of a topic, or a list of names"
    if isinstance(given, str):
        return [text("topics", given, remedy=remedy)]
    if not isinstance(given, Sequence) or not given:
        raise ConfigurationError(f"topics={given!r}", remedy=remedy)
    return [text("topics", name, remedy=remedy) for name in given]
