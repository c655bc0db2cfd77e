"""Where cluster metadata lives: read, compare-and-set, lease, watch. Every store passes one contract test.

Revisions count commits of the whole store and never go back. What a key held between two looks of
a watcher may be skipped; what it holds now never is.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, NewType, Protocol

Revision = NewType("Revision", int)
LeaseId = NewType("LeaseId", int)

NO_REVISION = Revision(0)


class Entry(NamedTuple):
    value: bytes
    create_revision: Revision
    mod_revision: Revision
    lease: LeaseId | None


class Snapshot(NamedTuple):
    revision: Revision
    entries: Mapping[str, Entry]


class Compare(NamedTuple):
    """Holds while the key was created, or last written, at this revision. Revision 0: the key is absent."""

    key: str
    mod_revision: Revision | None = None
    create_revision: Revision | None = None


class Put(NamedTuple):
    key: str
    value: bytes
    lease: LeaseId | None = None


class Delete(NamedTuple):
    key: str


class DeletePrefix(NamedTuple):
    prefix: str


Write = Put | Delete | DeletePrefix


class Committed(NamedTuple):
    revision: Revision


class Conflict(NamedTuple):
    """Nothing was written. `keys` are those whose compare failed, as far as the store knows."""

    revision: Revision
    keys: tuple[str, ...] = ()


class Change(NamedTuple):
    """What a key holds since `revision`; no entry: it was deleted then."""

    key: str
    revision: Revision
    entry: Entry | None


class Changes(NamedTuple):
    """All that changed up to `revision`, in the order of the changes."""

    revision: Revision
    changes: Sequence[Change]


class Reload(NamedTuple):
    """The changes that were asked for are no longer kept: take a snapshot and watch from there."""


class StoreError(Exception):
    """The store cannot do it. The message names the store and the remedy."""


class StoreFull(StoreError):
    """There is no room for the commit, which has not happened."""


class CommitTooLarge(StoreError):
    """The commit has more or larger writes than the store takes at once. It has not happened."""


class Ambiguous(StoreError):
    """The commit may have happened, or may yet happen: read before anything else."""


class LeaseGone(StoreError):
    """The lease has ended, and its keys with it."""


class MetadataStore(Protocol):
    async def snapshot(self, prefix: str) -> Snapshot:
        """Every key that begins with `prefix`, all at one revision."""

    async def read(self, key: str) -> Entry | None:
        """What the key holds now (linearizable)."""

    async def commit(
        self, compares: Sequence[Compare], writes: Sequence[Write]
    ) -> Committed | Conflict:
        """All writes at one revision if every compare holds, else none. No key may be written twice.

        Raises Ambiguous when nobody knows, LeaseGone when a Put names a lease that has ended,
        CommitTooLarge when fewer writes at once might do.
        """

    async def grant(self, ttl_ms: int) -> LeaseId:
        """A lease: when it ends, so do the keys that were put under it."""

    async def keep_alive(self, lease: LeaseId) -> int:
        """Milliseconds that the lease lives on from now; 0 or less: it is gone."""

    async def revoke(self, lease: LeaseId) -> None:
        """Ends the lease and its keys at once. To revoke one that is gone is no error."""

    def watch(self, prefix: str, after: Revision) -> AsyncIterator[Changes | Reload]:
        """What changed after that revision, for ever; after a Reload, nothing more."""

    async def close(self) -> None:
        """Lets go of the store. Leases live on until they end."""


def refuse_doubles(writes: Sequence[Write]) -> None:
    """What every store asks of a commit."""
    keys = [write.key for write in writes if not isinstance(write, DeletePrefix)]
    prefixes = [write.prefix for write in writes if isinstance(write, DeletePrefix)]
    covered = any(name.startswith(prefix) for prefix in prefixes for name in keys)
    if len(set(keys)) < len(keys) or len(set(prefixes)) < len(prefixes) or covered:
        raise ValueError("a key may be written only once in a commit")
