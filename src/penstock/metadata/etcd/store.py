"""The metadata store of a cluster: etcd behind the event loop. What it may have done, and nobody knows, it says."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any, Final

from penstock.metadata.etcd import messages
from penstock.metadata.etcd.faults import Compacted
from penstock.metadata.etcd.keys import Keys
from penstock.metadata.etcd.lease import LeaseKeeper
from penstock.metadata.etcd.rpc import GRANT, KEEP_ALIVE, RANGE, REVOKE, TXN, EtcdClient
from penstock.metadata.etcd.settings import EtcdSettings
from penstock.metadata.etcd.watch import Watcher
from penstock.metadata.store import (
    Changes,
    Committed,
    Compare,
    Conflict,
    Delete,
    DeletePrefix,
    Entry,
    LeaseGone,
    LeaseId,
    Put,
    Reload,
    Revision,
    Snapshot,
    Write,
    refuse_doubles,
)

_log = logging.getLogger(__name__)

_PAGE_KEYS: Final = 1000


class EtcdStore:
    """Implements MetadataStore for the brokers of a cluster. Opened by the first call, in the loop of the caller."""

    def __init__(
        self,
        settings: EtcdSettings,
        *,
        first_member: int = 0,
        timeout_ms: int = 2000,
        patience_ms: int = 5000,
        page_keys: int = _PAGE_KEYS,
    ) -> None:
        self._keys = Keys(settings.prefix)
        self._client = EtcdClient(
            settings,
            first_member=first_member,
            timeout_s=timeout_ms / 1000,
            patience_s=patience_ms / 1000,
        )
        self._keeper = LeaseKeeper(settings, first_member)
        self._page_keys = page_keys
        self._watchers: set[Watcher] = set()

    async def snapshot(self, prefix: str) -> Snapshot:
        while True:
            try:
                return await self._snapshot(prefix)
            except Compacted:  # under our hands: what is new is there
                _log.info("metadata-snapshot-again reason=%s", "compacted")

    async def read(self, key: str) -> Entry | None:
        response = await self._client.call(RANGE, messages.RangeRequest(key=self._keys.path(key)))
        return self._keys.entry(response.kvs[0]) if response.kvs else None

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        refuse_doubles(writes)
        names = list(dict.fromkeys(compare.key for compare in compares))
        request = messages.TxnRequest(
            compare=[sent for compare in compares for sent in self._compare(compare)],
            success=[self._write(write) for write in writes],
            failure=[self._look(name) for name in names],
        )
        response = await self._client.call(TXN, request, is_repeatable=False)
        revision = Revision(response.header.revision)
        if response.succeeded:
            if not any(isinstance(write, Put) for write in writes):
                self._nudge()
            return Committed(revision)
        self._nudge()
        found = dict(zip(names, map(_revisions, response.responses), strict=True))
        failed = (compare.key for compare in compares if not _holds(compare, found[compare.key]))
        return Conflict(revision, tuple(dict.fromkeys(failed)))

    async def grant(self, ttl_ms: int) -> LeaseId:
        ttl_s = -(-ttl_ms // 1000)
        response = await self._client.call(GRANT, messages.GrantRequest(ttl=ttl_s))
        return LeaseId(response.id)

    async def keep_alive(self, lease: LeaseId) -> int:
        response = await self._client.call(KEEP_ALIVE, messages.KeepAliveRequest(id=lease))
        return int(response.ttl) * 1000

    def renew(self, lease: LeaseId) -> int:
        """As `keep_alive`, but blocking, and from any thread: it needs no event loop."""
        return self._keeper.renew(lease)

    async def revoke(self, lease: LeaseId) -> None:
        try:
            await self._client.call(REVOKE, messages.RevokeRequest(id=lease))
        except LeaseGone:
            return

    async def watch(self, prefix: str, after: Revision) -> AsyncIterator[Changes | Reload]:
        watcher = Watcher(self._client, self._keys, prefix, after)
        self._watchers.add(watcher)
        try:
            async with aclosing(watcher.run()) as found:
                async for changes in found:
                    yield changes
        finally:
            self._watchers.discard(watcher)

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await self._client.close()
        await asyncio.to_thread(self._keeper.close)  # a thread may be at it

    async def _snapshot(self, prefix: str) -> Snapshot:
        """Page by page, all at the revision of the first."""
        key, end = self._keys.span(prefix)
        revision = 0
        entries: dict[str, Entry] = {}
        while True:
            request = messages.RangeRequest(
                key=key, range_end=end, limit=self._page_keys, revision=revision
            )
            page = await self._client.call(RANGE, request)
            revision = revision or page.header.revision
            entries.update((self._keys.name(kv.key), self._keys.entry(kv)) for kv in page.kvs)
            if not page.more:
                return Snapshot(Revision(revision), entries)
            key = page.kvs[-1].key + b"\0"

    def _nudge(self) -> None:
        """The revision may be one that brought our watchers nothing, and somebody may wait for it."""
        for watcher in self._watchers:
            watcher.nudge()

    # what etcd is sent

    def _compare(self, compare: Compare) -> list[Any]:
        key = self._keys.path(compare.key)
        sent = []
        if compare.mod_revision is not None:
            target = messages.TARGET_MOD_REVISION
            revision = compare.mod_revision
            sent.append(messages.Compare(target=target, key=key, mod_revision=revision))
        if compare.create_revision is not None:
            target = messages.TARGET_CREATE_REVISION
            revision = compare.create_revision
            sent.append(messages.Compare(target=target, key=key, create_revision=revision))
        return sent

    def _write(self, write: Write) -> Any:
        match write:
            case Put(key, value, lease):
                put = messages.PutRequest(key=self._keys.path(key), value=value, lease=lease or 0)
                return messages.Operation(put=put)
            case Delete(key):
                return messages.Operation(delete=messages.DeleteRequest(key=self._keys.path(key)))
            case DeletePrefix(prefix):
                first, end = self._keys.span(prefix)
                delete = messages.DeleteRequest(key=first, range_end=end)
                return messages.Operation(delete=delete)

    def _look(self, name: str) -> Any:
        """For a commit that fails: at which revisions the compared key is."""
        question = messages.RangeRequest(key=self._keys.path(name), keys_only=True)
        return messages.Operation(range=question)


def _revisions(outcome: Any) -> tuple[int, int]:
    kvs = outcome.range.kvs
    return (kvs[0].mod_revision, kvs[0].create_revision) if kvs else (0, 0)


def _holds(compare: Compare, revisions: tuple[int, int]) -> bool:
    mod_revision, create_revision = revisions
    return compare.mod_revision in (None, mod_revision) and compare.create_revision in (
        None,
        create_revision,
    )
