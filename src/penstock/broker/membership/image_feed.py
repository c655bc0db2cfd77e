"""Keeps the image of the cluster up to date from the store, in the order of revisions, and tells who listens.

Only the watch changes the image: what this broker itself committed arrives the same way, at once.
"""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Final

from penstock.metadata.image import ClusterImage, Delta
from penstock.metadata.store import (
    NO_REVISION,
    Change,
    Changes,
    MetadataStore,
    Reload,
    Revision,
    Snapshot,
    StoreError,
)
from penstock.metadata.values import CONTROLLER

_log = logging.getLogger(__name__)

_SLICE: Final = 500  # keys decoded before other work gets its turn
_RETRY_S: Final = 0.5

Listener = Callable[[Delta], None]


class ImageFeed:
    def __init__(self, store: MetadataStore) -> None:
        self.image = ClusterImage()
        self._store = store
        self._listeners: list[Listener] = []
        self._waiting: list[tuple[Revision, asyncio.Future[None]]] = []

    def listen(self, listener: Listener) -> None:
        """`listener` is called after each change, and must not wait."""
        self._listeners.append(listener)

    async def load(self) -> None:
        self.image = await self._loaded()

    async def run(self) -> None:
        """For ever. What cannot be understood ends it: better no view than a wrong one."""
        while True:
            try:
                await self._follow()
            except StoreError as error:
                _log.warning("metadata-unreachable error=%s", error)
                await asyncio.sleep(_RETRY_S)

    async def applied(self, revision: Revision) -> None:
        """Returns when the image holds everything up to `revision`."""
        if self.image.revision >= revision:
            return
        arrived = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, arrived))
        await arrived

    async def catch_up(self) -> None:
        """Returns when the image holds everything that was committed before this call."""
        await self.applied((await self._store.snapshot(CONTROLLER)).revision)

    async def _follow(self) -> None:
        async for found in self._store.watch("", self.image.revision):
            if isinstance(found, Reload):
                await self._reload()
            else:
                self._publish(self.image.apply(found))

    async def _reload(self) -> None:
        _log.info("metadata-reload revision=%d", self.image.revision)
        old, self.image = self.image, await self._loaded()
        self._publish(self.image.since(old))

    async def _loaded(self) -> ClusterImage:
        snapshot = await self._store.snapshot("")
        image = ClusterImage()
        with _no_collection():
            for changes in _slices(snapshot):
                image.apply(Changes(NO_REVISION, changes))
                await asyncio.sleep(0)
        image.apply(Changes(snapshot.revision, ()))
        return image

    def _publish(self, delta: Delta) -> None:
        if not delta.is_empty:
            for listener in self._listeners:
                self._tell(listener, delta)
        revision = self.image.revision
        for wanted, arrived in self._waiting:
            if wanted <= revision and not arrived.done():
                arrived.set_result(None)
        self._waiting = [it for it in self._waiting if not it[1].done()]

    def _tell(self, listener: Listener, delta: Delta) -> None:
        """A listener's error is a bug, and no reason for all others to see nothing any more."""
        try:
            listener(delta)
        except Exception:  # noqa: BLE001  # logged, with its trace
            _log.exception("listener-failed revision=%d", delta.revision)


def _slices(snapshot: Snapshot) -> Iterator[Sequence[Change]]:
    changes = (Change(key, entry.mod_revision, entry) for key, entry in snapshot.entries.items())
    while piece := list(islice(changes, _SLICE)):
        yield piece


@contextmanager
def _no_collection() -> Iterator[None]:
    """Loading makes a great many objects and no garbage: to search them for it doubles the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
