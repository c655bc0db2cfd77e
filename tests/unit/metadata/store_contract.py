"""What every MetadataStore must do. A store's test class says how to open it and how time passes.

`other` is the same store as another process sees it. Scenarios are coroutines; `run` gives each a
fresh store and closes both views behind it.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from penstock.metadata.store import (
    Changes,
    Committed,
    Compare,
    Conflict,
    Delete,
    DeletePrefix,
    LeaseGone,
    LeaseId,
    MetadataStore,
    Put,
    Reload,
    Revision,
)

Scenario = Callable[[MetadataStore, MetadataStore], Awaitable[None]]
TTL_MS = 2_000
ABSENT = Revision(0)


class StoreContract(ABC):
    ttl_ms = TTL_MS

    @abstractmethod
    def open(self) -> MetadataStore:
        """Another view of the one store that this test has."""

    @abstractmethod
    def let_pass(self, elapsed_ms: int) -> None:
        """Time, as leases count it."""

    def run(self, scenario: Scenario) -> None:
        async def main() -> None:
            store, other = self.open(), self.open()
            try:
                await scenario(store, other)
            finally:
                await store.close()
                await other.close()

        asyncio.run(main())

    def test_a_key_is_read_back_with_the_revisions_of_its_writes(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            assert await store.read("k") is None
            first = await committed(store, Put("k", b"1"))
            second = await committed(other, Put("k", b"2"))
            assert second > first
            entry = await store.read("k")
            assert entry == (b"2", first, second, None)
            await committed(store, Delete("k"))
            assert await other.read("k") is None
            again = await committed(store, Put("k", b"3"))
            assert await other.read("k") == (b"3", again, again, None)

        self.run(scenario)

    def test_a_snapshot_holds_the_keys_of_its_prefix_at_one_revision(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            revision = await committed(
                store,
                Put("a/1", b"x"),
                Put("a/2", b"y"),
                Put("ab", b"z"),
                Put("b/é\N{SNOWMAN}", b""),
            )
            assert (await store.snapshot("a/")).entries.keys() == {"a/1", "a/2"}
            everything = await other.snapshot("")
            assert everything.entries.keys() == {"a/1", "a/2", "ab", "b/é\N{SNOWMAN}"}
            assert everything.revision == revision
            assert everything.entries["a/1"].mod_revision == revision
            assert (await store.snapshot("nothing/")).entries == {}

        self.run(scenario)

    def test_a_commit_happens_only_if_every_compare_holds(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            created = await committed(store, Put("k", b"1"))
            modified = await committed(store, Put("k", b"2"))
            holding = [
                [Compare("k", mod_revision=modified)],
                [Compare("k", create_revision=created)],
                [Compare("gone", mod_revision=ABSENT), Compare("gone", create_revision=ABSENT)],
            ]
            failing = [
                [Compare("k", mod_revision=created)],
                [Compare("k", create_revision=modified)],
                [Compare("k", mod_revision=ABSENT)],
                [Compare("gone", mod_revision=created)],
                [Compare("k", create_revision=created), Compare("k", mod_revision=ABSENT)],
            ]
            for number, compares in enumerate(failing):
                outcome = await other.commit(compares, [Put(f"failed/{number}", b"")])
                assert isinstance(outcome, Conflict)
            for number, compares in enumerate(holding):
                outcome = await other.commit(compares, [Put(f"held/{number}", b"")])
                assert isinstance(outcome, Committed)
            assert (await store.snapshot("failed/")).entries == {}
            assert len((await store.snapshot("held/")).entries) == len(holding)

        self.run(scenario)

    def test_all_writes_of_a_commit_share_one_revision(self) -> None:
        async def scenario(store: MetadataStore, _: MetadataStore) -> None:
            await committed(store, Put("p/1", b""), Put("p/2", b""), Put("q", b""), Put("r", b""))
            revision = await committed(
                store, Put("new", b"n"), Put("q", b"2"), Delete("r"), DeletePrefix("p/")
            )
            snapshot = await store.snapshot("")
            assert snapshot.revision == revision
            assert {key: entry.mod_revision for key, entry in snapshot.entries.items()} == {
                "new": revision,
                "q": revision,
            }

        self.run(scenario)

    def test_a_commit_that_changes_nothing_takes_no_revision(self) -> None:
        async def scenario(store: MetadataStore, _: MetadataStore) -> None:
            revision = await committed(store, Put("k", b"1"))
            assert await committed(store, Delete("gone"), DeletePrefix("none/")) == revision
            assert await store.commit([Compare("k", mod_revision=revision)], []) == (revision,)

        self.run(scenario)

    @pytest.mark.parametrize(
        "writes",
        [
            [Put("k", b"1"), Put("k", b"2")],
            [Put("k", b"1"), Delete("k")],
            [Put("p/k", b"1"), DeletePrefix("p/")],
        ],
    )
    def test_a_key_cannot_be_written_twice_in_a_commit(
        self, writes: list[Put | Delete | DeletePrefix]
    ) -> None:
        async def scenario(store: MetadataStore, _: MetadataStore) -> None:
            with pytest.raises(ValueError, match="only once"):
                await store.commit([], writes)
            assert (await store.snapshot("")).entries == {}

        self.run(scenario)

    def test_of_many_writers_who_compare_each_change_is_made_once(self) -> None:
        async def add_one(store: MetadataStore, turns: int) -> None:
            done = 0
            while done < turns:
                entry = await store.read("counter")
                revision = entry.mod_revision if entry else ABSENT
                value = str(int(entry.value) + 1 if entry else 1).encode()
                outcome = await store.commit(
                    [Compare("counter", mod_revision=revision)], [Put("counter", value)]
                )
                done += isinstance(outcome, Committed)

        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            await asyncio.gather(*(add_one(view, 10) for view in (store, other) * 2))
            entry = await store.read("counter")
            assert entry is not None
            assert entry.value == b"40"

        self.run(scenario)

    def test_a_watcher_sees_what_another_process_writes_in_order(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            start = await committed(store, Put("w/old", b""), Put("w/gone", b""))
            await committed(store, Put("w/1", b"one"), Put("elsewhere", b""))
            watch = store.watch("w/", start)
            seen = await until(watch, await committed(other, Put("w/2", b"two"), Delete("w/gone")))
            assert {key: value for key, value, _ in seen} == {
                "w/1": b"one",
                "w/2": b"two",
                "w/gone": None,
            }
            revisions = [revision for _, _, revision in seen]
            assert revisions == sorted(revisions)
            assert revisions[0] > start
            seen = await until(watch, await committed(other, Put("w/1", b"three")))
            assert [key for key, _, _ in seen] == ["w/1"]

        self.run(scenario)

    def test_a_watcher_sees_its_own_stores_writes_too(self) -> None:
        async def scenario(store: MetadataStore, _: MetadataStore) -> None:
            start = (await store.snapshot("")).revision
            watch = store.watch("", start)
            for number in range(5):
                revision = await committed(store, Put("k", str(number).encode()))
                seen = await until(watch, revision)
                assert seen == [("k", str(number).encode(), revision)]

        self.run(scenario)

    def test_what_a_watcher_ends_up_with_is_the_snapshot(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            start = (await store.snapshot("")).revision
            revision = start
            for number in range(60):
                view = (store, other)[number % 2]
                key = f"k/{number % 7}"
                write = Delete(key) if number % 5 == 4 else Put(key, str(number).encode())
                revision = await committed(view, write)
            seen = await until(other.watch("", start), revision)
            held = {key: value for key, value, _ in seen}
            snapshot = await store.snapshot("")
            assert {key: value for key, value in held.items() if value is not None} == {
                key: entry.value for key, entry in snapshot.entries.items()
            }

        self.run(scenario)

    def test_two_watchers_of_one_store_do_not_disturb_each_other(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            start = (await store.snapshot("")).revision
            first, second = store.watch("", start), store.watch("k", start)
            revision = await committed(other, Put("k", b"1"))
            assert await until(first, revision) == await until(second, revision)

        self.run(scenario)

    def test_a_lease_that_is_kept_alive_holds_its_keys(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            lease = await store.grant(self.ttl_ms)
            await committed(store, Put("held", b"", lease))
            for _ in range(5):
                self.let_pass(self.ttl_ms // 2)
                assert 0 < await store.keep_alive(lease) <= self.ttl_ms
                await look(other)
            entry = await other.read("held")
            assert entry is not None
            assert entry.lease == lease

        self.run(scenario)

    def test_a_lease_that_is_not_kept_alive_ends_and_takes_its_keys_along(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            lease = await store.grant(self.ttl_ms)
            revision = await committed(store, Put("held", b"", lease), Put("free", b""))
            watch = other.watch("", revision)
            self.let_pass(self.ttl_ms + 1)
            seen = await anext(watch)
            assert isinstance(seen, Changes)
            assert [(change.key, change.entry) for change in seen.changes] == [("held", None)]
            assert await store.keep_alive(lease) <= 0
            assert await store.read("held") is None
            assert await store.read("free") is not None
            with pytest.raises(LeaseGone):
                await store.commit([], [Put("late", b"", lease)])
            assert await other.read("late") is None

        self.run(scenario)

    def test_a_revoked_lease_ends_at_once(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            lease = await store.grant(self.ttl_ms)
            revision = await committed(store, Put("a", b"", lease), Put("b", b"", lease))
            watch = store.watch("", revision)
            await other.revoke(lease)
            assert {key for key, value, _ in await until(watch, Revision(revision + 1))} == {
                "a",
                "b",
            }
            assert await store.keep_alive(lease) <= 0
            await store.revoke(lease)
            await store.revoke(LeaseId(999_999))

        self.run(scenario)

    def test_a_key_put_again_without_its_lease_is_free_of_it(self) -> None:
        async def scenario(store: MetadataStore, _: MetadataStore) -> None:
            lease = await store.grant(self.ttl_ms)
            await committed(store, Put("k", b"1", lease))
            await committed(store, Put("k", b"2"))
            await store.revoke(lease)
            entry = await store.read("k")
            assert entry is not None
            assert (entry.value, entry.lease) == (b"2", None)

        self.run(scenario)

    def test_leases_are_never_given_twice(self) -> None:
        async def scenario(store: MetadataStore, other: MetadataStore) -> None:
            first = await store.grant(self.ttl_ms)
            await store.revoke(first)
            assert await other.grant(self.ttl_ms) != first

        self.run(scenario)


async def committed(store: MetadataStore, *writes: Put | Delete | DeletePrefix) -> Revision:
    outcome = await store.commit([], writes)
    assert isinstance(outcome, Committed)
    return outcome.revision


async def until(
    watch: AsyncIterator[Changes | Reload], revision: Revision
) -> list[tuple[str, bytes | None, Revision]]:
    """(key, value, revision) of all changes up to `revision`."""
    seen: list[tuple[str, bytes | None, Revision]] = []
    async for found in watch:
        assert isinstance(found, Changes)
        seen += [
            (change.key, change.entry.value if change.entry else None, change.revision)
            for change in found.changes
        ]
        if found.revision >= revision:
            break
    return seen


async def look(store: MetadataStore) -> None:
    """One look of a watcher, which is when a store may find that leases have ended."""
    revision = (await store.snapshot("")).revision
    watch = store.watch("", Revision(revision - 1))
    await anext(watch)
