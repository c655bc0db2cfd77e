"""What a long request waits for before it is handled in parts.

Few long requests are objects in memory at the same time, and each of them holds one of few places.
A request that waits for another broker must not hold a place meanwhile.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock.kafka.context import Context


class Preparation(NamedTuple):
    """The steps of one API, in order. `visit` sees each part of the request."""

    begin: Callable[[Context], bool]  # whether the other steps are needed
    visit: Callable[[Any, Context], None]
    wait: Callable[[Context], Awaitable[None]]
