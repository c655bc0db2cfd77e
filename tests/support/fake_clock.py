"""A wall clock that jumps when a test says so, for a broker that runs with it preloaded. Monotonic time goes on as it does."""

import functools
import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

_LIBRARY: Final = "libfaketimeMT.so.1"
_FETCH: Final = Path(__file__).parents[2] / "scripts" / "install-faketime"


class FakeClock:
    """`variables` are for the broker's environment."""

    def __init__(self, directory: Path) -> None:
        library = _library()
        self._path = directory / "clock"
        self.jump(0)
        self.variables = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "NO_FAKE_STAT": "1",
        }

    def jump(self, seconds: int) -> None:
        """To so much before or after the time that everybody else has."""
        new = self._path.with_suffix(".new")
        new.write_text(f"{seconds:+d}\n")
        new.rename(self._path)


@functools.cache
def _library() -> Path:
    """Fetched at first use, where it can be."""
    subprocess.run([str(_FETCH)], check=False, stdin=subprocess.DEVNULL)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock/faketime"
    for found in cache.rglob(_LIBRARY):
        return found
    pytest.skip("libfaketime is not there; scripts/install-faketime fetches it where there is apt")
