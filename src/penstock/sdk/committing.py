"""Commits of a consumer: asked for once each, measured, and asked for again when they were refused."""

import time
from collections.abc import Mapping
from typing import Any, Final

from penstock.model.errors import ErrorCode
from penstock.sdk.errors import PenstockError, from_kafka
from penstock.sdk.librdkafka import LOGGER, errors_of
from penstock.sdk.message import Place
from penstock.sdk.metrics import ConsumerMetrics
from penstock.sdk.positions import partition

_STALE_PATIENCE_S: Final = 5.0  # in which the next heartbeat tells a member its epoch
_STALE_PAUSE_S: Final = 0.05


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
            self._ask_until_known(changed, asynchronous=asynchronous)
        except BaseException:
            self._on_refused(changed)
            raise
        if not asynchronous:
            self._metrics.commits += 1
            self._metrics.commit_latency_ms = (time.monotonic() - started_s) * 1000

    def _ask_until_known(self, offsets: Mapping[Place, int], *, asynchronous: bool) -> None:
        """Repeat a commit while the group has moved on and this member, still in it, does not know yet."""
        deadline_s = time.monotonic() + _STALE_PATIENCE_S
        while True:
            try:
                return self._ask(offsets, asynchronous=asynchronous)
            except PenstockError as error:
                is_late = time.monotonic() > deadline_s
                if asynchronous or error.code != ErrorCode.STALE_MEMBER_EPOCH or is_late:
                    raise
            time.sleep(_STALE_PAUSE_S)

    def _ask(self, offsets: Mapping[Place, int], *, asynchronous: bool) -> None:
        what = f"commit in group {self._group_id!r}"
        with errors_of(what):
            done = self.client.commit(
                offsets=[partition(place, offset) for place, offset in offsets.items()],
                asynchronous=asynchronous,
            )
        for one in done or ():  # the request may succeed and a partition fail
            if one.error is not None:
                raise from_kafka(one.error, f"{what}: {one.topic}-{one.partition}")

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
        refused = [one for one in partitions if error is not None or one.error is not None]
        if refused or error is not None:
            self._on_refused({(one.topic, one.partition): 0 for one in refused})
        else:
            self._metrics.commits += 1

    def _on_refused(self, places: Mapping[Place, object]) -> None:
        self._metrics.commit_errors += 1
        for place in places:
            self.forget(place)
