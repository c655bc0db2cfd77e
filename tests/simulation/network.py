"""The network between processes: bytes arrive late, in order within a connection, or not until a cut is healed.

A server's side of a connection is a real socket, so that the broker's own code serves it; the other end of
that socket is the wire. A client's side is a transport. What a cut holds back arrives when it is healed, as
TCP sends again; a machine without power says nothing, and answers with a reset once it is back.
"""

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.simulation.loop import SimLoop, World

Address = tuple[str, int]

_BUFFER_BYTES: Final = 4 << 20


@dataclass
class Door:
    """Where a process listens. Who comes before it is open waits."""

    loop: SimLoop
    host: str
    accept: Callable[["WireSocket"], None]
    is_open: bool = False
    waiting: list["Link"] = field(default_factory=list)


class WireSocket(socket.socket):
    """A server's side. It tells the network when there may be something to carry."""

    link: "Link | None" = None

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._touch()
        return super().send(data, flags)

    def fileno(self) -> int:  # sendfile asks for it
        self._touch()
        return super().fileno()

    def close(self) -> None:
        self._touch()
        super().close()

    def _touch(self) -> None:
        if self.link is not None:
            self.link.network.touched[self.link] = None


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
        near, self.far = socket.socketpair()
        for end in (near, self.far):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
        self.near = WireSocket(fileno=near.detach())
        self.near.setblocking(False)
        self.near_fd = socket.socket.fileno(self.near)
        self.near.link = self
        self.is_over = False
        self.outlives_power = False  # what is on its way still arrives, and no reset comes
        self.held: list[tuple[bool, bytes | None]] = []  # by a cut, in order
        self._free_s = {True: 0.0, False: 0.0}  # when each direction has delivered all so far

    # Carrying: forth is True towards the server; None is the end

    def carry(self, forth: bool, data: bytes | None) -> None:
        network = self.network
        if self.is_over:
            return
        if any(it[0] is forth for it in self.held) or network.is_cut(*self._ends(forth)):
            self.held.append((forth, data))
            return
        arrives_s = max(self._free_s[forth], network.world.now_s + network.delay_s())
        self._free_s[forth] = arrives_s
        network.world.call_later(arrives_s - network.world.now_s, lambda: self._arrive(forth, data))

    def _ends(self, forth: bool) -> tuple[str, str]:
        ends = self.client_host, self.server_host
        return ends if forth else ends[::-1]

    def _arrive(self, forth: bool, data: bytes | None) -> None:
        if self.is_over:
            return
        if self.network.is_cut(*self._ends(forth)):
            self.held.append((forth, data))
            return
        if data is None:
            self.reset()
        elif forth:
            self._to_server(data)
        elif not self.client.is_killed and self.protocol is not None:
            self.client.call_soon(self._to_client, data)

    def _to_server(self, data: bytes) -> None:
        if self.server.is_killed:
            return
        try:
            sent = self.far.send(data)
        except BrokenPipeError:  # it has hung up; that is on its way to us
            return
        assert sent == len(data), "the buffers are large enough"
        self.server.readable(self.near_fd)

    def _to_client(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            assert self.protocol is not None
            _receive(self.protocol, data)

    def collect(self) -> None:
        """What the server has written goes on its way."""
        while not self.is_over:
            try:
                data = self.far.recv(1 << 20)
            except BlockingIOError:
                self.server.writable(self.near_fd)
                return
            except OSError:
                data = b""
            self.carry(False, data or None)
            if not data:
                return

    def force(self) -> None:
        """What a cut holds back towards the server arrives now, cut or not."""
        held, self.held = self.held, []
        for forth, data in held:
            if forth and data is not None:
                self._to_server(data)

    def healed(self) -> None:
        held, self.held = self.held, []
        for forth, data in held:
            self.carry(forth, data)

    def reset(self) -> None:
        """Both sides, as far as they run, see that it is over."""
        if self.is_over:
            return
        self.is_over = True
        self.network.links.pop(self, None)
        self.far.close()
        if not self.server.is_killed:
            self.server.readable(self.near_fd)
        elif socket.socket.fileno(self.near) >= 0:
            socket.socket.close(self.near)
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
        self._ever: list[Link] = []
        self.touched: dict[Link, None] = {}
        self.dark: set[str] = set()  # hosts without power
        self._cuts: dict[tuple[str, str], int] = {}  # from, to: how many cuts there are
        self.host_of: dict[SimLoop, str] = {}

    def delay_s(self) -> float:
        rng = self.world.rng
        if rng.random() < 0.01:
            return rng.uniform(0.01, 0.2)
        return rng.uniform(0.000_1, 0.002)

    # Cuts

    def is_cut(self, source: str, target: str) -> bool:
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

    def finish(self) -> None:
        for link in self._ever:
            link.is_over = True
            link.near.link = None
            link.near.close()
            link.far.close()

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
            if link.server is loop and socket.socket.fileno(link.near) >= 0:
                socket.socket.close(link.near)
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
        self._ever.append(link)
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
