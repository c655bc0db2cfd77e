"""Answers on their way to one peer: bytes from memory, slices of files straight from the page cache."""

import errno
import os
import socket
from typing import Any, Final

from penstock.kafka.answers import release, weight
from penstock.kafka.hangup import HangUp
from penstock.model.errors import StorageFault
from penstock.storage.files import FileSlice
from penstock.wire.fields import Chunk

_JOINED_BYTES: Final = 256 << 10  # small answers that leave with one system call
_PUSHED_APART_BYTES: Final = 128 << 10  # a slice from this size on, from the bytes before it
_DISK_ERRORS: Final = (errno.EIO, errno.EUCLEAN)  # sendfile fails for the file, not for the socket


class Outbox:
    """Chunks leave in order, each of them once."""

    __slots__ = ("_head_sent", "_socket", "chunks", "size_bytes")

    def __init__(self, sock: socket.socket) -> None:
        self.chunks: list[Chunk] = []
        self.size_bytes = (
            0  # of what lies in memory, and something for each slice: it holds a descriptor
        )
        self._head_sent = 0  # bytes of the first chunk that have left
        self._socket = sock

    def put(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.chunks.append(chunk)
            self.size_bytes += weight(chunk)

    def flush(self) -> None:
        """Send until all is gone. BlockingIOError: the peer takes no more now; OSError: it is gone."""
        chunks = self.chunks
        while chunks:
            head = chunks[0]
            if isinstance(head, FileSlice):
                self._send_slice(head)
            else:
                self._send_bytes()

    def _send_slice(self, head: FileSlice) -> None:
        if head.is_stale:
            raise HangUp("the log was truncated under a queued answer")
        position, left = head.position + self._head_sent, head.size - self._head_sent
        try:
            sent = os.sendfile(self._socket.fileno(), head.fileno(), position, left)
        except OSError as error:
            if error.errno in _DISK_ERRORS:
                raise StorageFault(
                    f"{head.file.path}: read of {left} bytes at {position} failed: {error.strerror}"
                ) from error
            raise
        if sent == 0:
            raise HangUp(f"{head.file.path} ends before byte {position + left}")
        self._head_sent += sent
        if self._head_sent == head.size:
            self._head_sent = 0
            del self.chunks[0]
            self.size_bytes -= weight(head)
            head.release()

    def _send_bytes(self) -> None:
        """Send the run of bytes at the front, joined: one system call for many small answers."""
        run: list[Any] = []
        size = 0
        for chunk in self.chunks:
            if isinstance(chunk, FileSlice) or size > _JOINED_BYTES:
                break
            run.append(chunk)
            size += len(chunk)
        data = run[0] if len(run) == 1 else b"".join(run)
        skipped = self._head_sent
        flags = socket.MSG_MORE if self._is_pushed_with(len(run)) else 0
        sent = self._socket.send(memoryview(data)[skipped:] if skipped else data, flags) + skipped
        gone = 0
        for chunk in run:
            if sent < len(chunk):
                break
            sent -= len(chunk)
            self.size_bytes -= len(chunk)
            gone += 1
        del self.chunks[:gone]
        self._head_sent = sent

    def _is_pushed_with(self, follower: int) -> bool:
        """Whether bytes and the slice behind them leave as one, which the peer hears of once. Packets that are cut across
        the pages of a large slice cost a fifth more than they save."""
        return follower < len(self.chunks) and len(self.chunks[follower]) < _PUSHED_APART_BYTES

    def clear(self) -> None:
        release(self.chunks)
        self.chunks.clear()
        self.size_bytes = self._head_sent = 0
