"""Long work in short steps: a generator that yields at least every few milliseconds.

The event loop runs other work between two steps. A caller outside of the loop runs all steps at once.
"""

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Run all steps now and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
