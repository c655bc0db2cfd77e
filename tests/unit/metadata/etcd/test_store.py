"""The etcd store against members that are made up: wrong versions, other clusters, old backups, answers that get lost.

What real etcd does is in tests/cluster/test_etcd_store.py and test_etcd_faults.py.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from penstock.metadata.etcd import lease as etcd_lease
from penstock.metadata.etcd import messages
from penstock.metadata.etcd import rpc as etcd_rpc
from penstock.metadata.etcd.faults import Fault, trouble_of
from penstock.metadata.etcd.members import Members, check_version
from penstock.metadata.etcd.rpc import (
    AUTHENTICATE,
    KEEP_ALIVE,
    RANGE,
    STATUS,
    TXN,
    WATCH,
    Method,
)
from penstock.metadata.etcd.settings import EtcdSettings, parse_etcd_url
from penstock.metadata.etcd.store import EtcdStore
from penstock.metadata.store import (
    Ambiguous,
    Changes,
    LeaseId,
    Put,
    Reload,
    Revision,
    StoreError,
)
from penstock.model.errors import InvalidConfig
from penstock.node import node

PREFIX = b"/penstock/test/"
PATIENCE_MS = 60_000
TICK_S = 0.1  # many of them unanswered are the end of a watch, and machines are busy


_METHODS = (STATUS, RANGE, TXN, KEEP_ALIVE, WATCH, AUTHENTICATE)


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No member is left because it is slow, but because it is told to fail."""
    patient = {**dict(etcd_rpc.OPTIONS), "grpc.min_reconnect_backoff_ms": PATIENCE_MS}
    for module in (etcd_rpc, etcd_lease):
        monkeypatch.setattr(module, "OPTIONS", tuple(patient.items()))
    monkeypatch.setattr(etcd_lease, "_TIMEOUT_S", PATIENCE_MS / 1000)


class FakeMember(grpc.GenericRpcHandler):
    """Answers as it is told to. `failures`: statuses of the next calls of a method, instead of an answer."""

    def __init__(self) -> None:
        self.address = ""
        self.version = "3.5.16"
        self.cluster_id = 7
        self.raft_term = 2
        self.revision = 10
        self.asked: list[str] = []
        self.failures: dict[str, list[tuple[grpc.StatusCode, str]]] = {}
        self.watched: list[list[Any]] = []  # answers of the next watches; then silence, unless:
        self.tells_progress = False
        self.tokens: set[str] | None = None  # that it knows; None: it asks for none
        self.started_at: list[int] = []
        self.is_watched = asyncio.Event()

    @property
    def header(self) -> Any:
        return messages.Header(
            cluster_id=self.cluster_id, revision=self.revision, raft_term=self.raft_term
        )

    def service(self, call: grpc.HandlerCallDetails) -> Any:
        method = next(it for it in _METHODS if it.path == call.method)
        codec = {
            "request_deserializer": method.request.FromString,
            "response_serializer": method.response.SerializeToString,
        }
        if method is WATCH:
            return grpc.stream_stream_rpc_method_handler(self._watch, **codec)

        async def answer(_: Any, context: Any) -> Any:
            self.asked.append(method.path.split("/")[-1])
            planned = self.failures.get(method.path)
            if planned:
                await context.abort(*planned.pop(0))
            if self.tokens is not None and method not in (STATUS, AUTHENTICATE):
                token = dict(context.invocation_metadata()).get("token")
                if token not in self.tokens:
                    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid auth token")
            return self._answer(method)

        return grpc.unary_unary_rpc_method_handler(answer, **codec)

    def _answer(self, method: Method) -> Any:
        if method is STATUS:
            return messages.StatusResponse(header=self.header, version=self.version)
        if method is AUTHENTICATE:
            assert self.tokens is not None
            self.tokens.add(token := f"token-{len(self.asked)}")
            return messages.AuthenticateResponse(header=self.header, token=token)
        if method is TXN:
            return messages.TxnResponse(header=self.header, succeeded=True)
        if method is KEEP_ALIVE:
            return messages.KeepAliveResponse(header=self.header, ttl=2)
        return messages.RangeResponse(header=self.header)

    async def _watch(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        assert ("hasleader", "true") in context.invocation_metadata()
        async for request in requests:
            if request.HasField("create"):
                self.started_at.append(request.create.start_revision)
                self.is_watched.set()
                yield messages.WatchResponse(header=self.header, created=True)
                for response in self.watched.pop(0) if self.watched else ():
                    yield response
            elif self.tells_progress:
                yield messages.WatchResponse(header=self.header)


Scenario = Callable[..., Awaitable[None]]


def run(
    scenario: Scenario, members: int = 1, *, patience_ms: int = PATIENCE_MS, **options: Any
) -> None:
    """`patience_ms`: until some member must have answered, for who waits for its end."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            fakes = [await stack.enter_async_context(served(FakeMember())) for _ in range(members)]
            addresses = tuple(fake.address for fake in fakes)
            settings = EtcdSettings(addresses, PREFIX.decode(), **options)
            store = EtcdStore(settings, timeout_ms=PATIENCE_MS, patience_ms=patience_ms)
            stack.push_async_callback(store.close)
            await scenario(store, *fakes)

    asyncio.run(main())


@asynccontextmanager
async def served(fake: FakeMember) -> AsyncIterator[FakeMember]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((fake,))
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(None)


# who is listened to


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("3.5.0", "may lose what it has committed"),
        ("3.5.2", "may lose what it has committed"),
        ("3.4.30", "may lose events"),
        ("3.5.12", "may lose events"),
        ("", "version unknown"),
    ],
)
def test_versions_that_cannot_be_relied_on_are_refused(version: str, reason: str) -> None:
    async def scenario(store: EtcdStore, fake: FakeMember) -> None:
        fake.version = version
        with pytest.raises(StoreError, match=rf"{reason}.*upgrade it to 3\.5\.13 or later"):
            await store.read("k")
        assert fake.asked == ["Status"]

    run(scenario)


@pytest.mark.parametrize("version", ["3.5.13", "3.5.16", "3.6.0-rc.2", "3.10.1", "4.0.0"])
def test_later_versions_are_taken(version: str) -> None:
    check_version("host:2379", version)


def test_a_member_of_another_cluster_is_refused() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        second.cluster_id = 8
        await store.read("k")
        first.failures[RANGE.path] = [(grpc.StatusCode.UNAVAILABLE, "gone")]
        with pytest.raises(StoreError, match=r"another cluster \(8, the others to 7\)"):
            await store.read("k")

    run(scenario, members=2)


@pytest.mark.parametrize("what", ["revision", "raft_term"])
def test_a_member_that_has_gone_back_is_passed_over_and_if_all_have_it_is_said(what: str) -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        await store.read("k")
        setattr(first, what, 1)
        assert (await store.snapshot("")).revision == 10
        assert second.asked == ["Status", "Range"]
        setattr(second, what, 1)
        with pytest.raises(StoreError, match="lags behind, or an old backup was restored"):
            await store.read("k")

    run(scenario, members=2, patience_ms=500)


def test_who_is_silent_is_passed_over_for_a_while_unless_all_are() -> None:
    now_s = 100.0
    members = Members(("a", "b", "c"), clock_s=lambda: now_s)

    def turns(count: int, *, is_silent: bool = False) -> str:
        """Who is left, one after the other."""
        left = ""
        for _ in range(count):
            left += members.current
            members.leave(members.current, is_silent=is_silent)
        return left

    assert turns(4) == "abca"
    members.leave("b", is_silent=True)
    assert turns(4) == "caca", "they answer, if only that they cannot help"
    members.leave("b")
    assert members.current == "c", "who left b alone has changed nothing"
    assert turns(6, is_silent=True) == "cabcab"
    now_s += 5
    assert turns(3) == "cab"


def test_a_commit_that_a_member_with_an_old_state_took_is_ambiguous() -> None:
    async def scenario(store: EtcdStore, fake: FakeMember) -> None:
        await store.read("k")
        fake.revision = 3
        with pytest.raises(Ambiguous, match="revision 3"):
            await store.commit([], [Put("k", b"")])

    run(scenario)


# what got lost


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNAVAILABLE, "etcdserver: request timed out"),
        (grpc.StatusCode.UNKNOWN, "etcdserver: server stopped"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"),
        (grpc.StatusCode.INTERNAL, "stream removed"),
        (grpc.StatusCode.CANCELLED, "whatever"),
    ],
)
def test_a_commit_is_sent_once_and_ambiguous_if_it_may_have_happened(
    code: grpc.StatusCode, details: str
) -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.failures[TXN.path] = [(code, details)]
        with pytest.raises(Ambiguous, match="the commit may have happened"):
            await store.commit([], [Put("k", b"")])
        assert "Txn" not in second.asked
        await store.read("k")  # which is what one does then, and it goes elsewhere
        assert second.asked == ["Status", "Range"]

    run(scenario, members=2)


def test_a_member_that_has_found_a_new_leader_is_asked_again() -> None:
    """To go elsewhere may be to go to the one whose death was the reason."""

    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        changed = (grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")
        first.failures = {TXN.path: [changed], RANGE.path: [changed]}
        with pytest.raises(Ambiguous, match="the commit may have happened"):
            await store.commit([], [Put("k", b"")])
        assert await store.read("k") is None
        assert first.asked == ["Status", "Txn", "Range", "Range"]
        assert second.asked == []

    run(scenario, members=2)


def test_a_commit_that_nobody_took_goes_to_the_next_member() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.failures[TXN.path] = [(grpc.StatusCode.UNAVAILABLE, "etcdserver: no leader")]
        assert await store.commit([], [Put("k", b"")]) == (10,)
        assert second.asked == ["Status", "Txn"]

    run(scenario, members=2)


def test_a_commit_is_not_ambiguous_if_only_the_greeting_was_lost() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.failures[STATUS.path] = [(grpc.StatusCode.DEADLINE_EXCEEDED, "silence")]
        assert await store.commit([], [Put("k", b"")]) == (10,)
        assert (first.asked, second.asked) == (["Status"], ["Status", "Txn"])

    run(scenario, members=2)


def test_questions_are_repeated_elsewhere_and_leases_kept_there() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        lost = (grpc.StatusCode.UNAVAILABLE, "connection reset")
        first.failures = {RANGE.path: [lost], KEEP_ALIVE.path: [lost]}
        assert await store.read("k") is None
        assert await asyncio.to_thread(store.renew, LeaseId(1)) == 2000
        assert second.asked == ["Status", "Range", "LeaseKeepAlive"]

    run(scenario, members=2)


def test_errors_that_are_not_known_leave_the_outcome_open() -> None:
    for code in grpc.StatusCode:
        fault = trouble_of("host", code, "a text of the future").fault
        assert fault in (Fault.UNKNOWN, Fault.REFUSED)
        assert fault is Fault.UNKNOWN or code not in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.ABORTED,
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )


# watches


def event(key: bytes, revision: int, *, deleted: bool = False) -> Any:
    kv = messages.KeyValue(key=PREFIX + key, value=b"v", mod_revision=revision)
    return messages.Event(type=int(deleted), kv=kv)


def answer(fake: FakeMember, *events: Any, **more: Any) -> Any:
    return messages.WatchResponse(header=fake.header, events=events, **more)


async def take(watch: AsyncIterator[Changes | Reload], count: int) -> list[list[tuple[str, int]]]:
    taken: list[list[tuple[str, int]]] = []
    for _ in range(count):
        found = await anext(watch)
        assert isinstance(found, Changes)
        taken.append([(change.key, change.revision) for change in found.changes])
    return taken


def test_pieces_of_an_answer_are_put_together_and_known_events_dropped() -> None:
    async def scenario(store: EtcdStore, fake: FakeMember) -> None:
        fake.watched = [
            [
                answer(fake, event(b"a", 4), event(b"b", 5)),
                answer(fake, event(b"b", 5), event(b"c", 6), fragment=True),
                answer(fake, event(b"d", 6), fragment=True),
                answer(fake, event(b"e", 6, deleted=True)),
            ]
        ]
        watch = store.watch("", Revision(4))
        assert await take(watch, 2) == [[("b", 5)], [("c", 6), ("d", 6), ("e", 6)]]
        assert fake.started_at == [4]

    run(scenario)


def test_pieces_of_a_stream_that_broke_are_asked_for_again() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.watched = [
            [
                answer(first, event(b"a", 5)),
                answer(first, event(b"b", 6), fragment=True),
                answer(first, canceled=True, cancel_reason="the member is tired"),
            ]
        ]
        second.watched = [
            [answer(second, event(b"a", 5), event(b"b", 6), event(b"c", 6)), answer(second)]
        ]
        watch = store.watch("", Revision(4))
        assert await take(watch, 3) == [[("a", 5)], [("b", 6), ("c", 6)], []]
        assert (first.started_at, second.started_at) == ([4], [5])

    run(scenario, members=2)


def test_a_member_that_says_nothing_is_left_for_one_that_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.metadata.etcd.watch._TICK_S", TICK_S)

    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        second.watched = [[answer(second, event(b"a", 11))]]
        assert await take(store.watch("", Revision(10)), 1) == [[("a", 11)]]
        assert (first.started_at, second.started_at) == ([10], [10])

    run(scenario, members=2)


def test_patience_with_a_member_ends_when_the_watch_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.metadata.etcd.watch._TICK_S", TICK_S)
    monkeypatch.setattr("penstock.metadata.etcd.watch._DEAD_TICKS_BEHIND", 10**9)

    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.watched = [[answer(first, event(b"a", 7)), answer(first, event(b"b", 10))]]
        second.watched = [[answer(second, event(b"c", 11))]]
        found = await take(store.watch("", Revision(5)), 3)
        assert found == [[("a", 7)], [("b", 10)], [("c", 11)]]
        assert (first.started_at, second.started_at) == ([5], [10])

    run(scenario, members=2)


def test_a_watch_that_begins_in_the_future_or_was_compacted_is_told_to_reload() -> None:
    async def scenario(store: EtcdStore, fake: FakeMember) -> None:
        assert isinstance(await anext(store.watch("", Revision(11))), Reload)
        assert fake.started_at == []
        fake.watched = [[answer(fake, canceled=True, compact_revision=9)]]
        assert isinstance(await anext(store.watch("", Revision(5))), Reload)

    run(scenario)


def test_a_watch_that_every_member_ends_at_once_is_given_up_with_the_reason() -> None:
    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.watched = [[answer(first, canceled=True, cancel_reason="no")] for _ in range(9)]
        second.watched = [[answer(second, canceled=True, cancel_reason="no")] for _ in range(9)]
        with pytest.raises(StoreError, match="watch ended: no"):
            await anext(store.watch("", Revision(10)))
        assert len(first.started_at + second.started_at) == 3

    run(scenario, members=2)


def test_a_loop_that_hangs_does_not_make_its_member_look_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.metadata.etcd.watch._TICK_S", TICK_S)

    async def scenario(store: EtcdStore, first: FakeMember, second: FakeMember) -> None:
        first.tells_progress = True

        async def disturb() -> None:
            await first.is_watched.wait()
            for _ in range(5):
                time.sleep(3 * TICK_S)  # noqa: ASYNC251  # the loop hangs
                await asyncio.sleep(1.5 * TICK_S)  # and turns again for a tick
            first.revision += 1

        assert (await asyncio.gather(take(store.watch("", Revision(10)), 1), disturb()))[0] == [[]]
        assert (first.started_at, second.asked) == ([10], [])

    run(scenario, members=2)


def test_whoever_is_told_that_a_token_has_ended_authenticates_anew(tmp_path: Path) -> None:
    async def scenario(store: EtcdStore, fake: FakeMember) -> None:
        fake.tokens = set()
        for _ in range(2):
            fake.tokens.clear()
            assert await store.read("k") is None
            fake.tokens.clear()
            assert await store.commit([], [Put("k", b"")]) == (10,)
            fake.tokens.clear()
            assert await store.keep_alive(LeaseId(1)) == 2000
            fake.tokens.clear()
            assert await asyncio.to_thread(store.renew, LeaseId(1)) == 2000
            fake.tokens.clear()
            fake.watched = [[answer(fake, event(b"a", 11))]]
            assert await take(store.watch("", Revision(10)), 1) == [[("a", 11)]]

    (tmp_path / "password").write_text("sesame")
    run(scenario, user="me", password_file=tmp_path / "password")


# how it is named


def test_an_etcd_is_named_by_its_members_a_name_and_options() -> None:
    assert parse_etcd_url("etcd://a,b:1,[::1]:2379/orders/?ca=%2Fx%20y&cert=c&key=k") == (
        ("a:2379", "b:1", "[::1]:2379"),
        "/penstock/orders/",
        Path("/x y"),
        Path("c"),
        Path("k"),
        None,
        None,
    )
    named = parse_etcd_url("etcd://a:1?user=me&password-file=f")
    assert named == EtcdSettings(("a:1",), "/penstock/default/", user="me", password_file=Path("f"))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("etcd:host", "does not begin with etcd://"),
        ("etcd://", "'' is not HOST:PORT"),
        ("etcd://a,,b", "'' is not HOST:PORT"),
        ("etcd://a:x", "'a:x' is not HOST:PORT"),
        ("etcd://http://a", "'http:' is not HOST:PORT"),
        ("etcd://a:0", "'a:0' has no such port"),
        ("etcd://a:65536", "no such port"),
        ("etcd://a,a:2379", "named twice"),
        ("etcd://a/b/c", "the name 'b/c' may have"),
        ("etcd://a?cafile=x", "no option 'cafile', only ca, cert"),
        ("etcd://a?ca=", "'ca' needs one value"),
        ("etcd://a?ca=x&ca=y", "'ca' needs one value"),
        ("etcd://a?ca=x&cert=y", "'cert' needs 'key'"),
        ("etcd://a?cert=x&key=y", "'cert' needs 'ca'"),
        ("etcd://a?user=x", "'user' needs 'password-file'"),
        ("etcd://a?password-file=x", "'password-file' needs 'user'"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        parse_etcd_url(url)
    assert reason in str(refused.value)
    assert url in str(refused.value)
    assert "expected etcd://HOST:PORT" in str(refused.value)


def test_a_password_in_the_wrong_place_is_not_repeated() -> None:
    with pytest.raises(InvalidConfig, match="users and passwords are options") as refused:
        parse_etcd_url("etcd://me:sesame@host")
    assert "sesame" not in str(refused.value)


def test_a_broker_without_the_packages_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in [name for name in sys.modules if name.startswith("penstock.metadata.etcd")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InvalidConfig, match=r"needs grpc: pip install 'penstock\[etcd\]'"):
        node._open_etcd("etcd://host", 1)
