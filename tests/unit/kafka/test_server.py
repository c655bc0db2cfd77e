import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka import server
from penstock.kafka.server import ConnectionLimits, bind
from penstock.storage.files import OpenFiles, SegmentFile
from tests.support.stage import HELD, MB, NOW, Stage, frame, staged
from tests.unit.storage.logs import descriptors_left

PATIENCE_S = 60.0


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged(connections=3, per_host=2, idle_s=10) as started:
        yield started


def until(stage: Stage, what: Callable[[], object]) -> None:
    """The kernel may take a moment to hand on what was sent."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline_s
        stage.tick()


def dial(stage: Stage, source: str = "127.0.0.1") -> socket.socket:
    """Returns when the listener has taken or refused it."""
    _, opened, _, refused = metrics(stage)
    sock = knock(stage, source)
    until(stage, lambda: sum(metrics(stage)[1::2]) > opened + refused)
    return sock


def knock(stage: Stage, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(stage.listener.address, PATIENCE_S, (source, 0))


def is_refused(sock: socket.socket) -> bool:
    """The other side has closed it without a word."""
    sock.settimeout(PATIENCE_S)
    try:
        return sock.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def serves(stage: Stage, sock: socket.socket) -> bool:
    sock.settimeout(PATIENCE_S)
    sock.sendall(frame(5, NOW, "somebody"))
    until(stage, lambda: select.select([sock], [], [], 0)[0])
    return len(sock.recv(100)) > 0


def metrics(stage: Stage) -> tuple[float, float, float, float]:
    found = stage.services.metrics.listener("TEST")
    return (
        found.connections.value,
        found.opened.value,
        found.closed.value,
        found.refused.value,
    )


# Taking connections ----------------------------------------------------------------------------


def test_who_connects_before_the_door_opens_is_answered_later() -> None:
    with staged() as stage:
        stage.loop.remove_reader(stage.listener._socket.fileno())
        sock = knock(stage)
        stage.tick()
        assert not stage.listener._connections
        stage.listener.open()
        assert serves(stage, sock)
        sock.close()


@pytest.mark.parametrize(("near_us", "fits"), [(60_000_000, True), (1, False)])
def test_a_peer_that_is_near_gets_a_small_send_buffer_and_any_other_the_kernels(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, near_us: int, fits: bool
) -> None:
    monkeypatch.setattr(server, "_NEAR_US", near_us)
    asked = server._NEAR_SEND_BUFFER_BYTES
    with dial(stage, "127.0.0.2"):  # as good as another host
        actual = taken(stage).getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert (actual == 2 * asked) == fits


def test_what_goes_to_a_peer_on_this_host_is_not_paced(stage: Stage) -> None:
    with dial(stage):
        assert congestion_control(taken(stage)) == "reno"


def test_what_goes_to_another_host_is_sent_as_the_operator_has_set_it(stage: Stage) -> None:
    with socket.socket() as other, dial(stage, "127.0.0.2"):
        assert congestion_control(taken(stage)) == congestion_control(other)


def test_where_the_kernel_cannot_be_told_so_they_are_served_all_the_same(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_UNPACED", b"no such")
    with dial(stage) as sock:
        assert serves(stage, sock)


def taken(stage: Stage) -> socket.socket:
    """Our end of the one connection that there is."""
    (connection,) = stage.listener._connections
    return connection._socket


def congestion_control(sock: socket.socket) -> str:
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def test_connections_are_taken_up_to_the_limit_of_one_address_and_of_all(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = dial(stage), dial(stage)
    third = dial(stage)
    assert is_refused(third)
    assert "max.connections.per.ip" in caplog.text
    other = dial(stage, "127.0.0.2")
    assert serves(stage, other)
    last = dial(stage, "127.0.0.3")
    assert is_refused(last)
    assert "(max.connections)" in caplog.text
    assert metrics(stage) == (3, 3, 0, 2)

    first.close()
    until(stage, lambda: metrics(stage)[0] == 2)
    again = dial(stage)
    assert serves(stage, again)
    assert metrics(stage) == (3, 4, 1, 2)
    for sock in (second, third, other, last, again):
        sock.close()


def test_a_peer_that_left_before_it_was_taken_holds_up_nobody(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = stage.listener._socket
    outcomes: list[int | None] = [errno.ECONNABORTED, None, errno.EPROTO, None]

    class Door:
        def accept(self) -> Any:
            code = outcomes.pop(0) if outcomes else None
            if code is not None:
                raise OSError(code, os.strerror(code))
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(stage.listener, "_socket", Door())
    first, second = dial(stage), dial(stage)
    assert serves(stage, first)
    assert serves(stage, second)
    assert caplog.text == ""
    first.close()
    second.close()


def test_without_descriptors_it_pauses_instead_of_spinning_and_then_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, fails = stage.listener._socket, 1
    timers: list[Any] = []

    class Door:
        calls = 0

        def accept(self) -> Any:
            nonlocal fails
            Door.calls += 1
            if fails:
                fails -= 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    monkeypatch.setattr(stage.listener, "_socket", Door())
    monkeypatch.setattr(stage.loop, "call_later", lambda _, due: timers.append(due))
    sock = knock(stage)
    until(stage, lambda: Door.calls)
    stage.tick(20)
    assert (Door.calls, len(stage.listener._connections)) == (1, 0)
    assert "accept-failed" in caplog.text
    timers[0]()
    assert serves(stage, sock)
    stage.listener.stop_accepting()
    timers[0]()  # too late, and harmless
    sock.close()


def test_without_descriptors_segment_files_are_closed_for_a_new_client(
    stage: Stage, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    files: OpenFiles = stage.services.replicas.directory.files
    segments = [SegmentFile(files, str(tmp_path), number, ".log") for number in range(100)]
    for segment in segments:
        segment.create()
    with dial(stage, "127.0.0.2") as old, descriptors_left(1):
        sock = knock(stage)
        assert serves(stage, sock)
        assert serves(stage, old)
    assert "accept-failed" not in caplog.text
    assert 0 < len(files) < 100, "not more are closed than are needed soon"
    assert segments[0].open().fd >= 0
    files.close_all()
    sock.close()


def test_a_socket_that_cannot_be_set_up_is_forgotten(stage: Stage) -> None:
    ours, theirs = socket.socketpair()  # it has no TCP_NODELAY
    stage.listener._admit(ours, "nowhere")
    assert ours.fileno() == -1
    assert (stage.listener._limits.count, stage.listener._connections) == (0, set())
    theirs.close()


def test_dead_hosts_are_noticed_by_the_kernel(stage: Stage) -> None:
    sock = dial(stage)
    (connection,) = stage.listener._connections
    assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    sock.close()


# Limits ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60))
def test_limits_count_who_is_there(moves: list[tuple[bool, str]]) -> None:
    limits = ConnectionLimits(lambda: 4, lambda: 2)
    inside: list[str] = []
    for comes, host in moves:
        if comes:
            refusal = limits.admit(host)
            assert (refusal is None) == (len(inside) < 4 and inside.count(host) < 2)
            inside += [host] if refusal is None else []
        elif host in inside:
            limits.leave(host)
            inside.remove(host)
        assert limits.count == len(inside)
        assert dict(limits._by_host) == {host: inside.count(host) for host in inside}


def test_connections_are_refused_for_which_the_process_has_no_descriptors() -> None:
    limits = ConnectionLimits(lambda: 100, lambda: 100, 2)
    assert limits.admit("a") is None
    assert limits.admit("b") is None
    assert "ulimit -n" in (limits.admit("c") or "")
    limits.leave("a")
    assert limits.admit("c") is None


def test_limits_may_change_while_it_runs() -> None:
    limit = 1
    limits = ConnectionLimits(lambda: limit, lambda: 100)
    assert limits.admit("a") is None
    assert limits.admit("a") is not None
    limit = 2
    assert limits.admit("a") is None


# Idle connections ------------------------------------------------------------------------------


def test_a_connection_that_is_silent_for_too_long_is_closed_unless_we_owe_it_an_answer(
    stage: Stage,
) -> None:
    silent, waiting = stage.connect(), stage.connect()
    waiting.ask(1, HELD)
    waiting.exchange()
    for peer in (silent, waiting):
        peer.connection.used_s -= 11
    stage.listener._sweep()
    silent.read()
    waiting.read()
    assert (silent.hung_up, waiting.hung_up) == (True, False)

    fresh = stage.connect()
    fresh.connection.used_s -= 9
    stage.listener._sweep()
    fresh.read()
    assert not fresh.hung_up


def test_a_peer_that_takes_none_of_its_answers_is_closed_at_last(stage: Stage) -> None:
    """Else it would hold on to files and memory for ever."""
    peer = stage.connect(send_buffer=4096)
    peer.ask(1, NOW, answer_bytes=MB)
    peer.send()
    peer.connection.used_s -= 11
    peer.read(10_000)
    stage.listener._sweep()
    assert peer.connection in stage.listener._connections, "it has just read something"
    peer.connection.used_s -= 11
    stage.listener._sweep()
    assert peer.connection not in stage.listener._connections


# The end ---------------------------------------------------------------------------------------


def test_closing_ends_every_connection_and_frees_the_address(stage: Stage) -> None:
    address = stage.listener.address
    sock = dial(stage)
    stage.listener.close()
    stage.listener.close()
    assert is_refused(sock)
    assert (stage.listener._limits.count, metrics(stage)[0]) == (0, 0)
    bind(*address).close()
    sock.close()


def test_an_address_that_is_taken_is_an_error_and_leaves_no_socket(stage: Stage) -> None:
    with pytest.raises(OSError, match="in use"):
        bind(*stage.listener.address)


def test_an_address_of_either_family_can_be_bound() -> None:
    for host in ("127.0.0.1", "::1"):
        sock = bind(host, 0)
        assert sock.getsockname()[0] == host
        sock.close()
