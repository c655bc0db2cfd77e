"""How long event loops of this process are held by one callback, in CPU time: a busy machine does not count."""

import asyncio.events
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

BOUND_MS: Final = 50.0  # what a request may hold the loop on an idle core


@dataclass
class Stalls:
    """The longest callback since the last `reset`."""

    longest_ms: float = 0.0
    callback: str = ""

    def reset(self) -> None:
        self.longest_ms, self.callback = 0.0, ""

    def note(self, spent_ms: float, handle: Any) -> None:
        if spent_ms > self.longest_ms:
            self.longest_ms, self.callback = spent_ms, repr(handle)


@contextmanager
def measured_stalls() -> Iterator[Stalls]:
    """Measures every callback of loops of asyncio (not uvloop), in whatever thread they run."""
    stalls, run = Stalls(), asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        begun = time.thread_time()
        run(handle)
        stalls.note(1000 * (time.thread_time() - begun), handle)

    with patch.object(asyncio.events.Handle, "_run", timed):
        yield stalls
