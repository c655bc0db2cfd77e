"""The metadata file: one SQLite database that several processes of one machine share. Blocking; one thread calls it.

Every commit is one transaction at one revision, on disk before it is answered. A lease ends when another
process sees it overdue: whoever still runs is never put out by its own slowness.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import uniform
from time import monotonic, sleep
from typing import Final, TypeVar

from penstock.metadata.sqlite.filesystems import network_file_system
from penstock.metadata.store import (
    Ambiguous,
    Change,
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
    StoreError,
    StoreFull,
    Write,
    refuse_doubles,
)

FORMAT: Final = 1
_TRIM_EVERY: Final = 512  # revisions
_PAUSES_S: Final = (0.0005, 0.0015)  # between two attempts to take the write lock
_LAST: Final = "\U0010ffff"  # sorts after every key

T = TypeVar("T")

_SCHEMA: Final = """
CREATE TABLE state (only INTEGER PRIMARY KEY CHECK (only = 1), format INTEGER NOT NULL,
  revision INTEGER NOT NULL, trimmed INTEGER NOT NULL, next_lease INTEGER NOT NULL);
CREATE TABLE kv (key TEXT PRIMARY KEY, value BLOB NOT NULL, create_rev INTEGER NOT NULL,
  mod_rev INTEGER NOT NULL, lease INTEGER) WITHOUT ROWID;
CREATE INDEX kv_lease ON kv (lease) WHERE lease IS NOT NULL;
CREATE TABLE changes (rev INTEGER NOT NULL, key TEXT NOT NULL, deleted INTEGER NOT NULL,
  PRIMARY KEY (rev, key)) WITHOUT ROWID;
CREATE TABLE lease (id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, ttl_ms INTEGER NOT NULL,
  deadline_ms INTEGER NOT NULL);
INSERT INTO state VALUES (1, 1, 1, 0, 1);
"""
_CHANGED: Final = """
SELECT c.rev, c.key, c.deleted, kv.value, kv.create_rev, kv.mod_rev, kv.lease
FROM changes AS c LEFT JOIN kv ON kv.key = c.key
WHERE c.rev > ? AND c.key >= ? AND c.key < ? ORDER BY c.rev, c.key
"""


class SqliteFile:
    """Three connections: one commits (each commit is synced), one keeps leases alive (not synced: a
    lease need not outlive the machine), one reads. `data_version` shows a connection the writes of
    others only, so the reader never writes."""

    def __init__(
        self,
        path: Path,
        *,
        monotonic_ms: Callable[[], int],
        boot_id: str,
        busy_ms: int,
        changes_max: int,
    ) -> None:
        self._path = path
        self._now_ms = monotonic_ms
        self._boot_id = boot_id
        self._busy_s = busy_ms / 1000
        self._changes_max = changes_max
        self._own_leases: set[LeaseId] = set()
        with self._explained():
            self._refuse_network_file_system()
            self._open()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))  # it will hold credentials
        with ExitStack() as opened:
            self._db = self._connect("FULL", opened)
            self._when_free(self._use_wal)
            self._create_schema()
            self._lease_db = self._connect("NORMAL", opened)
            self._read_db = self._connect("NORMAL", opened, busy_s=self._busy_s)
            opened.pop_all()  # all is well: they stay open

    def _use_wal(self) -> None:
        """Brokers that start together on a new file meet here: one needs the file for itself."""
        if self._db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            self._db.execute("PRAGMA journal_mode = WAL")

    def _when_free(self, execute: Callable[[], T]) -> T:
        """Execute what needs the write lock, again and again until no other process has the lock.

        SQLite's own wait looks every 100 ms. Beside a process that commits without pause, the
        lock is free for moments only, and that wait misses them for seconds: longer than a lease.
        """
        give_up_s = monotonic() + self._busy_s
        while True:
            try:
                return execute()
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or monotonic() >= give_up_s:
                    raise
            self._pause()

    def _pause(self) -> None:
        sleep(uniform(*_PAUSES_S))

    def _connect(
        self, synchronous: str, opened: ExitStack, *, busy_s: float = 0
    ) -> sqlite3.Connection:
        """Open a connection. One that writes does not wait by itself: `_when_free` does."""
        db = sqlite3.connect(
            self._path, timeout=busy_s, isolation_level=None, check_same_thread=False
        )
        opened.callback(db.close)
        self._when_free(lambda: db.execute(f"PRAGMA synchronous = {synchronous}"))
        return db

    def _create_schema(self) -> None:
        with self._writing() as db:
            exists = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
            if not exists:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
            found = db.execute("SELECT format FROM state").fetchone()[0]
        if found != FORMAT:
            raise StoreError(
                f"metadata store {self._path} has format {found}; this version understands {FORMAT}: upgrade it"
            )

    def _refuse_network_file_system(self) -> None:
        kind = network_file_system(self._path.parent)
        if kind is not None:
            raise StoreError(
                f"metadata store {self._path} is on a network file system ({kind}), where SQLite's locks "
                "do not hold: put it on a local disk"
            )

    def close(self) -> None:
        for db in (self._read_db, self._lease_db, self._db):
            db.close()

    # reading

    def snapshot(self, prefix: str) -> Snapshot:
        with self._explained(), _reading(self._read_db) as db:
            revision = _revision(db)
            rows = db.execute(
                "SELECT key, value, create_rev, mod_rev, lease FROM kv WHERE key >= ? AND key < ?",
                (prefix, prefix + _LAST),
            )
            make = Entry._make
            return Snapshot(revision, {row[0]: make(row[1:]) for row in rows})

    def read(self, key: str) -> Entry | None:
        with self._explained():
            row = self._read_db.execute(
                "SELECT value, create_rev, mod_rev, lease FROM kv WHERE key = ?", (key,)
            ).fetchone()
            return Entry._make(row) if row else None

    def changes_after(
        self, prefix: str, after: Revision, seen_version: int
    ) -> tuple[int, Changes | Reload | None]:
        """What changed, if anything did, and the `data_version` to ask with next time."""
        with self._explained():
            self._end_overdue_leases()
            version: int = self._read_db.execute("PRAGMA data_version").fetchone()[0]
            if version == seen_version:
                return version, None
            with _reading(self._read_db) as db:
                return version, _changes(db, prefix, after)

    # writing

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Committed | Conflict:
        refuse_doubles(writes)
        with self._explained(), self._writing() as db:
            failed = tuple(compare.key for compare in compares if not _holds(db, compare))
            if failed:
                return Conflict(_revision(db), failed)
            revision = Revision(_revision(db) + 1)
            written = [self._write(db, revision, write) for write in writes]
            if not any(written):
                return Committed(Revision(revision - 1))
            self._advance(db, revision)
            return Committed(revision)

    def _write(self, db: sqlite3.Connection, revision: Revision, write: Write) -> bool:
        match write:
            case Put(key, value, lease):
                if lease is not None and not _lease_exists(db, lease):
                    raise LeaseGone(f"lease {lease} has ended; {key} was not written")
                db.execute(
                    "INSERT INTO kv VALUES (?1, ?2, ?3, ?3, ?4) ON CONFLICT (key) DO UPDATE"
                    " SET value = ?2, mod_rev = ?3, lease = ?4",
                    (key, value, revision, lease),
                )
                db.execute("INSERT INTO changes VALUES (?, ?, 0)", (revision, key))
                return True
            case Delete(key):
                return _delete(db, revision, "key = ?", (key,))
            case DeletePrefix(prefix):
                return _delete(db, revision, "key >= ? AND key < ?", (prefix, prefix + _LAST))

    def _advance(self, db: sqlite3.Connection, revision: Revision) -> None:
        db.execute("UPDATE state SET revision = ?", (revision,))
        if revision % _TRIM_EVERY == 0:
            oldest_kept = db.execute(
                "SELECT rev FROM changes ORDER BY rev DESC LIMIT 1 OFFSET ?", (self._changes_max,)
            ).fetchone()
            if oldest_kept:
                db.execute("DELETE FROM changes WHERE rev <= ?", oldest_kept)
                db.execute("UPDATE state SET trimmed = ?", oldest_kept)

    # leases

    def grant(self, ttl_ms: int) -> LeaseId:
        with self._explained(), self._writing() as db:
            lease = LeaseId(db.execute("SELECT next_lease FROM state").fetchone()[0])
            db.execute("UPDATE state SET next_lease = next_lease + 1")
            db.execute(
                "INSERT INTO lease VALUES (?, ?, ?, ?)",
                (lease, self._boot_id, ttl_ms, self._now_ms() + ttl_ms),
            )
        self._own_leases.add(lease)
        return lease

    def keep_alive(self, lease: LeaseId) -> int:
        with self._explained():
            kept = self._when_free(
                lambda: self._lease_db.execute(
                    "UPDATE lease SET deadline_ms = ? + ttl_ms WHERE id = ? AND boot_id = ? RETURNING ttl_ms",
                    (self._now_ms(), lease, self._boot_id),
                ).fetchall()
            )
            return int(kept[0][0]) if kept else 0

    def revoke(self, lease: LeaseId) -> None:
        self._own_leases.discard(lease)
        with self._explained(), self._writing() as db:
            self._end(db, [lease])

    def _end_overdue_leases(self) -> None:
        if not self._overdue(self._read_db):
            return
        with self._writing() as db:
            self._end(db, self._overdue(db))

    def _overdue(self, db: sqlite3.Connection) -> list[LeaseId]:
        rows = db.execute(
            "SELECT id FROM lease WHERE boot_id != ? OR deadline_ms <= ?",
            (self._boot_id, self._now_ms()),
        )
        return [row[0] for row in rows if row[0] not in self._own_leases]

    def _end(self, db: sqlite3.Connection, leases: Sequence[LeaseId]) -> None:
        revision = Revision(_revision(db) + 1)
        changed = False
        for lease in leases:
            changed |= _delete(db, revision, "lease = ?", (lease,))
            db.execute("DELETE FROM lease WHERE id = ?", (lease,))
        if changed:
            self._advance(db, revision)

    # transactions and errors

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; what goes wrong in its last step leaves the outcome unknown."""
        db = self._db
        self._when_free(lambda: db.execute("BEGIN IMMEDIATE"))
        try:
            yield db
        except BaseException:
            if db.in_transaction:  # a full disk has rolled back by itself
                db.execute("ROLLBACK")
            raise
        try:
            self._finish(db)
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if _is_full(error):
                raise  # what could not be written has not happened
            raise Ambiguous(
                f"metadata store {self._path}: a commit failed half-way: {error}"
            ) from error

    def _finish(self, db: sqlite3.Connection) -> None:
        db.execute("COMMIT")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            kind = StoreFull if _is_full(error) else StoreError
            raise kind(f"metadata store {self._path} {_explanation(error)}") from error


def _is_full(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return _code(error) == sqlite3.SQLITE_FULL


def _explanation(error: sqlite3.Error | OSError) -> str:
    if isinstance(error, OSError):
        return f"cannot be written: {error.strerror}"
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "is locked by another program that does not let go; find it with: fuser"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"is damaged ({error}): restore it from a backup"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return f"cannot be written: {error}"
        case sqlite3.SQLITE_FULL:
            return "cannot be written: the disk is full"
        case _:
            return f"failed: {error}"


def _code(error: sqlite3.Error) -> int:
    """The kind of error, without its finer shades."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


@contextmanager
def _reading(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All reads within see one revision."""
    db.execute("BEGIN")
    try:
        yield db
    finally:
        db.execute("ROLLBACK")


def _revision(db: sqlite3.Connection) -> Revision:
    return Revision(db.execute("SELECT revision FROM state").fetchone()[0])


def _changes(db: sqlite3.Connection, prefix: str, after: Revision) -> Changes | Reload | None:
    revision, trimmed = db.execute("SELECT revision, trimmed FROM state").fetchone()
    if after < trimmed or after > revision:
        return Reload()
    if after == revision:
        return None
    found = []
    for rev, key, deleted, *entry in db.execute(_CHANGED, (after, prefix, prefix + _LAST)):
        gone = entry[1] is None
        if deleted and gone:
            found.append(Change(key, rev, None))
        elif not gone and entry[2] == rev:  # else a later row of the same key tells more
            found.append(Change(key, rev, Entry._make(entry)))
    return Changes(revision, found)


def _holds(db: sqlite3.Connection, compare: Compare) -> bool:
    row = db.execute(
        "SELECT mod_rev, create_rev FROM kv WHERE key = ?", (compare.key,)
    ).fetchone() or (0, 0)
    return compare.mod_revision in (None, row[0]) and compare.create_revision in (None, row[1])


def _lease_exists(db: sqlite3.Connection, lease: LeaseId) -> bool:
    return bool(db.execute("SELECT 1 FROM lease WHERE id = ?", (lease,)).fetchone())


def _delete(
    db: sqlite3.Connection, revision: Revision, where: str, arguments: tuple[object, ...]
) -> bool:
    rows = db.execute(f"DELETE FROM kv WHERE {where} RETURNING key", arguments).fetchall()
    db.executemany("INSERT INTO changes VALUES (?, ?, 1)", [(revision, row[0]) for row in rows])
    return bool(rows)
