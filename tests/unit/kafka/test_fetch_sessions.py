from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.fetch import FetchResponse
from tests.support.engine import Engine, running_engine
from tests.support.readers import (
    BY_ID,
    BY_NAME,
    Key,
    Part,
    Reader,
    Server,
    Told,
    is_waiting,
    refusal_of,
    watchers,
)
from tests.unit.storage.logs import FaultyDisk, headers, scratch

MAX_EPOCH = (1 << 31) - 1
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    del tmp_path
    with scratch() as path, running_engine(Path(path), FaultyDisk()) as started:
        started.topic("a", partitions=2)
        started.topic("b")
        yield started


@pytest.fixture
def server(engine: Engine) -> Server:
    return Server(engine, limit=3)


@pytest.fixture(params=[BY_NAME, BY_ID], ids=["by-name", "by-id"])
def reader(server: Server, request: pytest.FixtureRequest) -> Reader:
    return Reader(server, request.param)


def append(engine: Engine, key: Key, size: int = 10) -> None:
    topic = engine.replicas.topic(key[0])
    engine.append(engine.replicas.partition(topic, key[1]), b"x" * size)


def count(told: dict[Key, Told]) -> dict[Key, int]:
    """How many batches of each partition."""
    return {key: len(headers(part.data)) for key, part in told.items()}


# What is told ----------------------------------------------------------------------------------


def test_after_the_first_fetch_only_news_are_told(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    assert count(reader.begin({A0: Part(), A1: Part(), B0: Part()})) == {A0: 1, A1: 0, B0: 0}
    assert reader.session_id != 0
    assert count(reader.go_on({A0: Part(1)})) == {}
    append(engine, B0)
    engine.tick()
    assert count(reader.go_on({})) == {B0: 1}
    assert count(reader.go_on({B0: Part(1)})) == {}


def test_what_was_not_taken_is_told_again(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    reader.begin({A0: Part()})
    for _ in range(3):
        assert count(reader.go_on({})) == {A0: 1}


def test_a_fetch_costs_what_is_active_not_what_is_subscribed(
    engine: Engine, server: Server
) -> None:
    engine.topic("wide", partitions=200)
    keys = [("wide", index) for index in range(200)]
    reader = Reader(server)
    reader.begin(dict.fromkeys(keys, Part()))
    (session,) = server.sessions._sessions.values()
    reader.go_on({})
    assert (len(session), len(session.active)) == (200, 0)
    append(engine, keys[7])
    engine.tick()
    assert [wanted.index for wanted in session.active] == [7]


def test_a_new_log_start_is_told_at_once_and_once(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    reader.begin({A0: Part(1)})
    assert reader.go_on({}) == {}
    engine.replicas.partition(engine.replicas.topic("a"), 0).delete_records_before(1)
    waits = reader.server.handle(reader.next_request({}, max_wait_ms=1000), reader.version)
    assert isinstance(waits, FetchResponse), "it does not wait"
    assert {key: told.log_start for key, told in reader.told(waits).items()} == {A0: 1}
    assert reader.go_on({}) == {}


def test_an_error_is_told_until_it_is_gone(engine: Engine, reader: Reader) -> None:
    append(engine, A0)
    reader.begin({A0: Part(5), B0: Part()})
    for _ in range(2):
        told = reader.go_on({})
        assert {key: part.error for key, part in told.items()} == {
            A0: ErrorCode.OFFSET_OUT_OF_RANGE
        }
    assert count(reader.go_on({A0: Part(0)})) == {A0: 1}


def test_a_forgotten_partition_is_silent_and_no_longer_watched(
    engine: Engine, reader: Reader
) -> None:
    reader.begin({A0: Part(), B0: Part()})
    partition = engine.replicas.partition(engine.replicas.topic("a"), 0)
    assert watchers(partition) == 1
    assert reader.go_on({}, [A0]) == {}
    assert watchers(partition) == 0
    append(engine, A0)
    append(engine, B0)
    engine.tick()
    assert count(reader.go_on({})) == {B0: 1}
    assert count(reader.go_on({A0: Part(), B0: Part(1)})) == {A0: 1}, "and may be asked for again"


def test_a_partition_that_is_named_twice_is_answered_once_and_can_be_forgotten(
    engine: Engine, server: Server
) -> None:
    reader = Reader(server)
    append(engine, A0)
    request = reader.request({A0: Part(0)}, epoch=0)
    request.topics += reader.request({A0: Part(1)}).topics
    response = server.fetch(request, BY_NAME)
    assert count(reader.told(response)) == {A0: 0}, "the last word counts"
    reader.session_id, reader.epoch = response.session_id, 1
    assert reader.go_on({}, [A0]) == {}
    append(engine, A0)
    engine.tick()
    assert reader.go_on({}) == {}
    assert watchers(engine.replicas.partition(engine.replicas.topic("a"), 0)) == 0


def test_who_got_data_comes_last_next_time(engine: Engine, reader: Reader) -> None:
    keys = [A0, A1, B0]
    for key in keys:
        for _ in range(9):
            append(engine, key, 100)
    size = len(reader.full({A0: Part()})[A0].data) // 9
    parts = {key: Part(max_bytes=3 * size) for key in keys}
    reader.begin(parts, max_bytes=3 * size)
    seen = [next(iter(reader.go_on({}, max_bytes=3 * size))) for _ in range(6)]
    assert seen == [A1, B0, A0, A1, B0, A0]


# Topics that go and come -----------------------------------------------------------------------


def test_a_deleted_topic_is_an_error_and_one_of_the_same_name_is_read_by_name_only(
    engine: Engine, reader: Reader
) -> None:
    append(engine, B0)
    reader.begin({B0: Part()})
    engine.replicas.remove_topic("b")
    gone = (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if reader.version == BY_NAME
        else ErrorCode.UNKNOWN_TOPIC_ID
    )
    assert reader.go_on({})[B0].error == gone

    engine.topic("b")
    append(engine, B0)
    told = reader.go_on({})
    if reader.version == BY_NAME:
        assert count(told) == {B0: 1}
        append(engine, B0)
        engine.tick()
        assert count(reader.go_on({B0: Part(1)})) == {B0: 1}, "and it is watched"
        return
    assert told[B0].error == gone, "its id is another"
    reader.go_on({}, [B0])
    reader.learn("b")
    assert count(reader.go_on({B0: Part()})) == {B0: 1}


def test_a_new_topic_of_the_old_name_is_told_of_even_if_it_looks_the_same(
    engine: Engine, server: Server
) -> None:
    reader = Reader(server)
    append(engine, B0)
    reader.begin({B0: Part(1)})
    assert reader.go_on({}) == {}
    engine.replicas.remove_topic("b")
    engine.topic("b")
    append(engine, B0)
    assert reader.go_on({})[B0].high_watermark == 1


# Which session ---------------------------------------------------------------------------------


def test_a_wrong_session_is_refused_with_its_own_code(server: Server, reader: Reader) -> None:
    reader.begin({A0: Part()})
    session_id, epoch = reader.session_id, reader.epoch

    def refusal(session_id: int, epoch: int, version: int) -> int:
        request = reader.request({}, session_id=session_id, epoch=epoch)
        return refusal_of(server, request, version)

    assert refusal(session_id + 1, 1, reader.version) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(0, 1, reader.version) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert refusal(session_id, epoch + 1, reader.version) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert refusal(session_id, -7, reader.version) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    other = BY_ID if reader.version == BY_NAME else BY_NAME
    assert refusal(session_id, epoch, other) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert reader.go_on({}) == {}, "none of that has harmed it"


def test_epochs_wrap_round_to_one(engine: Engine, server: Server, reader: Reader) -> None:
    reader.begin({A0: Part()})
    (session,) = server.sessions._sessions.values()
    session.epoch = reader.epoch = MAX_EPOCH - 1
    for _ in range(4):
        reader.go_on({})
    assert (reader.epoch, session.epoch) == (3, 3)
    append(engine, A0)
    engine.tick()
    assert count(reader.go_on({})) == {A0: 1}


@pytest.mark.parametrize("epoch", [0, -1], ids=["anew", "without"])
def test_a_full_fetch_ends_the_session_it_names(
    engine: Engine, server: Server, reader: Reader, epoch: int
) -> None:
    reader.begin({A0: Part()})
    old = reader.session_id
    request = reader.request({B0: Part()}, session_id=old, epoch=epoch)
    response = server.fetch(request, reader.version)
    assert (response.session_id == 0) == (epoch == -1)
    assert response.session_id != old
    partition = engine.replicas.partition(engine.replicas.topic("a"), 0)
    assert watchers(partition) == 0
    assert refusal_of(server, reader.next_request({}), reader.version) == (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )


def test_old_versions_and_empty_fetches_get_no_session(server: Server) -> None:
    reader = Reader(server, 6)
    assert server.fetch(reader.request({A0: Part()}, epoch=0), 6).session_id == 0
    reader = Reader(server)
    assert server.fetch(reader.request({}, epoch=0), BY_NAME).session_id == 0
    assert len(server.sessions) == 0


def test_there_are_only_so_many_sessions_and_the_others_do_without(
    engine: Engine, server: Server
) -> None:
    readers = [Reader(server) for _ in range(4)]
    for reader in readers:
        reader.begin({A0: Part()})
    assert [bool(reader.session_id) for reader in readers] == [True, True, True, False]
    engine.clock.advance(119_999)
    readers[0].go_on({})
    engine.clock.advance(1)
    late = Reader(server)
    late.begin({A0: Part()})
    assert late.session_id != 0, "two had been silent for long"
    assert len(server.sessions) == 2
    assert readers[0].go_on({}) == {}
    assert watchers(engine.replicas.partition(engine.replicas.topic("a"), 0)) == 2


def test_without_room_for_sessions_every_fetch_is_full(engine: Engine) -> None:
    reader = Reader(Server(engine, limit=0))
    reader.begin({A0: Part()})
    assert reader.session_id == 0


# Waiting ---------------------------------------------------------------------------------------


def test_a_session_that_waits_is_woken_by_its_partitions_only(
    engine: Engine, reader: Reader
) -> None:
    reader.begin({A0: Part(), B0: Part()})
    waits = reader.server.handle(reader.next_request({}, [B0], max_wait_ms=60_000), reader.version)
    assert reader.server.sessions.waiting == 1
    append(engine, B0)
    engine.tick()
    assert is_waiting(waits)
    append(engine, A0)
    engine.tick()
    assert count(reader.told(waits.result())) == {A0: 1}
    assert reader.server.sessions.waiting == 0


def test_a_fetch_that_is_given_up_is_forgotten_and_the_session_goes_on(
    engine: Engine, reader: Reader
) -> None:
    reader.begin({A0: Part()})
    waits = reader.server.handle(reader.next_request({}, max_wait_ms=60_000), reader.version)
    waits.cancel()
    engine.tick()
    assert reader.server.sessions.waiting == 0
    append(engine, A0)
    engine.tick()
    assert count(reader.go_on({})) == {A0: 1}


def test_an_earlier_fetch_that_ends_does_not_put_a_later_one_to_sleep(
    engine: Engine, reader: Reader
) -> None:
    """A client whose connection broke asks again on another one, in the same session."""
    reader.begin({A0: Part()})
    first = reader.server.handle(reader.next_request({}, max_wait_ms=60_000), reader.version)
    second = reader.server.handle(reader.next_request({}, max_wait_ms=60_000), reader.version)
    first.cancel()
    engine.tick()
    append(engine, A0)
    engine.tick()
    assert count(reader.told(second.result())) == {A0: 1}


@pytest.mark.parametrize("how", ["evicted", "replaced"])
def test_a_session_that_ends_while_a_fetch_waits_answers_it_and_watches_nothing(
    engine: Engine, server: Server, reader: Reader, how: str
) -> None:
    reader.begin({A0: Part()})
    waits = server.handle(reader.next_request({}, max_wait_ms=600_000), reader.version)
    if how == "evicted":
        engine.clock.advance(120_000)
        Reader(server).begin({B0: Part()})
    else:
        server.fetch(reader.request({B0: Part()}, session_id=reader.session_id), reader.version)
    engine.tick()
    assert waits.done()
    assert watchers(engine.replicas.partition(engine.replicas.topic("a"), 0)) == 0


def test_a_session_that_ended_does_not_watch_what_its_last_answer_finds(
    engine: Engine, server: Server
) -> None:
    reader = Reader(server)
    reader.begin({B0: Part()})
    waits = server.handle(reader.next_request({}, max_wait_ms=600_000), reader.version)
    (session,) = server.sessions._sessions.values()
    partition = engine.replicas.partition(engine.replicas.topic("b"), 0)
    partition.fail(BrokerError("damaged", ErrorCode.KAFKA_STORAGE_ERROR))
    engine.tick()
    assert waits.done()
    session.close()
    session.found(next(iter(session.active)), partition)
    assert watchers(partition) == 0


# Any history -----------------------------------------------------------------------------------


class SessionMachine(RuleBasedStateMachine):
    """What a reader knows by its session is what a full fetch would tell it, and no more is said."""

    keys: tuple[Key, ...] = (A0, A1, B0)

    @initialize(version=st.sampled_from([BY_NAME, BY_ID]), before_wrap=st.integers(0, 20))
    def begin(self, version: int, before_wrap: int) -> None:
        self._scratch = scratch()
        self._running = running_engine(Path(self._scratch.__enter__()), FaultyDisk())
        self.engine = self._running.__enter__()
        self.engine.topic("a", partitions=2)
        self.engine.topic("b")
        self.server = Server(self.engine)
        self.reader, self.twin = Reader(self.server, version), Reader(self.server, version)
        self.twin.ids = self.reader.ids
        self.wanted: dict[Key, Part] = {}  # what the reader is subscribed to
        self.changed: set[Key] = set()  # of it, what the session has not heard of yet
        self.forgotten: set[Key] = set()
        self.view: dict[Key, Told] = {}
        self._begin_session({A0: Part()})
        (session,) = self.server.sessions._sessions.values()
        session.epoch = self.reader.epoch = MAX_EPOCH - before_wrap

    def _begin_session(self, parts: dict[Key, Part]) -> None:
        self.wanted = dict(parts)
        self.changed, self.forgotten = set(), set()
        self.view = self.reader.begin(self.wanted)

    @rule(key=st.sampled_from(keys), batches=st.integers(1, 3))
    def append(self, key: Key, batches: int) -> None:
        if key[0] in self.engine.replicas.topics:
            for _ in range(batches):
                append(self.engine, key)

    @rule(key=st.sampled_from(keys), offset=st.integers(0, 4))
    def subscribe_or_seek(self, key: Key, offset: int) -> None:
        self.wanted[key] = Part(offset)
        self.changed.add(key)
        self.forgotten.discard(key)

    @rule(key=st.sampled_from(keys))
    def forget(self, key: Key) -> None:
        if self.wanted.pop(key, None) is not None:
            self.changed.discard(key)
            self.forgotten.add(key)
            self.view.pop(key, None)

    @rule(key=st.sampled_from(keys))
    def trim(self, key: Key) -> None:
        topic = self.engine.replicas.topics.get(key[0])
        if topic is not None:
            self.engine.replicas.partition(topic, key[1]).delete_records_before(-1)

    @rule(key=st.sampled_from(keys))
    def bump_epoch(self, key: Key) -> None:
        topic = self.engine.replicas.topics.get(key[0])
        if topic is not None:
            partition = self.engine.replicas.partition(topic, key[1])
            partition.leader_epoch += 1
            partition.wake()

    @rule()
    def delete_or_create_b(self) -> None:
        if "b" in self.engine.replicas.topics:
            self.engine.replicas.remove_topic("b")
            self.view.pop(B0, None)  # whatever comes next is another topic
        else:
            self.engine.topic("b")

    @rule()
    def tick(self) -> None:
        self.engine.tick(1)

    @rule(waits=st.booleans())
    def fetch(self, waits: bool) -> None:
        """And compare with what the twin is told by a full fetch at the same moment."""
        self.engine.tick(1)
        parts = {key: self.wanted[key] for key in self.changed}
        request = self.reader.next_request(
            parts, self.forgotten, max_wait_ms=60_000 if waits else 0
        )
        answer = self.server.handle(request, self.reader.version)
        self.changed.clear()
        self.forgotten.clear()
        truth = self.twin.full(self.wanted)
        if is_waiting(answer):
            assert self.wanted, "there is nothing to wait for"
            assert all(not part.data and not part.error for part in truth.values())
            answer.cancel()
            self.engine.tick(1)
            return
        self._compare(self.reader.told(answer), truth)

    def _compare(self, told: dict[Key, Told], truth: dict[Key, Told]) -> None:
        for key, part in told.items():
            assert key in self.wanted, "a forgotten partition is silent"
            is_news = part.data or part.error or self.view.get(key) != part
            assert is_news, "told twice for nothing"
        for key, part in truth.items():
            if part.data or part.error:
                assert told.get(key) == part, "missed"
            before = self.view.get(key)
            known = told.get(key, before)
            assert known is not None
            assert known._replace(data=b"") == part._replace(data=b""), "out of date"
        self.view = {key: part._replace(data=b"") for key, part in truth.items()}
        for key, part in told.items():  # the reader takes what it got
            if part.data:
                last = headers(part.data)[-1]
                self.wanted[key] = Part(last.base_offset + last.last_offset_delta + 1)
                self.changed.add(key)

    @rule()
    def begin_anew(self) -> None:
        self._begin_session(dict(self.wanted) or {A0: Part()})
        self.view = {key: part._replace(data=b"") for key, part in self.view.items()}

    def teardown(self) -> None:
        self.server.sessions._end(self.reader.session_id)
        assert len(self.server.sessions) == 0
        for partition in self.engine.replicas.partitions():
            assert watchers(partition) == 0
        self._running.__exit__(None, None, None)
        self._scratch.__exit__(None, None, None)


SessionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSessionHistories = SessionMachine.TestCase
