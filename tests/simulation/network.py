"""The network between processes: bytes arrive late, in order within a connection, or not until a cut is healed.

The server's side of a connection is an object with the socket methods that the broker's own code calls. The
client's side is a transport. What a cut holds back arrives when it is healed, as TCP sends again. A machine
without power sends nothing, and responds with a reset once it is back.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Final

from tests.simulation.loop import SimLoop, World

Address = tuple[str, int]

_UNDELIVERED_MAX_BYTES: Final = 64 << 10  # of a server's side; then its peer takes no more
_FIRST_FD: Final = 1 << 30  # no descriptor of the real process is so large


@dataclass
class Door:
    """Where a process listens. Who comes before it is open waits."""

    loop: SimLoop
    host: str
    accept: Callable[["WireSocket"], None]
    is_open: bool = False
    waiting: list["Link"] = field(default_factory=list)


class WireSocket:
    """The server's side of a connection: a non-blocking socket, as far as the broker uses one."""

    def __init__(self, link: "Link", fd: int) -> None:
        self._link = link
        self._fd = fd
        self._arrived = bytearray()
        self._is_ended = False
        self._unsent: list[bytes] = []  # by this step
        self._undelivered_bytes = 0
        self._is_blocked = False

    # What the broker calls

    def fileno(self) -> int:
        return self._fd

    def recv_into(self, buffer: memoryview) -> int:
        arrived = self._arrived
        self._check_readable()
        size = min(len(buffer), len(arrived))
        buffer[:size] = arrived[:size]
        del arrived[:size]
        return size

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_readable()
        data = bytes(self._arrived[:size])
        if not flags & socket.MSG_PEEK:
            del self._arrived[:size]
        return data

    def send(self, data: Any, _flags: int = 0) -> int:
        room = self.room_bytes()
        size = len(data)
        if size > room:
            data, size = data[:room], room
        self._undelivered_bytes += size
        self._unsent.append(bytes(data))
        self._link.network.touched[self._link] = None
        return size

    def send_file(self, fd: int, position: int, size: int) -> int:
        """As os.sendfile to this socket."""
        data = os.pread(fd, min(size, self.room_bytes()), position)
        return self.send(data) if data else 0

    def close(self) -> None:
        if self._fd >= 0:
            self.discard()
            self._link.network.touched[self._link] = None

    def room_bytes(self) -> int:
        if self._link.is_over or self._fd < 0:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = _UNDELIVERED_MAX_BYTES - self._undelivered_bytes
        if room <= 0:
            self._is_blocked = True
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return room

    def _check_readable(self) -> None:
        if not self._arrived and not self._is_ended:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    # What the network does with it

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_readable(self) -> bool:
        return bool(self._arrived) or self._is_ended

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def is_closed(self) -> bool:
        return self._fd < 0

    def discard(self) -> None:
        """Close it without telling the peer."""
        self._link.network.sockets.pop(self._fd, None)
        self._fd = -1

    def receive(self, data: bytes) -> None:
        if self._fd >= 0:
            self._arrived += data
            self._link.server.readable(self._fd)

    def end(self) -> None:
        """No more data arrives."""
        self._is_ended = True
        if self._fd >= 0:
            self._link.server.readable(self._fd)

    def take_unsent(self) -> bytes:
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        self._unsent.clear()
        return data

    def delivered(self, size: int) -> None:
        self._undelivered_bytes -= size
        if self._is_blocked and self._fd >= 0:
            self._is_blocked = False
            self._link.server.writable(self._fd)


class Link:
    """One connection. `forth` is what goes to the server, `back` what goes to the client."""

    def __init__(self, network: "Network", client: SimLoop, client_host: str, door: Door) -> None:
        self.network = network
        self.client = client
        self.client_host = client_host
        self.server_host = door.host
        self.door = door
        self.server = door.loop
        self.protocol: asyncio.BaseProtocol | None = None
        self.transport: WireTransport | None = None
        self.near = WireSocket(self, network.new_fd())
        self.is_over = False
        self.outlives_power = False  # what is on its way still arrives, and no reset comes
        self.held: list[tuple[bool, bytes | None]] = []  # by a cut, in order
        self._free_s = {True: 0.0, False: 0.0}  # when each direction has delivered all so far

    # Carrying: forth is True towards the server; None is the end

    def carry(self, forth: bool, data: bytes | None) -> None:
        network = self.network
        if self.is_over:
            return
        arrives_s = max(self._free_s[forth], network.world.now_s + self._delay_s(forth))
        self._free_s[forth] = arrives_s
        network.world.call_at(arrives_s, partial(self._arrive, forth, data))

    def _delay_s(self, forth: bool) -> float:
        network = self.network
        if not network.slow_s:  # most of the time
            return network.delay_s()
        ends = self.client_host, self.server_host
        return network.delay_s() + network.slow_s.get(ends if forth else ends[::-1], 0.0)

    def _is_cut(self, forth: bool) -> bool:
        ends = self.client_host, self.server_host
        return self.network.is_cut(*(ends if forth else ends[::-1]))

    def _arrive(self, forth: bool, data: bytes | None) -> None:
        if self.is_over:
            return
        if self._is_cut(forth) or any(it[0] is forth for it in self.held):
            self.held.append((forth, data))
            return
        if data is None:
            self.reset()
        elif forth:
            self._to_server(data)
        elif not self.client.is_killed and self.protocol is not None:
            self.client.call_soon(self._to_client, data)

    def _to_server(self, data: bytes) -> None:
        if not self.server.is_killed:
            self.near.receive(data)

    def _to_client(self, data: bytes) -> None:
        self.near.delivered(len(data))
        if self.transport is not None and not self.transport.is_closing():
            assert self.protocol is not None
            _receive(self.protocol, data)

    def collect(self) -> None:
        """Carry what the server has written in this step, and its end."""
        if self.near.has_unsent:
            self.carry(False, self.near.take_unsent())
        if self.near.is_closed:
            self.carry(False, None)

    def force(self) -> None:
        """Deliver what a cut holds back towards the server, cut or not."""
        held, self.held = self.held, []
        for forth, data in held:
            if forth and data is not None:
                self._to_server(data)

    def healed(self) -> None:
        """What was held back arrives before what is still on its way."""
        held, self.held = self.held, []
        for forth, data in held:
            self._arrive(forth, data)

    def reset(self) -> None:
        """Both sides, as far as they run, see that it is over."""
        if self.is_over:
            return
        self.is_over = True
        self.network.links.pop(self, None)
        if self.server.is_killed:
            self.near.discard()
        else:
            self.near.end()
        if self.transport is not None:
            self.transport.lost()


def _receive(protocol: asyncio.BaseProtocol, data: bytes) -> None:
    """As an event loop does: as much as there is room for at a time."""
    if isinstance(protocol, asyncio.Protocol):
        protocol.data_received(data)
        return
    assert isinstance(protocol, asyncio.BufferedProtocol)
    while data:
        room = memoryview(protocol.get_buffer(-1))
        count = min(len(room), len(data))
        room[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]


class WireTransport(asyncio.Transport):
    """A client's side."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._closing = False
        self._told = False

    def write(self, data: Any) -> None:
        if not self._closing:
            self._link.carry(True, bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._link.carry(True, None)
            self.lost()

    def close(self) -> None:
        self.abort()

    def lost(self) -> None:
        self._closing = True
        if not self._told and not self._link.client.is_killed:
            self._told = True
            assert self._link.protocol is not None
            self._link.client.call_soon(self._link.protocol.connection_lost, None)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.doors: dict[Address, Door] = {}
        self.links: dict[Link, None] = {}
        self.sockets: dict[int, WireSocket] = {}
        self._fds = count(_FIRST_FD)
        self.touched: dict[Link, None] = {}
        self.dark: set[str] = set()  # hosts without power
        self._cuts: dict[tuple[str, str], int] = {}  # from, to: how many cuts there are
        self.slow_s: dict[tuple[str, str], float] = {}  # from, to: added to each delay
        self.host_of: dict[SimLoop, str] = {}

    def delay_s(self) -> float:
        """One in a hundred takes 10 to 200 ms, all others 0.1 to 2 ms."""
        chosen = self.world.rng.random()
        return 0.01 + chosen * 19 if chosen < 0.01 else 0.000_1 + chosen * 0.001_9

    def new_fd(self) -> int:
        return next(self._fds)

    def is_readable(self, fd: int) -> bool:
        known = self.sockets.get(fd)
        return known is not None and known.is_readable

    def peer_has_closed(self, fd: int) -> bool:
        known = self.sockets.get(fd)
        return known is None or known.is_ended

    def send_file(self, out_fd: int, in_fd: int, position: int, size: int) -> int:
        """As os.sendfile."""
        return self.sockets[out_fd].send_file(in_fd, position, size)

    # Cuts

    def is_cut(self, source: str, target: str) -> bool:
        if not self._cuts and not self.dark:  # most of the time
            return False
        return (source, target) in self._cuts or source in self.dark or target in self.dark

    def cut(self, pairs: Iterable[tuple[str, str]]) -> Callable[[], None]:
        """From each first to each second host nothing comes through, until what is returned is called."""
        mine = list(pairs)
        for pair in mine:
            self._cuts[pair] = self._cuts.get(pair, 0) + 1

        def heal() -> None:
            for pair in mine:
                self._cuts[pair] -= 1
                if not self._cuts[pair]:
                    del self._cuts[pair]
            for link in list(self.links):
                link.healed()

        return heal

    def after_step(self) -> None:
        while self.touched:
            links, self.touched = self.touched, {}
            for link in links:
                link.collect()

    # Processes

    def listen(self, address: Address, door: Door) -> None:
        self.doors[address] = door

    def open(self, door: Door) -> None:
        door.is_open = True
        waiting, door.waiting = door.waiting, []
        for link in waiting:
            self._admit(link)

    def close(self, door: Door) -> None:
        door.is_open = False
        for address in [it for it, known in self.doors.items() if known is door]:
            del self.doors[address]
        for link in door.waiting:
            link.reset()

    def died(self, loop: SimLoop, *, silently: bool) -> None:
        """The kernel closes a dead process's connections, unless the machine died with it."""
        for address in [it for it, door in self.doors.items() if door.loop is loop]:
            del self.doors[address]
        for link in [it for it in self.links if loop in (it.client, it.server)]:
            if link.server is loop:
                link.near.discard()
            if not silently:
                link.carry(link.client is loop, None)

    def power_is_back(self, host: str) -> None:
        """Whoever still believes in a connection with the machine as it was learns better."""
        self.dark.discard(host)
        for link in list(self.links):
            if link.outlives_power or host not in (link.client_host, link.server_host):
                continue
            if link.client.is_killed or link.server.is_killed:
                link.held.clear()
                link.carry(link.client.is_killed, None)

    async def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        here = self.host_of[loop]
        await asyncio.sleep(self.delay_s() * 2)
        if self.is_cut(here, host) or self.is_cut(host, here):
            await asyncio.sleep(120)
            raise OSError(110, "Connection timed out")
        door = self.doors.get((host, port))
        if door is None:
            raise ConnectionRefusedError(111, "Connection refused")
        link = Link(self, loop, here, door)
        self.links[link] = None
        self.sockets[link.near.fileno()] = link.near
        protocol = factory()
        assert isinstance(protocol, asyncio.BaseProtocol)
        link.protocol = protocol
        link.transport = WireTransport(link)
        protocol.connection_made(link.transport)
        if door.is_open:
            self._admit(link)
        else:
            door.waiting.append(link)
        return link.transport, protocol

    def _admit(self, link: Link) -> None:
        door = link.door
        door.loop.call_soon(door.accept, link.near)
