import gc
import logging
import socket
import weakref
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kafka import answers as answers_module
from penstock.kafka import connection as connection_module
from penstock.kafka.hangup import HangUp
from penstock.kafka.large_frame import FIRST_BUFFER_BYTES, look_at_fillers
from penstock.kafka.outbox import Outbox
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.wire.messages.sync_group import SyncGroupResponse
from tests.support.stage import (
    BROKEN,
    CODES,
    HANG_UP,
    HELD,
    HOLDING,
    KINDS,
    LARGE,
    LATER,
    MB,
    NOW,
    PROMISED,
    REFUSED,
    RUNNING,
    SILENT,
    SMALL_BUFFER,
    Asked,
    Peer,
    Stage,
    answer_to,
    staged,
)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as started:
        yield started


@pytest.fixture
def peer(stage: Stage) -> Peer:
    return stage.connect()


def numbers(asked: list[Asked]) -> list[int]:
    return [one.number for one in asked]


def is_open(peer: Peer) -> bool:
    return peer.connection in peer.connection.listener._connections


# Order -----------------------------------------------------------------------------------------


def test_answers_leave_in_the_order_of_requests_whatever_is_known_first(
    stage: Stage, peer: Peer
) -> None:
    for number, kind in enumerate([LATER, NOW, LATER, REFUSED, SILENT, NOW]):
        peer.ask(number, kind)
    peer.exchange()
    assert numbers(stage.handled) == [0, 1, 2, 3, 4, 5], "what waits lets the others begin"
    assert peer.answers() == []
    first, third = stage.waiting(peer)
    stage.finish(third)
    peer.exchange()
    assert peer.answers() == []
    stage.finish(first)
    peer.exchange()
    assert peer.numbers() == [0, 1, 2, 3, 5]


def test_answers_that_are_known_together_leave_together(
    stage: Stage, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        peer.ask(number, LATER)
    peer.exchange()
    flushed: list[int] = []
    flush = Outbox.flush

    def counted(outbox: Outbox) -> None:
        flushed.append(len(outbox.chunks))
        flush(outbox)

    monkeypatch.setattr(Outbox, "flush", counted)
    for one in stage.waiting(peer):
        one.done.set_result(answer_to(one))
    stage.tick()
    peer.exchange()
    assert peer.numbers() == [0, 1, 2]
    assert flushed == [3]


@pytest.mark.parametrize("kind", HOLDING)
def test_a_request_that_holds_keeps_what_follows_from_beginning(
    stage: Stage, peer: Peer, kind: str
) -> None:
    for number, each in enumerate([LATER, kind, NOW, LATER, NOW]):
        peer.ask(number, each)
    peer.exchange()
    assert numbers(stage.handled) == [0, 1]
    first, holding = stage.waiting(peer)
    stage.finish(holding)
    peer.exchange()
    assert numbers(stage.handled) == [0, 1, 2, 3, 4]
    assert peer.numbers() == [], "the first is not answered yet"
    stage.finish(first)
    peer.exchange()
    assert peer.numbers() == [0, 1, 2]
    stage.finish(stage.waiting(peer)[0])
    peer.exchange()
    assert peer.numbers() == [0, 1, 2, 3, 4]


def test_a_promise_is_answered_when_it_is_kept_and_no_request_begins_in_that_moment(
    stage: Stage, peer: Peer
) -> None:
    """Whoever keeps it may be in the middle of handling another."""
    peer.ask(0, PROMISED)
    peer.ask(1, NOW)
    peer.exchange()
    (promised,) = stage.handled
    promised.done.set_result(answer_to(promised))
    peer.received += peer.socket.recv(MB)
    assert (peer.numbers(), numbers(stage.handled)) == ([0], [0])
    peer.exchange()
    assert (peer.numbers(), numbers(stage.handled)) == ([0, 1], [0, 1])


def test_one_connection_that_waits_holds_up_no_other(stage: Stage, peer: Peer) -> None:
    other = stage.connect()
    peer.ask(1, HELD)
    peer.exchange()
    other.ask(1, NOW)
    other.exchange()
    assert (peer.numbers(), other.numbers()) == ([], [1])


def test_errors_are_answered_in_the_form_of_the_api(
    stage: Stage, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    for number, kind in enumerate([REFUSED, BROKEN, LATER, LATER]):
        peer.ask(number, kind)
    peer.exchange()
    refused, broken = stage.waiting(peer)
    stage.finish(refused, BrokerError("no", ErrorCode.INVALID_CONFIG))
    stage.finish(broken, ZeroDivisionError("a bug"))
    peer.exchange()
    assert peer.answers() == [
        (0, ErrorCode.INVALID_REQUEST, 0),
        (1, ErrorCode.UNKNOWN_SERVER_ERROR, 0),
        (2, ErrorCode.INVALID_CONFIG, 0),
        (3, ErrorCode.UNKNOWN_SERVER_ERROR, 0),
    ]
    assert caplog.text.count("request-failed api=SyncGroup") == 2
    assert stage.services.metrics.request("SyncGroup").errors.value == 2


def test_a_fault_of_the_disk_is_told_to_the_engine_and_to_the_client(
    stage: Stage, peer: Peer
) -> None:
    peer.ask(1, LATER)
    peer.exchange()
    fault = StorageFault("the disk is gone")
    stage.finish(stage.waiting(peer)[0], fault)
    peer.exchange()
    assert peer.answers() == [(1, ErrorCode.KAFKA_STORAGE_ERROR, 0)]
    assert stage.services.replicas.faults == [fault]


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, 400), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_however_the_bytes_are_cut_the_answers_are_the_same(
    kinds: list[str], cuts: list[int], order: Random
) -> None:
    with staged() as stage:
        peer = stage.connect()
        for number, kind in enumerate(kinds):
            peer.ask(number, kind, padding=number * 7)
        for cut in cuts:
            peer.send(cut)
        peer.exchange()
        while waiting := stage.waiting(peer):
            stage.finish(order.choice(waiting))
            peer.exchange()
        assert numbers(stage.handled) == list(range(len(kinds)))
        assert peer.answers() == [
            (number, CODES.get(kind, 0), 0) for number, kind in enumerate(kinds) if kind != SILENT
        ]


# What is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ((7).to_bytes(4, "big") + bytes(7), "a frame of 7 bytes"),
        ((-5).to_bytes(4, "big", signed=True), "a frame of -5 bytes"),
        ((64 * MB + 1).to_bytes(4, "big"), "socket.request.max.bytes"),
        ((17 * MB).to_bytes(4, "big") + b"\0\x0e", "the limit for all but Produce"),
        (b"\0\0\0\x14" + (999).to_bytes(2, "big") + bytes(18), "api 999 is not known"),
        (b"\0\0\0\x14\0\x0e\0\x63" + bytes(16), "SyncGroup v99 is not supported"),
        (b"\0\0\0\x0c\0\x0e\0\0" + bytes(4) + b"\xff\xff\x7f\xff", "malformed request"),
    ],
    ids=["small", "negative", "over-the-limit", "large", "unknown-api", "version", "malformed"],
)
def test_a_frame_that_cannot_be_is_the_end_of_its_connection_and_of_no_other(
    stage: Stage, peer: Peer, sent: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = stage.connect()
    peer.ask(1, NOW)
    peer.unsent += sent
    peer.exchange()
    assert peer.hung_up
    assert peer.numbers() == [1], "what came before is answered"
    assert reason in caplog.text
    other.ask(2, NOW)
    other.exchange()
    assert other.numbers() == [2]


def test_bytes_that_follow_a_request_in_its_frame_are_let_be(peer: Peer) -> None:
    peer.ask(1, NOW)
    size = int.from_bytes(peer.unsent[:4], "big")
    peer.unsent[:4] = (size + 3).to_bytes(4, "big")
    peer.unsent += b"abc"
    peer.ask(2, NOW)
    peer.exchange()
    assert peer.numbers() == [1, 2]


def test_a_handler_may_end_the_connection_at_once_or_later(stage: Stage) -> None:
    at_once, later = stage.connect(), stage.connect()
    at_once.ask(1, NOW)
    at_once.ask(2, HANG_UP)
    at_once.ask(3, NOW)
    at_once.exchange()
    assert (at_once.numbers(), at_once.hung_up) == ([1], True)
    later.ask(1, NOW)
    later.ask(2, LATER)
    later.exchange()
    stage.finish(stage.waiting(later)[0], HangUp("enough"))
    later.exchange()
    assert (later.numbers(), later.hung_up) == ([1], True)
    assert 3 not in numbers(stage.handled)


def test_an_answer_that_cannot_be_written_ends_the_connection(
    stage: Stage, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.ask(1, LATER)
    peer.exchange()
    stage.waiting(peer)[0].done.set_result(SyncGroupResponse(error_code=1 << 40))
    peer.exchange()
    assert peer.hung_up
    assert "the answer to SyncGroup cannot be written" in caplog.text
    assert stage.services.metrics.request("SyncGroup").errors.value == 1


def test_a_fault_in_the_decoder_ends_the_connection_and_is_logged_with_its_trace(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(connection_module, "decode_request_header", broken)
    peer.ask(1, NOW)
    peer.exchange()
    assert peer.hung_up
    (record,) = [r for r in caplog.records if r.getMessage().startswith("connection-failed")]
    assert record.exc_info is not None


def test_a_handler_that_is_cancelled_leaves_nobody_waiting_for_ever(
    stage: Stage, peer: Peer
) -> None:
    peer.ask(1, RUNNING)
    peer.exchange()
    stage.waiting(peer)[0].done.cancel()
    peer.exchange()
    assert peer.hung_up


# Back-pressure ---------------------------------------------------------------------------------


def test_a_peer_that_reads_nothing_is_not_read_from(stage: Stage) -> None:
    peer = stage.connect(send_buffer=SMALL_BUFFER)
    for number in range(500):
        peer.ask(number, NOW, answer_bytes=20_000)
    for _ in range(50):
        peer.send()
    assert len(stage.handled) < 50
    assert peer.connection._out.size_bytes < MB
    peer.exchange()
    assert peer.numbers() == list(range(500))


def test_only_so_many_requests_of_a_connection_are_taken_before_they_are_answered(
    stage: Stage, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers_module, "_MAX_ANSWERS", 10)
    for number in range(25):
        peer.ask(number, LATER if number % 2 == 0 else NOW)
    peer.exchange()
    assert len(stage.handled) == 10
    while waiting := stage.waiting(peer):
        assert len(peer.connection._line.answers) <= 10
        stage.finish(waiting[-1])
        peer.exchange()
    assert peer.numbers() == list(range(25))


def test_answers_that_wait_for_an_earlier_one_take_only_so_much_memory(
    stage: Stage, peer: Peer
) -> None:
    peer.ask(0, LATER)
    for number in range(1, 50):
        peer.ask(number, NOW, answer_bytes=300_000)
    peer.exchange()
    assert len(stage.handled) == 5
    stage.finish(stage.waiting(peer)[0])
    peer.exchange()
    assert peer.numbers() == list(range(50))


def test_who_gets_no_memory_waits_its_turn_and_others_are_served_meanwhile(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with staged(memory_bytes=MB) as small:
        first, second, third = small.connect(), small.connect(), small.connect()
        for number, peer in enumerate((first, second)):
            peer.ask(number, NOW, padding=LARGE)
            peer.send(70_000)
        third.ask(3, NOW)
        third.exchange()
        assert third.numbers() == [3]
        second.exchange()
        assert second.numbers() == []
        assert small.loop.memory.waiting == 1
        first.exchange()
        assert first.numbers() == [0]
        second.exchange()
        assert second.numbers() == [1]
        assert small.loop.memory.used_bytes == 0
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_who_announces_much_and_sends_nothing_holds_little() -> None:
    first_bytes = FIRST_BUFFER_BYTES
    with staged(memory_bytes=4 * first_bytes) as small:
        for _ in range(3):
            silent = small.connect()
            silent.ask(0, NOW, padding=10 * MB)
            silent.send(12)
        honest = small.connect()
        honest.ask(1, NOW, padding=900_000)
        honest.exchange()
        assert honest.numbers() == [1]
        assert small.loop.memory.used_bytes == 3 * first_bytes


@pytest.mark.parametrize("size", [MB - 100, MB, 2 * MB + 1, 10 * MB])
def test_a_frame_of_any_size_arrives_whole_in_a_buffer_that_grows_with_it(
    stage: Stage, peer: Peer, size: int
) -> None:
    peer.ask(1, NOW, padding=size)
    while len(peer.unsent) > 2000:
        sent = 4 + size - len(peer.unsent)
        assert stage.loop.memory.used_bytes <= max(2 * MB, 2 * sent)
        peer.send(300_000)
    peer.ask(2, NOW)
    peer.exchange()
    assert peer.numbers() == [1, 2]
    assert stage.loop.memory.used_bytes == 0


def test_frames_that_grow_together_beyond_the_memory_all_arrive_in_the_end() -> None:
    with staged(memory_bytes=4 * MB) as small:
        peers = [small.connect() for _ in range(4)]
        for number, peer in enumerate(peers):
            peer.ask(number, NOW, padding=5 * MB)
            peer.send(1000)
        while any(peer.unsent for peer in peers):
            for peer in peers:
                peer.send()
            assert small.loop.memory.used_bytes <= (4 + 8) * MB
        for peer in peers:
            peer.exchange()
        assert [peer.numbers() for peer in peers] == [[0], [1], [2], [3]]
        assert (small.loop.memory.used_bytes, small.loop.memory.waiting) == (0, 0)


def pass_time(stage: Stage, seconds: float) -> None:
    """As if it were that much later, to those who look whether others stall."""
    was = stage.loop.time
    stage.loop.time = lambda: was() + seconds
    look_at_fillers(stage.loop)
    stage.tick()


def test_while_others_wait_for_memory_a_silent_peer_loses_its_own_and_a_slow_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with staged(memory_bytes=2 * MB) as small:
        silent, slow, honest = small.connect(), small.connect(), small.connect()
        for peer in (silent, slow, honest):
            peer.ask(1, NOW, padding=900_000)
            peer.send(70_000)
        assert small.loop.memory.waiting == 1
        pass_time(small, 9)
        assert is_open(silent), "not yet"
        slow.send(20_000)
        pass_time(small, 2)
        assert [is_open(peer) for peer in (silent, slow, honest)] == [False, True, True]
        assert "and others wait for memory" in caplog.text
        pass_time(small, 100)
        for peer in (honest, slow):
            peer.exchange()
            assert peer.numbers() == [1]
        assert not small.loop.memory.fillers


def test_a_peer_may_be_silent_for_long_while_nobody_waits_for_its_memory() -> None:
    with staged(memory_bytes=2 * MB) as small:
        silent, other = small.connect(), small.connect()
        for peer in (silent, other):
            peer.ask(1, NOW, padding=900_000)
            peer.send(70_000)
        pass_time(small, 100)
        assert not small.loop.memory.is_watched
        silent.exchange()
        assert silent.numbers() == [1]


def test_who_is_not_read_from_does_not_stall() -> None:
    with staged(memory_bytes=MB) as small:
        muted, waiting = small.connect(), small.connect()
        for peer in (muted, waiting):
            peer.ask(1, NOW, padding=900_000)
            peer.send(70_000)
        assert small.loop.memory.is_watched
        muted.connection.mute(1000)
        pass_time(small, 100)
        assert is_open(muted)
        muted.connection._unmute()
        pass_time(small, 9)
        assert is_open(muted)
        pass_time(small, 2)
        assert not is_open(muted)
        waiting.exchange()
        assert waiting.numbers() == [1]


def test_a_muted_connection_takes_nothing_until_the_last_of_its_mutes_ends(
    stage: Stage, peer: Peer
) -> None:
    connection = peer.connection
    connection.mute(200)
    connection.mute(100)
    peer.ask(1, NOW)
    peer.exchange()
    assert peer.numbers() == []
    assert connection._unmuting is not None
    assert connection._unmuting.when() - stage.loop.time() > 150
    connection.mute(300)
    assert connection._unmuting.when() - stage.loop.time() > 250
    connection.mute(0)
    connection._unmuting.cancel()
    connection._unmute()
    peer.exchange()
    assert peer.numbers() == [1]


def test_being_woken_for_nothing_loses_nothing(peer: Peer) -> None:
    peer.ask(1, NOW)
    peer.send(10)
    peer.connection._on_readable()
    peer.exchange()
    assert peer.numbers() == [1]


def test_what_was_held_back_is_not_copied_again_for_each_request(stage: Stage, peer: Peer) -> None:
    for number in range(100):
        peer.ask(number, HELD)
    peer.exchange()
    kept = peer.connection._tail.obj
    for number in range(99):
        assert peer.connection._tail.obj is kept, number
        stage.finish(stage.waiting(peer)[0])
    stage.finish(stage.waiting(peer)[0])
    peer.exchange()
    assert peer.numbers() == list(range(100))


# The end ---------------------------------------------------------------------------------------


def test_a_peer_that_only_stops_sending_gets_every_answer(stage: Stage, peer: Peer) -> None:
    for number, kind in enumerate([NOW, LATER, NOW, LATER]):
        peer.ask(number, kind, padding=LARGE if number == 2 else 0)
    peer.exchange()
    peer.socket.shutdown(socket.SHUT_WR)
    stage.tick()
    for asked in stage.waiting(peer):
        assert is_open(peer)
        stage.finish(asked)
    peer.exchange()
    assert peer.numbers() == [0, 1, 2, 3]
    assert peer.hung_up, "and then we leave too"


@pytest.mark.parametrize("kind", [LATER, HELD, PROMISED])
def test_what_was_kept_is_handled_also_if_the_end_is_seen_first(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The answer that it waited for is known, and the end comes in the same turn of the loop."""
    monkeypatch.setattr(answers_module, "_MAX_ANSWERS", 1)
    with staged() as stage:
        peer = stage.connect()
        for number, each in enumerate([kind, SILENT, NOW]):
            peer.ask(number, each)
        peer.send()
        stage.tick()
        (first,) = stage.handled
        first.done.set_result(answer_to(first))
        peer.socket.shutdown(socket.SHUT_WR)
        peer.exchange()
        assert numbers(stage.handled) == [0, 1, 2]
        assert peer.numbers() == [0, 2]


def test_a_slow_reader_that_stops_sending_gets_every_answer(stage: Stage) -> None:
    peer = stage.connect(send_buffer=SMALL_BUFFER)
    for number in range(20):
        peer.ask(number, NOW, answer_bytes=30_000)
    peer.send()
    assert peer.unsent == b""
    peer.socket.shutdown(socket.SHUT_WR)
    stage.tick()
    assert len(stage.handled) < 20
    peer.exchange()
    assert peer.numbers() == list(range(20))
    assert peer.hung_up


def test_a_muted_peer_that_stops_sending_is_answered_when_its_time_has_come(
    stage: Stage, peer: Peer
) -> None:
    peer.ask(1, HELD)
    peer.ask(2, NOW)
    peer.exchange()
    peer.connection.mute(1000)
    stage.finish(stage.waiting(peer)[0])
    peer.socket.shutdown(socket.SHUT_WR)
    stage.tick()
    assert is_open(peer)
    assert peer.connection._unmuting is not None
    peer.connection._unmuting.cancel()
    peer.connection._unmute()
    peer.exchange()
    assert (peer.numbers(), peer.hung_up) == ([1, 2], True)


@pytest.mark.parametrize("kind", HOLDING)
def test_nothing_is_waited_for_on_behalf_of_a_peer_that_has_left(
    stage: Stage, peer: Peer, kind: str
) -> None:
    peer.ask(1, kind)
    peer.exchange()
    peer.socket.close()
    stage.tick()
    assert not is_open(peer)
    if kind == HELD:
        assert stage.handled[0].done.cancelled(), "a parked fetch would let go of its partitions"
    else:
        stage.finish(stage.handled[0])


def test_an_unfinished_frame_at_the_end_is_dropped(stage: Stage, peer: Peer) -> None:
    peer.ask(1, NOW)
    peer.exchange()
    peer.ask(2, NOW)
    peer.send(10)
    peer.socket.shutdown(socket.SHUT_WR)
    peer.exchange()
    assert (peer.numbers(), peer.hung_up, len(stage.handled)) == ([1], True, 1)


@pytest.mark.parametrize(
    "state",
    [
        *("idle", "held", "running", "later", "filling", "starved", "growing"),
        *("blocked", "muted", "partial"),
    ],
)
@pytest.mark.parametrize("closer", ["peer", "broker"])
def test_a_connection_that_ends_in_any_state_leaves_nothing_behind(state: str, closer: str) -> None:
    with staged(memory_bytes=2 * MB if state == "growing" else MB) as stage:
        hog = stage.connect()
        peer = stage.connect(send_buffer=SMALL_BUFFER)
        enter(state, peer, hog)
        its_socket = weakref.ref(peer.connection._socket)  # which nobody else holds
        if closer == "broker":
            peer.connection.close("because")
        else:
            peer.socket.close()
        stage.tick()
        for asked in stage.handled:
            if asked.waits:
                stage.finish(asked, ZeroDivisionError("nobody asks any more"))
        hog.socket.close()
        stage.tick()
        if state == "muted" and closer == "peer":
            peer.connection.close("it does not look")
        stage.handled.clear()
        del peer.connection
        gc.collect(1)
        assert its_socket() is None
        assert (stage.loop.memory.used_bytes, stage.loop.memory.waiting) == (0, 0)
        assert not stage.loop.memory.fillers
        assert not stage.listener._connections
        assert len(stage.tasks) == 0


def enter(state: str, peer: Peer, hog: Peer) -> None:
    """Bring a connection into a state in which something is owed, held or waited for."""
    match state:
        case "held" | "running" | "later":
            peer.ask(1, state)
            peer.ask(2, NOW)
        case "filling":
            peer.ask(1, NOW, padding=LARGE)
            peer.send(70_000)
            del peer.unsent[:]
        case "starved":
            hog.ask(1, NOW, padding=LARGE)
            hog.send(70_000)
            del hog.unsent[:]
            enter("filling", peer, hog)
            assert peer.connection._loop.memory.waiting == 1
        case "growing":
            hog.ask(1, NOW, padding=LARGE)
            hog.send(70_000)
            del hog.unsent[:]
            peer.ask(1, NOW, padding=2 * MB)
            while not peer.connection._loop.memory.waiting:
                peer.send()
            del peer.unsent[:]
        case "blocked":
            peer.ask(1, NOW, answer_bytes=MB)
        case "muted":
            peer.connection.mute(1000)
            peer.ask(1, NOW)
        case "partial":
            peer.ask(1, NOW)
            peer.send(20)
            del peer.unsent[:]
        case _:
            peer.ask(1, NOW)
    peer.send()


def test_a_connection_is_idle_only_when_nothing_is_owed_to_its_peer() -> None:
    with staged(memory_bytes=MB) as small:
        seen = {}
        for state in ("idle", "held", "later", "filling", "starved", "blocked", "muted"):
            hog, peer = small.connect(), small.connect(send_buffer=SMALL_BUFFER)
            enter(state, peer, hog)
            seen[state] = peer.connection.is_idle
            peer.connection.close("seen")
            hog.connection.close("seen")
        assert [state for state, idle in seen.items() if idle] == ["idle", "filling", "blocked"]


def test_closing_twice_is_closing_once(stage: Stage, peer: Peer) -> None:
    for _ in range(3):
        peer.connection.close("again")
    peer.connection.mute(10)
    assert stage.services.metrics.listener("TEST").closed.value == 1
