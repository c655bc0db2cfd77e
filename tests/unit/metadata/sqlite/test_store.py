"""The SQLite store: the contract, and what is special about a file that processes share."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest

from penstock.metadata.sqlite.file import SqliteFile
from penstock.metadata.sqlite.filesystems import network_file_system
from penstock.metadata.sqlite.store import SqliteStore
from penstock.metadata.store import (
    Ambiguous,
    Committed,
    LeaseId,
    MetadataStore,
    Put,
    Reload,
    Revision,
    StoreError,
    StoreFull,
)
from tests.support.clocks import ManualClock
from tests.unit.metadata.store_contract import TTL_MS, StoreContract, committed, look, until


class TestSqliteStore(StoreContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.clock = ManualClock()
        self.path = tmp_path / "metadata.db"

    def open(self) -> MetadataStore:
        return SqliteStore(self.path, self.clock, boot_id="boot-1", poll_ms=1)

    def let_pass(self, elapsed_ms: int) -> None:
        self.clock.advance(elapsed_ms)


def run(
    path: Path, scenario: Callable[[SqliteStore], Awaitable[None]], boot_id: str = "boot-1"
) -> None:
    async def main() -> None:
        store = SqliteStore(path, ManualClock(), boot_id=boot_id, poll_ms=1, busy_ms=1)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    async def write(store: SqliteStore) -> None:
        await committed(store, Put("k", b"v"))

    async def read(store: SqliteStore) -> None:
        entry = await store.read("k")
        assert entry is not None
        assert entry.value == b"v"

    run(tmp_path / "new" / "metadata.db", write)
    run(tmp_path / "new" / "metadata.db", read)


def test_leases_of_another_boot_of_the_machine_have_ended(tmp_path: Path) -> None:
    async def before(store: SqliteStore) -> None:
        await committed(store, Put("held", b"", await store.grant(TTL_MS)))

    async def after(store: SqliteStore) -> None:
        await look(store)
        assert await store.read("held") is None

    run(tmp_path / "metadata.db", before)
    run(tmp_path / "metadata.db", after, boot_id="boot-2")


def test_a_store_does_not_end_its_own_leases_however_late_it_is(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = SqliteStore(tmp_path / "metadata.db", clock, boot_id="boot-1", poll_ms=1)
        lease = await store.grant(TTL_MS)
        await committed(store, Put("held", b"", lease))
        clock.advance(100 * TTL_MS)
        await look(store)
        assert await store.keep_alive(lease) == TTL_MS
        assert await store.read("held") is not None
        await store.close()

    asyncio.run(main())


def test_a_watcher_that_lags_too_far_behind_is_told_to_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.metadata.sqlite.file._TRIM_EVERY", 32)

    async def main() -> None:
        store = SqliteStore(
            tmp_path / "metadata.db", ManualClock(), boot_id="b", poll_ms=1, changes_max=10
        )
        revision = start = await committed(store, Put("k", b"0"))
        while revision % 32:
            revision = await committed(store, Put("k", b"1"))
        watch = store.watch("", start)
        assert isinstance(await anext(watch), Reload)
        with pytest.raises(StopAsyncIteration):
            await anext(watch)
        recent = store.watch("", Revision(revision - 5))
        assert [key for key, _, _ in await until(recent, revision)] == ["k"]
        assert isinstance(await anext(store.watch("", Revision(revision + 1))), Reload)
        await store.close()

    asyncio.run(main())


def test_a_commit_that_fails_in_its_last_step_is_ambiguous(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_before(_: SqliteFile, __: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def fail_after(_: SqliteFile, db: sqlite3.Connection) -> None:
        db.execute("COMMIT")
        raise sqlite3.OperationalError("disk I/O error")

    async def scenario(store: SqliteStore) -> None:
        await committed(store, Put("before", b""))
        for fail, key in ((fail_before, "lost"), (fail_after, "kept")):
            with monkeypatch.context() as patch:
                patch.setattr(SqliteFile, "_finish", fail)
                with pytest.raises(Ambiguous, match="failed half-way: disk I/O error"):
                    await store.commit([], [Put(key, b"")])
        assert (await store.snapshot("")).entries.keys() == {"before", "kept"}
        assert isinstance(await store.commit([], [Put("after", b"")]), Committed)

    run(tmp_path / "metadata.db", scenario)


def test_a_commit_without_room_has_not_happened_and_can_be_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with closing(sqlite3.connect(path)) as db:
        page_bytes = db.execute("PRAGMA page_size").fetchone()[0]

    def limit(file: SqliteFile, pages: int) -> None:
        file._db.execute(f"PRAGMA max_page_count = {pages}")

    async def scenario(store: SqliteStore) -> None:
        await committed(store, Put("before", b""))
        limit(store._file, 1)  # as many as there are
        with pytest.raises(StoreFull, match="cannot be written: the disk is full"):
            await store.commit([], [Put("large", bytes(4 * page_bytes))])
        assert (await store.snapshot("")).entries.keys() == {"before"}
        limit(store._file, 1 << 20)
        assert isinstance(await store.commit([], [Put("large", bytes(9))]), Committed)

    run(path, scenario)


def refusal(path: Path) -> str:
    async def scenario(store: SqliteStore) -> None:
        await store.snapshot("")

    with pytest.raises(StoreError) as refused:
        run(path, scenario)
    message = str(refused.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    path.write_bytes(b"these are the voyages of the starship" * 100)
    assert "is damaged" in refusal(path)


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await committed(store, *(Put(f"k/{number}", bytes(100)) for number in range(500)))

    path = tmp_path / "metadata.db"
    run(path, fill)
    content = bytearray(path.read_bytes())
    content[100:] = b"\xff" * (len(content) - 100)
    path.write_bytes(content)
    assert "is damaged" in refusal(path)


def test_brokers_that_start_together_on_a_new_file_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metadata.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("CREATE TABLE busy (it)")
    other.execute("BEGIN")
    other.execute("SELECT * FROM busy")  # a lock that forbids the change to WAL
    monkeypatch.setattr(SqliteFile, "_pause", lambda _: other.execute("ROLLBACK"))

    async def main() -> None:
        store = SqliteStore(path, ManualClock(), boot_id="boot-1", busy_ms=30)
        await committed(store, Put("k", b""))
        await store.close()

    asyncio.run(main())
    other.close()


WRITES: dict[str, Callable[[SqliteStore, LeaseId], Awaitable[object]]] = {
    "keep-alive": lambda store, lease: store.keep_alive(lease),
    "commit": lambda store, _: committed(store, Put("k", b"")),
    "grant": lambda store, _: store.grant(TTL_MS),
    "revoke": lambda store, lease: store.revoke(lease),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_writer_finds_the_moment_in_which_another_process_lets_go_of_the_lock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[SqliteStore, LeaseId], Awaitable[object]],
) -> None:
    """A process that commits without pause is without the lock for less than SQLite's own wait."""
    path = tmp_path / "metadata.db"
    pauses_s: list[float] = []

    async def main() -> None:
        store = SqliteStore(path, ManualClock(), boot_id="boot-1", busy_ms=2000)
        lease = await store.grant(TTL_MS)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")

        def let_go(pause_s: float) -> None:
            pauses_s.append(pause_s)
            if len(pauses_s) == 3:
                other.execute("ROLLBACK")

        monkeypatch.setattr("penstock.metadata.sqlite.file.sleep", let_go)
        await write(store, lease)
        other.close()
        await store.close()

    asyncio.run(main())
    assert len(pauses_s) == 3
    assert max(pauses_s) < 0.002


def test_a_locked_database_is_refused_after_a_while(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    with sqlite3.connect(path) as intruder:
        intruder.execute("BEGIN EXCLUSIVE")
        assert "is locked by another program" in refusal(path)
    intruder.close()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert "cannot be written" in refusal(tmp_path / "file" / "metadata.db")
    (tmp_path / "metadata.db").mkdir()
    assert "cannot be written" in refusal(tmp_path / "metadata.db")


def test_a_format_of_the_future_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"

    async def create(store: SqliteStore) -> None:
        await store.snapshot("")

    run(path, create)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE state SET format = 9")
    db.close()
    assert "has format 9; this version understands 1" in refusal(path)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        await store.close()
        with pytest.raises(StoreError, match="is closed"):
            await store.read("k")

    run(tmp_path / "metadata.db", scenario)


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    async def create(store: SqliteStore) -> None:
        await store.snapshot("")

    run(tmp_path / "metadata.db", create)
    assert (tmp_path / "metadata.db").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/data/q", "nfs4"),
        ("/data", "nfs4"),
        ("/database", None),
        ("/data/local/x", None),
        ("/my disk/x", "cifs"),
    ],
)
def test_network_file_systems_are_known_by_the_mount_that_holds_the_path(
    tmp_path: Path, path: str, expected: str | None
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\nserver:/x /data nfs4 rw 0 0\n/dev/sdb /data/local xfs rw 0 0\n"
        "//server/y /my\\040disk cifs rw 0 0\nbroken\n"
    )
    assert network_file_system(Path(path), mounts) == expected


def test_a_store_on_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.metadata.sqlite.file.network_file_system", lambda _: "nfs4")
    assert "network file system (nfs4)" in refusal(tmp_path / "metadata.db")


def test_without_a_list_of_mounts_every_place_is_taken_for_local(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "missing") is None
