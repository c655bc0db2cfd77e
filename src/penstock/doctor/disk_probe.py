"""Measure how long a disk takes to sync: writes of 4 KiB to a file that has no name and vanishes by itself."""

import os
import tempfile
from collections.abc import Callable
from math import ceil
from typing import Final

from penstock.doctor.host_facts import SyncTimes

MOST_SAMPLES: Final = 500
_BLOCK: Final = bytes(4096)


def measure(directory: str, seconds: float, clock_s: Callable[[], float]) -> SyncTimes | None:
    """None: the directory does not exist or cannot be written. Ends after `seconds` or 500 samples."""
    times_ms: list[float] = []
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            end_s = clock_s() + seconds
            while len(times_ms) < MOST_SAMPLES and (begun_s := clock_s()) < end_s:
                file.write(_BLOCK)
                os.fdatasync(file.fileno())
                times_ms.append((clock_s() - begun_s) * 1000)
    except OSError:
        return None
    return summarise(times_ms)


def summarise(times_ms: list[float]) -> SyncTimes | None:
    if not times_ms:
        return None
    ordered = sorted(times_ms)

    def at(share: float) -> float:
        return ordered[max(0, ceil(share * len(ordered)) - 1)]

    return SyncTimes(len(ordered), at(0.5), at(0.99), ordered[-1])
