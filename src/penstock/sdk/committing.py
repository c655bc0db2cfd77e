"""Commits of a consumer: asked for once each, measured, and asked for again when they were refused."""

import time
from collections.abc import Mapping
from typing import Any

from penstock.sdk.errors import PenstockError
from penstock.sdk.librdkafka import LOGGER, errors_of
from penstock.sdk.message import Place
from penstock.sdk.metrics import ConsumerMetrics
from penstock.sdk.positions import partition


class Commits:
    """What was asked for already, and the asking. The client is given when there is one."""

    def __init__(self, group_id: str, metrics: ConsumerMetrics) -> None:
        self.client: Any = None
        self._group_id = group_id
        self._metrics = metrics
        self._requested: dict[Place, int] = {}

    def commit(self, offsets: Mapping[Place, int], *, asynchronous: bool) -> None:
        """Commits those that are not what was asked for last."""
        changed = {
            place: offset
            for place, offset in offsets.items()
            if self._requested.get(place) != offset
        }
        if not changed:
            return
        started_s = time.monotonic()
        self._requested.update(changed)
        try:
            with errors_of(f"commit in group {self._group_id!r}"):
                self.client.commit(
                    offsets=[partition(place, offset) for place, offset in changed.items()],
                    asynchronous=asynchronous,
                )
        except PenstockError:
            self._on_refused(changed)
            raise
        if not asynchronous:
            self._metrics.commits += 1
            self._metrics.commit_latency_ms = (time.monotonic() - started_s) * 1000

    def commit_quietly(self, offsets: Mapping[Place, int], *, asynchronous: bool = False) -> None:
        """A commit that fails repeats messages later; it must not end the loop now."""
        try:
            self.commit(offsets, asynchronous=asynchronous)
        except PenstockError as error:
            LOGGER.warning("commit failed group=%s error=%s", self._group_id, error)

    def forget(self, place: Place) -> None:
        self._requested.pop(place, None)

    def on_commit(self, error: Any, partitions: list[Any]) -> None:
        """librdkafka's report of an asynchronous commit."""
        if error is None:
            self._metrics.commits += 1
        else:
            self._on_refused({(one.topic, one.partition): 0 for one in partitions})

    def _on_refused(self, places: Mapping[Place, object]) -> None:
        self._metrics.commit_errors += 1
        for place in places:
            self.forget(place)
