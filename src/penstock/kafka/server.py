"""Listeners: they accept connections within their limits, and close those that nobody uses."""

import asyncio
import errno
import logging
import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from penstock.broker.partitions.turns import Turns
from penstock.kafka.connection import Connection
from penstock.kafka.context import Services, Spawn
from penstock.kafka.memory import FrameMemory

_log = logging.getLogger(__name__)

_SCRATCH_BYTES: Final = 256 << 10
_BACKLOG: Final = 4096
_ACCEPTS_PER_TICK: Final = 256
_SWEEP_S: Final = 1.0
_OUT_OF_FILES_PAUSE_S: Final = 1.0
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE)
_LONG_REQUESTS: Final = 2  # with many elements, that are objects at the same time
_LONG_APPENDS: Final = 2  # likewise; they wait for nobody while they count
_UNPACED: Final = b"reno"  # which every kernel has, and anyone may choose
_NEAR_US: Final = 100  # a round trip to a peer in the same rack
_NEAR_SEND_BUFFER_BYTES: Final = 200_000  # the kernel doubles it: 4 GB/s at such a round trip
_TCP_INFO_RTT: Final = Struct("68xI")
_GONE: Final = frozenset(  # what accept(2) says of a peer that went away before we came to it
    (
        errno.ECONNABORTED,
        errno.EPROTO,
        errno.ENETDOWN,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.EOPNOTSUPP,
    )
)


class Loop:
    """The event loop as connections use it, and what they share: one scratch buffer, one memory."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        memory: FrameMemory,
        max_frame_bytes: int,
        spawn: Spawn,
        turns: Turns | None = None,
    ) -> None:
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.memory = memory
        self.max_frame_bytes = max_frame_bytes
        self.spawn = spawn
        self.turns = turns or Turns()
        self.long_requests = asyncio.Semaphore(_LONG_REQUESTS)
        self.long_appends = asyncio.Semaphore(_LONG_APPENDS)
        self.time: Callable[[], float] = loop.time
        self.add_reader: Callable[..., Any] = loop.add_reader
        self.remove_reader: Callable[[int], Any] = loop.remove_reader
        self.add_writer: Callable[..., Any] = loop.add_writer
        self.remove_writer: Callable[[int], Any] = loop.remove_writer
        self.call_later: Callable[..., asyncio.TimerHandle] = loop.call_later
        self.call_soon: Callable[..., asyncio.Handle] = loop.call_soon
        self.create_future: Callable[[], asyncio.Future[Any]] = loop.create_future
        self.peer_has_closed: Callable[[int], bool] = peer_has_closed


class ConnectionLimits:
    """Counted over all listeners of the broker. The limits may change while it runs."""

    def __init__(
        self, total: Callable[[], int], per_host: Callable[[], int], possible: int = 1 << 62
    ) -> None:
        """`possible`: connections for which the process has descriptors."""
        self._total = total
        self._per_host = per_host
        self._possible = possible
        self._by_host: Counter[str] = Counter()
        self.count = 0

    def admit(self, host: str) -> str | None:
        """None when one more may come in, else why not."""
        if self.count >= self._total():
            return (
                f"{self.count} connections are open; the limit is {self._total()} (max.connections)"
            )
        if self.count >= self._possible:
            return (
                f"{self.count} connections are open; the process has descriptors for no more than"
                f" {self._possible} (ulimit -n)"
            )
        if self._by_host[host] >= self._per_host():
            return (
                f"{host} has {self._by_host[host]} connections open; "
                f"the limit is {self._per_host()} (max.connections.per.ip)"
            )
        self.count += 1
        self._by_host[host] += 1
        return None

    def leave(self, host: str) -> None:
        self.count -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class Listener:
    """One door of the broker: an address, a name, and the connections that came through it."""

    def __init__(
        self,
        name: str,
        sock: socket.socket,
        services: Services,
        loop: Loop,
        limits: ConnectionLimits,
        idle_s: float,
    ) -> None:
        self.name = name
        self.services = services
        self._socket = sock
        self._loop = loop
        self._limits = limits
        self._idle_s = idle_s
        self._connections: set[Connection] = set()
        self._metrics = services.metrics.listener(name)
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def listen(self) -> None:
        """From now on nobody is refused; who connects waits until it opens."""
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)

    def open(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)
        self._sweep_timer = self._loop.call_later(_SWEEP_S, self._sweep)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TICK):
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _GONE or self._has_made_room(error):
                    continue
                self._pause_accepting(error)
                return
            self._admit(sock, str(address[0]))

    def _admit(self, sock: socket.socket, host: str) -> None:
        refusal = self._limits.admit(host)
        if refusal is not None:
            _log.warning("connection-refused client=%s reason=%s", host, refusal)
            self._metrics.refused.value += 1
            sock.close()
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a dead host says nothing
        except OSError:  # it is gone again
            self._limits.leave(host)
            sock.close()
            return
        with suppress(OSError):  # it will do without
            _fit_to_distance(sock)
        self._connections.add(Connection(sock, self, self._loop, host))
        self._metrics.opened.value += 1
        self._metrics.connections.value += 1

    def _has_made_room(self, error: OSError) -> bool:
        """Close idle segment files for a client that waits: they open again when they are needed."""
        if error.errno not in _OUT_OF_FILES:
            return False
        given = self.services.replicas.directory.files.give_back()
        if given:
            _log.info("segment-files-closed count=%d reason=%s", given, os.strerror(error.errno))
        return given > 0

    def _pause_accepting(self, error: OSError) -> None:
        """Most likely out of file descriptors: trying again at once would only spin."""
        _log.error("accept-failed listener=%s error=%s", self.name, os.strerror(error.errno or 0))
        fd = self._socket.fileno()
        if fd < 0:
            return
        self._loop.remove_reader(fd)
        self._loop.call_later(_OUT_OF_FILES_PAUSE_S, self._accept_again)

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _sweep(self) -> None:
        deadline_s = self._loop.time() - self._idle_s
        for connection in [c for c in self._connections if c.used_s < deadline_s and c.is_idle]:
            connection.close(
                f"idle for {self._idle_s:g} s (connections.max.idle.ms)", expected=True
            )
        self._sweep_timer = self._loop.call_later(_SWEEP_S, self._sweep)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._limits.leave(connection.client_host)
        self._metrics.closed.value += 1
        self._metrics.connections.value -= 1

    def stop_accepting(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def close(self) -> None:
        self.stop_accepting()
        for connection in list(self._connections):
            connection.close("the broker is stopping", expected=True)


def peer_has_closed(fd: int) -> bool:
    """Whether the peer sends no more. Reading would show it only behind all that was sent before."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    return bool(poll.poll(0))


def _fit_to_distance(sock: socket.socket) -> None:
    """Pacing (BBR) is for networks: spread over time, a queue costs up to twice the processor time of sending it.

    On this host there is nothing to pace for, so nothing is. To another that is near little need be under way, and
    little is queued. To any other the buffer grows with the distance.
    """
    if sock.getpeername()[0] == sock.getsockname()[0]:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, _UNPACED)
        return
    (rtt_us,) = _TCP_INFO_RTT.unpack(
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_RTT.size)
    )
    if 0 < rtt_us < _NEAR_US:  # 0: not known
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _NEAR_SEND_BUFFER_BYTES)


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address, not yet listening. Raises OSError when it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    return sock
