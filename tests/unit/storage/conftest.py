"""Logs are tested in memory where there is a file system for it: syncing then costs nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.storage.logs import scratch


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with scratch() as path:
        yield Path(path)
