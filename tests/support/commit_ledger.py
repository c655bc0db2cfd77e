"""Acknowledged commits of a consumer group: what a coordinator answers later must not be older."""

import threading
from collections.abc import Iterable, Mapping

from tests.support.checker import Partition
from tests.support.failures import DataError


class CommitLedger:
    """Members of one group share it. Their threads note commits when the response arrives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[Partition, int] = {}

    def note(self, offsets: Mapping[Partition, int]) -> None:
        """Keep the largest acknowledged offset: only the owner of a partition may commit it."""
        with self._lock:
            for partition, offset in offsets.items():
                self._acknowledged[partition] = max(self._acknowledged.get(partition, 0), offset)

    def before(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return what a request that is sent from now on must find at least."""
        with self._lock:
            return {it: self._acknowledged[it] for it in partitions if it in self._acknowledged}

    @staticmethod
    def check(expected: Mapping[Partition, int], found: Mapping[Partition, int]) -> None:
        """Raise DataError if the coordinator forgot an acknowledged commit."""
        for partition, offset in expected.items():
            if found.get(partition, -1) < offset:
                raise DataError(
                    f"{partition[0]}-{partition[1]}: offset {offset} was committed and "
                    f"acknowledged; the coordinator returns {found.get(partition, -1)}"
                )
