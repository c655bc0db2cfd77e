"""The etcd store when members stop, die, forget or elect: nothing lost, nothing twice, nothing said that is not so."""

import asyncio
import shutil
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from tests.support import etcd as support

if (reason := support.missing()) is not None:
    pytest.skip(reason, allow_module_level=True)

from penstock.metadata.etcd.rpc import RANGE, EtcdClient, Method
from penstock.metadata.etcd.settings import parse_etcd_url
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.etcd.watch import Watcher
from penstock.metadata.store import (
    Ambiguous,
    Changes,
    Committed,
    CommitTooLarge,
    Compare,
    Conflict,
    LeaseId,
    Put,
    Reload,
    Revision,
    StoreError,
    StoreFull,
)
from tests.support.etcd import Etcd, EtcdMember
from tests.support.server import PATIENCE_S
from tests.unit.metadata.store_contract import committed, until

pytestmark = pytest.mark.cluster

TTL_MS = 2000
LONG_TTL_MS = 4000  # for what must not end: machines are busy
PATIENT = {"timeout_ms": 20_000, "patience_ms": 20_000}  # where there is one member to ask
ABSENT = Revision(0)

T = TypeVar("T")


@pytest.fixture(scope="module")
def _one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with support.running(tmp_path_factory.mktemp("etcd")) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def _three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with support.running(tmp_path_factory.mktemp("etcd"), 3) as etcd:
        yield etcd


@pytest.fixture
def one(_one: Etcd) -> Etcd:
    return _one


@pytest.fixture
def three(_three: Etcd) -> Iterator[Etcd]:
    """All members run at the end again, whatever was done to them."""
    yield _three
    for member in _three.members:
        if member.is_running:
            member.resume()
    _three.start()


@asynccontextmanager
async def store_of(url: str, first_member: int = 0, **limits: int) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(parse_etcd_url(url), first_member=first_member, **limits)
    try:
        yield store
    finally:
        await store.close()


def name() -> str:
    return uuid4().hex


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """What a busy etcd answers in the end: it is given little time for each answer."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await ask()
        except StoreError:
            if time.monotonic() > deadline_s:
                raise


async def renewed(store: EtcdStore, lease: LeaseId) -> int:
    """From a thread, as brokers do it, and again if there was no answer."""
    return await patiently(lambda: asyncio.to_thread(store.renew, lease))


class Counter:
    """A key that only grows, by whoever writes it; it knows how to go on when nobody knows what happened."""

    def __init__(self, store: EtcdStore) -> None:
        self._store = store
        self._revision = ABSENT
        self._counted = asyncio.Event()
        self.value = 0

    async def advance(self, steps: int) -> Revision:
        for _ in range(steps):
            await self._once(self.value + 1)
            self.value += 1
            self._counted.set()
        return self._revision

    async def reached(self, value: int) -> None:
        """Returns when somebody has advanced it that far."""
        while self.value < value:
            self._counted.clear()
            await self._counted.wait()

    async def _once(self, wanted: int) -> None:
        while True:
            compare = Compare("counter", mod_revision=self._revision)
            try:
                outcome = await self._store.commit([compare], [Put("counter", b"%d" % wanted)])
                if isinstance(outcome, Committed):
                    self._revision = outcome.revision
                    return
                entry = await self._store.read("counter")
            except StoreError:
                continue
            if entry is not None and int(entry.value) == wanted:
                self._revision = entry.mod_revision
                return


async def follow(watch: AsyncIterator[Changes | Reload], upto: Revision, seen: list[int]) -> None:
    seen += [int(value) for _, value, _ in await until(watch, upto) if value is not None]


class Follower:
    """A watcher that goes on where it was when it is told that etcd elects, which takes a busy one some time."""

    def __init__(self, store: EtcdStore, after: Revision, *, elects: bool) -> None:
        """`elects`: it will have to, and each member may say in its own words that it cannot help."""
        self._elects = elects
        self._store = store
        self._after = after
        self._watch = store.watch("", after)

    async def changes(self, upto: Revision) -> list[tuple[str, bytes | None, Revision]]:
        """(key, value, revision) of all that is new."""
        seen: list[tuple[str, bytes | None, Revision]] = []
        while self._after < upto:
            try:
                found = await anext(self._watch)
            except StoreError as error:
                if not self._elects and "no leader" not in str(error):
                    raise
                self._watch = self._store.watch("", self._after)
                continue
            assert isinstance(found, Changes)
            self._after = found.revision
            seen += [(it.key, it.entry and it.entry.value, it.revision) for it in found.changes]
        return seen

    async def numbers(self, upto: Revision) -> list[int]:
        """What the counter was."""
        return [int(value) for _, value, _ in await self.changes(upto) if value is not None]


Fault = Callable[[Etcd, EtcdMember], Awaitable[None]]


async def _pause(_: Etcd, member: EtcdMember) -> None:
    member.pause()


async def _kill(_: Etcd, member: EtcdMember) -> None:
    member.kill()


@pytest.mark.parametrize("fault", [_pause, _kill], ids=["paused", "killed"])
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
def test_a_watch_goes_on_when_its_member_is_gone_with_nothing_lost_or_twice(
    three: Etcd, fault: Fault, is_leader: bool
) -> None:
    async def main() -> None:
        leader = three.leader()
        watched = next(it for it in three.members if (it is leader) == is_leader)
        first = three.members.index(watched)
        url = three.url(name())
        async with store_of(url, first) as watcher, store_of(url, first + 1) as writer:
            counter = Counter(writer)
            revision = await counter.advance(5)
            follower = Follower(watcher, Revision(revision - 5), elects=is_leader)
            seen = await follower.numbers(revision)
            await fault(three, watched)
            seen += await follower.numbers(await counter.advance(20))
            if watched.is_running:
                watched.resume()
            else:
                await asyncio.to_thread(three.start)
            seen += await follower.numbers(await counter.advance(20))
            assert seen == list(range(1, 46))

    asyncio.run(main())


def test_a_watch_survives_the_loss_of_the_quorum(three: Etcd) -> None:
    async def main() -> None:
        async with store_of(three.url(name())) as store:
            counter = Counter(store)
            seen: list[int] = []
            revision = await counter.advance(3)
            watch = store.watch("", Revision(revision - 3))
            await follow(watch, revision, seen)
            leader = three.leader()
            for member in three.members:
                if member is not leader:
                    member.kill()
            with pytest.raises(StoreError, match="etcd 127"):  # it is said, and can be logged
                await anext(watch)
            await asyncio.to_thread(three.start)
            await follow(store.watch("", revision), await counter.advance(3), seen)
            assert seen == [1, 2, 3, 4, 5, 6]

    asyncio.run(main())


def test_what_etcd_says_of_a_commit_is_so_even_if_its_leader_dies_meanwhile(three: Etcd) -> None:
    async def main() -> None:
        url = three.url(name())
        told: dict[str, type] = {}
        wanted = 400
        thirds = [asyncio.Event(), asyncio.Event()]

        async def write(store: EtcdStore, writer: int) -> None:
            number = 0
            while len(told) < wanted:
                key = f"w/{writer}/{number}"
                number += 1
                absent = [Compare(key, mod_revision=ABSENT)]
                try:
                    told[key] = type(await store.commit(absent, [Put(key, b"")]))
                except StoreError as error:
                    told[key] = type(error)
                for third in thirds[: 3 * len(told) // wanted]:
                    third.set()

        async def kill_twice() -> None:
            for third in thirds:
                await third.wait()
                leader = await asyncio.to_thread(three.leader)
                leader.kill()
                await asyncio.to_thread(three.start)

        async with store_of(url, 0) as a, store_of(url, 1) as b, store_of(url, 2) as c:
            writers = [write(store, number) for number, store in enumerate((a, b, c) * 2)]
            await asyncio.gather(*writers, kill_twice())
            present = (await a.snapshot("w/")).entries.keys()
        done = {key for key, outcome in told.items() if outcome is Committed}
        unknown = {key for key, outcome in told.items() if outcome is Ambiguous}
        assert done <= present
        assert present <= done | unknown
        assert len(done) > wanted // 2
        assert Conflict not in told.values()  # each key was tried once

    asyncio.run(main())


def test_a_watcher_of_what_is_no_longer_kept_is_told_to_reload(one: Etcd) -> None:
    async def main() -> None:
        async with store_of(one.url(name()), **PATIENT) as store:
            counter = Counter(store)
            start = await counter.advance(1)
            revision = await counter.advance(9)
            one.members[0].post("kv/compaction", revision=str(revision))
            watch = store.watch("", start)
            assert isinstance(await anext(watch), Reload)
            with pytest.raises(StopAsyncIteration):
                await anext(watch)
            seen: list[int] = []
            fresh = store.watch("", revision)
            await follow(fresh, await counter.advance(1), seen)
            one.members[0].post("kv/compaction", revision=str(revision + 1))
            await follow(
                fresh, await counter.advance(1), seen
            )  # one that keeps up is not disturbed
            assert seen == [11, 12]
            assert isinstance(await anext(store.watch("", Revision(revision + 1000))), Reload)

    asyncio.run(main())


def test_a_snapshot_in_pages_is_of_one_revision_and_begun_anew_after_a_compaction(
    one: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with store_of(one.url(name()), page_keys=3, **PATIENT) as store:
            keys = {f"k/{number}" for number in range(10)}
            before = await committed(store, *(Put(key, b"old") for key in keys))
            call = EtcdClient.call
            pages = 0
            compacts = False

            async def disturbed(client: EtcdClient, method: Method, *rest: Any, **more: Any) -> Any:
                nonlocal pages
                answer = await call(client, method, *rest, **more)
                pages += method is RANGE
                if method is RANGE and pages == 1:
                    monkeypatch.setattr(EtcdClient, "call", call)
                    now = await committed(store, Put("k/9", b"new"), Put("late", b""))
                    if compacts:
                        one.members[0].post("kv/compaction", revision=str(now))
                    monkeypatch.setattr(EtcdClient, "call", disturbed)
                return answer

            monkeypatch.setattr(EtcdClient, "call", disturbed)
            snapshot = await store.snapshot("")
            assert (snapshot.revision, pages) == (before, 4)
            assert snapshot.entries.keys() == keys
            assert {entry.value for entry in snapshot.entries.values()} == {b"old"}
            pages, compacts = 0, True
            snapshot = await store.snapshot("")
            assert snapshot.revision == before + 2
            assert snapshot.entries.keys() == {*keys, "late"}

    asyncio.run(main())


def test_revisions_of_others_who_share_the_etcd_are_passed_too(one: Etcd) -> None:
    async def main() -> None:
        async with (
            store_of(one.url(name()), **PATIENT) as store,
            store_of(one.url(name()), **PATIENT) as stranger,
        ):
            revision = await committed(store, Put("k", b"1"))
            watch = store.watch("", Revision(revision - 1))
            await until(watch, revision)
            elsewhere = await committed(stranger, Put("k", b"2"))
            outcome = await store.commit([Compare("k", mod_revision=ABSENT)], [Put("k", b"3")])
            assert outcome == Conflict(elsewhere, ("k",))
            assert await until(watch, elsewhere) == []

    asyncio.run(main())


def test_a_lease_ends_though_the_leader_of_etcd_dies_with_its_owner(three: Etcd) -> None:
    async def main() -> None:
        url = three.url(name())
        leader = three.leader()
        elsewhere = three.members.index(leader) + 1
        async with store_of(url, elsewhere) as owner, store_of(url, elsewhere) as store:
            lease = await owner.grant(TTL_MS)
            revision = await committed(owner, Put("held", b"", lease))
            follower = Follower(store, revision, elects=True)
            leader.kill()
            found = await follower.changes(Revision(revision + 1))
            assert found == [("held", None, revision + 1)]
            assert await patiently(lambda: store.keep_alive(lease)) <= 0
            assert await renewed(store, lease) <= 0

    asyncio.run(main())


def test_a_thread_keeps_a_lease_while_the_event_loop_hangs_and_a_member_is_silent(
    three: Etcd,
) -> None:
    async def main() -> None:
        follower = next(it for it in three.members if it is not three.leader())
        async with store_of(three.url(name()), three.members.index(follower)) as store:
            lease = await store.grant(LONG_TTL_MS)
            await committed(store, Put("held", b"", lease))
            ended = threading.Event()
            left: list[int] = []

            def renew() -> None:
                while not ended.wait(LONG_TTL_MS / 4000):
                    with suppress(StoreError):  # no answer in time: again, as brokers do
                        left.append(store.renew(lease))

            thread = threading.Thread(target=renew)
            thread.start()
            follower.pause()
            time.sleep(1.5 * LONG_TTL_MS / 1000)  # noqa: ASYNC251  # the loop hangs
            held = await store.read("held")
            ended.set()
            thread.join()
            assert held is not None
            assert set(left) == {LONG_TTL_MS}

    asyncio.run(main())


def test_commits_that_are_too_large_say_so_and_have_not_happened(one: Etcd) -> None:
    async def main() -> None:
        async with store_of(one.url(name()), **PATIENT) as store:
            large = (
                [Put(f"k/{number}", b"") for number in range(129)],
                [Put("k", bytes(2_000_000))],
                [Put("k", bytes(20_000_000))],
            )
            for writes in large:
                with pytest.raises(CommitTooLarge, match=r"too large|too many|larger than max"):
                    await store.commit([], writes)
            assert (await store.snapshot("")).entries == {}
            compares = [Compare(f"k/{number}", mod_revision=ABSENT) for number in range(128)]
            outcome = await store.commit(compares, large[0][:128])
            assert isinstance(outcome, Committed)
            outcome = await store.commit(compares, large[0][:128])
            assert isinstance(outcome, Conflict)
            assert len(outcome.keys) == 128

    asyncio.run(main())


async def fill(store: EtcdStore) -> None:
    while True:
        await committed(store, Put("large", bytes(1_000_000)))


def test_a_full_etcd_says_so(tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with store_of(url, **PATIENT) as store:
            await committed(store, Put("small", b""))
            with pytest.raises(StoreFull, match="defragment"):
                await fill(store)
            assert await store.read("small") is not None

    with support.running(tmp_path, flags=["--quota-backend-bytes=16000000"]) as etcd:
        asyncio.run(main(etcd.url()))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls_needs_both_sides_to_be_known(tmp_path: Path) -> None:
    tls = support.make_certificates(tmp_path / "tls")
    others = support.make_certificates(tmp_path / "others")

    async def use(url: str, **limits: int) -> None:
        async with store_of(url, **limits) as store:
            lease = await store.grant(LONG_TTL_MS)
            revision = await committed(store, Put("k", b"", lease))
            assert [key for key, _, _ in await until(store.watch("", ABSENT), revision)] == ["k"]
            assert await renewed(store, lease) == LONG_TTL_MS

    with Etcd(tmp_path / "etcd", tls=tls) as etcd:
        address = etcd.members[0].address
        asyncio.run(use(etcd.url()))
        for url in (
            f"etcd://{address}",
            f"etcd://{address}?ca={tls.ca}",
            f"etcd://{address}?ca={others.ca}&cert={tls.cert}&key={tls.key}",
            f"etcd://{address}?ca={tls.ca}&cert={others.cert}&key={others.key}",
        ):
            with pytest.raises(StoreError, match=address):
                asyncio.run(use(url, patience_ms=300))
        with pytest.raises(StoreError, match=r"ca '.*nowhere.pem' cannot be read"):
            asyncio.run(use(f"etcd://{address}?ca={tmp_path}/nowhere.pem"))


def test_users_with_passwords_are_let_in_again_after_their_token_has_ended(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("sesame\n")

    def demand_passwords(member: EtcdMember) -> None:
        for user in ("root", "penstock"):
            member.post("auth/user/add", name=user, password="sesame")
            member.post("auth/role/add", name=user)
            member.post("auth/user/grant", user=user, role=user)
        begin, end = "L3BlbnN0b2NrL21pbmUv", "L3BlbnN0b2NrL21pbmUw"  # /penstock/mine/ to …/mine0
        permission = {"permType": "READWRITE", "key": begin, "range_end": end}
        member.post("auth/role/grant", name="penstock", perm=permission)
        member.post("auth/enable")

    async def main(etcd: Etcd) -> None:
        url = etcd.url("mine", user="penstock", password_file=password)
        async with store_of(url) as store:
            lease = await store.grant(TTL_MS * 10)
            await committed(store, Put("before", b"", lease))  # nobody is asked for a password yet
            assert await renewed(store, lease) > 0
            demand_passwords(etcd.members[0])
            revision = await committed(store, Put("after", b"", lease))
            watch = store.watch("", Revision(revision - 1))
            assert [key for key, _, _ in await until(watch, revision)] == ["after"]
            assert await renewed(store, lease) > 0
            etcd.members[0].stop()
            await asyncio.to_thread(etcd.start)  # it remembers no token
            assert await renewed(store, lease) > 0
            assert await store.keep_alive(lease) > 0
            revision = await committed(store, Put("again", b""))
            again = store.watch("", Revision(revision - 1))
            assert [key for key, _, _ in await until(again, revision)] == ["again"]
            password.write_text("changed")
            etcd.members[0].stop()
            await asyncio.to_thread(etcd.start)
            with pytest.raises(StoreError, match="authentication failed"):
                await store.read("again")
        password.write_text("sesame")
        for url in (etcd.url("mine"), etcd.url("others", user="penstock", password_file=password)):
            async with store_of(url) as store:
                with pytest.raises(StoreError, match=r"user name is empty|permission denied"):
                    await store.commit([], [Put("k", b"")])
                with pytest.raises(StoreError, match=r"user name is empty|permission denied"):
                    await anext(store.watch("", ABSENT))

    with support.running(tmp_path / "etcd") as etcd:
        asyncio.run(main(etcd))


def test_a_store_whose_etcd_is_gone_says_so_and_takes_up_again_by_itself(tmp_path: Path) -> None:
    async def main(etcd: Etcd) -> None:
        async with store_of(etcd.url(), timeout_ms=1500, patience_ms=2000) as store:
            await patiently(lambda: committed(store, Put("k", b"1")))
            etcd.members[0].kill()
            with pytest.raises(StoreError, match="is it running, and has it a quorum"):
                await store.read("k")
            with pytest.raises(StoreError, match="is it running"):
                await store.commit([], [Put("k", b"2")])
            with pytest.raises(StoreError, match="is it running"):
                await anext(store.watch("", ABSENT))
            await asyncio.to_thread(etcd.start)
            entry = await patiently(lambda: store.read("k"))
            assert entry is not None
            assert entry.value == b"1"
            await patiently(lambda: committed(store, Put("k", b"3")))

    with support.running(tmp_path) as etcd:
        asyncio.run(main(etcd))


def test_a_closed_store_ends_its_watches_and_says_that_it_is_closed(one: Etcd) -> None:
    async def main() -> None:
        store = EtcdStore(parse_etcd_url(one.url(name())), **PATIENT)
        revision = await committed(store, Put("k", b""))
        watch = store.watch("", Revision(revision - 1))
        await until(watch, revision)

        async def listen() -> None:
            with pytest.raises(StoreError, match="is closed"):
                await anext(watch)

        await asyncio.gather(listen(), store.close())
        with pytest.raises(StoreError, match="is closed"):
            await store.read("k")
        with pytest.raises(StoreError, match="is closed"):
            store.renew(LeaseId(1))

    asyncio.run(main())


def test_a_watch_of_an_etcd_in_which_nothing_happens_stays_where_it_is(
    one: Etcd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer counts anew. The limit is not so short that an etcd which is busy passes it."""
    dead_ticks = 100
    monkeypatch.setattr("penstock.metadata.etcd.watch._TICK_S", 0.05)
    monkeypatch.setattr("penstock.metadata.etcd.watch._DEAD_TICKS", dead_ticks)
    opened: list[str] = []
    open_watch = EtcdClient.open_watch

    def noted(client: EtcdClient, member: str, *rest: Any) -> Any:
        opened.append(member)
        return open_watch(client, member, *rest)

    async def main() -> None:
        async with store_of(one.url(name()), **PATIENT) as store:
            revision = await committed(store, Put("k", b""))
            answered = asyncio.Event()
            answers = 0
            progress = Watcher._progress

            def counted(watcher: Watcher, *rest: Any) -> Any:
                nonlocal answers
                answers += 1
                if answers == dead_ticks + 20:
                    answered.set()
                return progress(watcher, *rest)

            async def write() -> None:
                await answered.wait()
                await committed(store, Put("k", b"new"))

            monkeypatch.setattr(Watcher, "_progress", counted)
            watch = store.watch("", revision)
            await asyncio.gather(until(watch, Revision(revision + 1)), write())
            assert opened == list(one.addresses)

    monkeypatch.setattr(EtcdClient, "open_watch", noted)
    asyncio.run(main())


async def see_all(store: EtcdStore, after: Revision) -> list[int]:
    """What one watcher sees of the counter until the key `end` appears; it goes on whenever it is told of trouble."""
    seen: list[int] = []
    while True:
        try:
            async for found in store.watch("", after):
                assert isinstance(found, Changes)
                after = found.revision
                seen += [int(it.entry.value) for it in found.changes if it.entry and it.entry.value]
                if any(change.key == "end" for change in found.changes):
                    return seen
        except StoreError:
            continue


async def break_members(etcd: Etcd, rng: Random, counter: Counter, faults: int) -> None:
    for _ in range(faults):
        broken = rng.sample(etcd.members, rng.choice((1, 1, 2)))
        for member in broken:
            rng.choice((member.pause, member.kill))()
        if len(broken) == 1:  # a quorum is left
            await counter.reached(counter.value + rng.randrange(50))
        for member in etcd.members:
            if member.is_running:
                member.resume()
        await asyncio.to_thread(etcd.start)


@pytest.mark.slow
def test_whatever_becomes_of_members_every_watcher_sees_every_change_once(
    three: Etcd, rng: Random
) -> None:
    async def main() -> None:
        url = three.url(name())
        async with (
            store_of(url, 0) as a,
            store_of(url, 1) as b,
            store_of(url, 2) as c,
            store_of(url) as writer,
        ):
            counter = Counter(writer)
            start = await counter.advance(1)
            is_over = asyncio.Event()

            async def count() -> None:
                while not is_over.is_set():
                    await counter.advance(1)
                while await writer.read("end") is None:
                    with suppress(Ambiguous):
                        await writer.commit([], [Put("end", b"")])

            async def disturb() -> None:
                await break_members(three, rng, counter, faults=10)
                is_over.set()

            watches = [see_all(store, start) for store in (a, b, c)]
            *seen, _, _ = await asyncio.gather(*watches, count(), disturb())
            assert counter.value > 100
            for values in seen:
                assert values == list(range(2, counter.value + 1))

    asyncio.run(main())
