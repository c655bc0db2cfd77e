import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kafka.hangup import HangUp
from penstock.kafka.outbox import Outbox
from penstock.model.errors import StorageFault
from penstock.storage.files import FileSlice, OpenFiles, SegmentFile
from penstock.wire.fields import Chunk
from tests.unit.storage.logs import scratch

CONTENT = bytes(range(256)) * 1000


class Wire:
    """An outbox and its reader."""

    def __init__(self, send_buffer: int | None = None) -> None:
        self._ours, self._theirs = socket.socketpair()
        if send_buffer is not None:
            self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self.outbox = Outbox(self._ours)
        self.received = b""

    def flush(self) -> bool:
        """Whether all has left."""
        try:
            self.outbox.flush()
        except BlockingIOError:
            return False
        return True

    def read(self, limit: int) -> None:
        try:
            self.received += self._theirs.recv(limit)
        except BlockingIOError:
            pass

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire(send_buffer=4096)
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> SegmentFile:
    return file_in(str(tmp_path))


def file_in(directory: str) -> SegmentFile:
    made = SegmentFile(OpenFiles(), directory, 0, ".log")
    made.create()
    made.append(CONTENT)
    return made


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(
        st.one_of(
            st.integers(0, 60_000),  # bytes of memory
            st.tuples(st.integers(0, 100_000), st.integers(1, 60_000)),  # of the file
        ),
        max_size=12,
    ),
    reads=st.lists(st.integers(1, 20_000), max_size=20),
)
def test_whatever_the_pace_of_the_reader_it_gets_every_byte_once_and_in_order(
    pieces: list[int | tuple[int, int]], reads: list[int]
) -> None:
    with scratch() as path:
        wire, file = Wire(send_buffer=4096), file_in(path)
        chunks: list[Chunk] = []
        expected = b""
        for number, piece in enumerate(pieces):
            if isinstance(piece, int):
                chunks.append(data := bytes([number % 251]) * piece)
            else:
                chunks.append(FileSlice(file, *piece))
                data = CONTENT[piece[0] : piece[0] + piece[1]]
            expected += data
        half = len(chunks) // 2
        wire.outbox.put(chunks[:half])
        wire.flush()
        wire.outbox.put(chunks[half:])
        for limit in reads:
            wire.read(limit)
            wire.flush()
        while not wire.flush():
            wire.read(1 << 20)
        while len(wire.received) < len(expected):
            wire.read(1 << 20)
        assert wire.received == expected
        assert (wire.outbox.chunks, wire.outbox.size_bytes) == ([], 0)
        wire.close()


def test_small_answers_leave_with_one_system_call(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Counting:
        def send(self, data: bytes, _flags: int) -> int:
            calls.append(len(data))
            return len(data)

    monkeypatch.setattr(wire.outbox, "_socket", Counting())
    wire.outbox.put([b"x" * 100 for _ in range(50)])
    wire.outbox.flush()
    assert calls == [5000]


@pytest.mark.parametrize(("size", "together"), [(20_000, True), (200_000, False)])
def test_the_head_of_an_answer_leaves_together_with_a_small_slice_and_before_a_large_one(
    wire: Wire, file: SegmentFile, monkeypatch: pytest.MonkeyPatch, size: int, together: bool
) -> None:
    flags = []

    class Noting:
        def send(self, data: bytes, given: int) -> int:
            flags.append(given)
            return len(data)

    monkeypatch.setattr(wire.outbox, "_socket", Noting())
    monkeypatch.setattr(Outbox, "_send_slice", lambda outbox, _: outbox.clear())
    wire.outbox.put([b"head", FileSlice(file, 0, size)])
    wire.outbox.flush()
    assert flags == [socket.MSG_MORE if together else 0]


def test_a_file_is_let_go_of_when_its_slice_has_left_or_will_not(
    wire: Wire, file: SegmentFile
) -> None:
    gone, kept = FileSlice(file, 0, 10), FileSlice(file, 0, 100_000)
    fd = file.fileno()
    wire.outbox.put([gone, kept])
    assert not wire.flush()
    file.unlink()
    os.fstat(fd)  # the queued slice keeps it
    assert (gone._handle is None, kept._handle is None) == (True, False)
    wire.outbox.clear()
    assert kept._handle is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_a_deleted_file_is_sent_to_its_end(wire: Wire, file: SegmentFile) -> None:
    wire.outbox.put([FileSlice(file, 0, len(CONTENT))])
    wire.flush()
    file.unlink()
    while not wire.flush():
        wire.read(1 << 20)
    while len(wire.received) < len(CONTENT):
        wire.read(1 << 20)
    assert wire.received == CONTENT


def test_what_was_cut_off_under_a_queued_slice_is_never_sent(wire: Wire, file: SegmentFile) -> None:
    wire.outbox.put([b"head", FileSlice(file, 0, 100_000)])
    assert not wire.flush()
    file.truncate(50_000)
    file.append(b"something else" * 5000)
    wire.read(1 << 20)
    with pytest.raises(HangUp, match="truncated under a queued answer"):
        wire.outbox.flush()


def test_a_file_that_somebody_else_has_cut_is_not_waited_for(wire: Wire, file: SegmentFile) -> None:
    wire.outbox.put([FileSlice(file, 0, len(CONTENT))])
    os.truncate(file.path, 10)
    with pytest.raises(HangUp, match="ends before byte"):
        wire.outbox.flush()


def test_a_disk_that_cannot_read_is_told_from_a_peer_that_is_gone(
    wire: Wire, file: SegmentFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = errno.EIO

    def failing(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "sendfile", failing)
    wire.outbox.put([FileSlice(file, 0, 100)])
    with pytest.raises(StorageFault, match="read of 100 bytes at 0 failed"):
        wire.outbox.flush()
    code = errno.EPIPE
    with pytest.raises(BrokenPipeError):
        wire.outbox.flush()
