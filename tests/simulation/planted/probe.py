"""Plants a bug into the product, and counts how often it ran and how often it mattered.

A planted bug that never runs says nothing about a test that does not find it. One that runs and always
does what the product does says nothing either. So every bug counts its calls, and where it can tell,
the calls in which it did something else than the product.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import getattr_static
from types import ModuleType
from typing import Any
from unittest import mock

from penstock.model.errors import BrokerError

New = Callable[..., Any]  # called with the product's function, then with its arguments
OldBug = Callable[[], AbstractContextManager[Any]]


class Probe:
    """What one planted bug has done so far."""

    __slots__ = ("calls", "counts_deviations", "deviations")

    def __init__(self) -> None:
        self.calls = 0
        self.deviations = 0
        self.counts_deviations = True

    def deviates(self, does: object = True) -> None:
        self.deviations += bool(does)


Bug = Callable[[Probe], AbstractContextManager[Any]]


def replaced(probe: Probe, owner: Any, name: str, new: New) -> AbstractContextManager[Any]:
    """Call `new(original, *arguments)` in place of `owner.name`, a function, method or property."""
    found = getattr_static(owner, name)  # raises if the product has no such thing any more
    original = found
    if isinstance(found, property):
        original = found.fget
    elif isinstance(found, staticmethod | classmethod):
        original = found.__func__

    def planted(*arguments: Any, **named: Any) -> Any:
        probe.calls += 1
        return new(original, *arguments, **named)

    wrapped: Any = planted
    if isinstance(found, property | staticmethod | classmethod):
        wrapped = type(found)(planted)
    return mock.patch.object(owner, name, wrapped)


@contextmanager
def replaced_everywhere(probe: Probe, module: ModuleType, name: str, new: New) -> Iterator[None]:
    """As `replaced`, also in the modules of the product that have imported the function by name."""
    original = getattr_static(module, name)
    importers = [
        it
        for title, it in sorted(sys.modules.items())
        if title.startswith("penstock.") and vars(it).get(name) is original
    ]
    with ExitStack() as stack:
        for importer in importers:
            stack.enter_context(replaced(probe, importer, name, new))
        yield


def answering(probe: Probe, owner: Any, name: str, value: Any) -> AbstractContextManager[Any]:
    """Return `value`, whatever the product would return."""

    def planted(original: Any, *arguments: Any, **named: Any) -> Any:
        probe.deviates(original(*arguments, **named) != value)
        return value

    return replaced(probe, owner, name, planted)


def unchecked(probe: Probe, owner: Any, name: str) -> AbstractContextManager[Any]:
    """Drop what a check raises."""

    def planted(original: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        except BrokerError:
            probe.deviates()
            return None

    return replaced(probe, owner, name, planted)


def left_out(probe: Probe, owner: Any, name: str) -> AbstractContextManager[Any]:
    """Do nothing at all."""

    def planted(_original: Any, *_arguments: Any, **_named: Any) -> None:
        probe.deviates()

    return replaced(probe, owner, name, planted)


def reused(bug: OldBug, *targets: tuple[Any, str]) -> Bug:
    """A bug of tests/simulation/bugs.py, with its calls counted at the functions that it patches."""

    def pass_on(original: Any, *arguments: Any, **named: Any) -> Any:
        return original(*arguments, **named)

    @contextmanager
    def planted(probe: Probe) -> Iterator[None]:
        probe.counts_deviations = False
        with ExitStack() as stack:
            stack.enter_context(bug())
            for owner, name in targets:
                stack.enter_context(replaced(probe, owner, name, pass_on))
            yield

    return planted
