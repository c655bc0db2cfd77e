"""A listener and its connections with handlers that do as the test says; nothing happens but by its calls.

One API stands for all: a request says in its own fields how it is to be handled.
"""

import asyncio
import socket
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from penstock.broker.metrics import BrokerMetrics
from penstock.kafka.answers import Later
from penstock.kafka.api import row
from penstock.kafka.apis import APIS
from penstock.kafka.connection import Connection
from penstock.kafka.context import Context
from penstock.kafka.hangup import HangUp
from penstock.kafka.memory import FrameMemory
from penstock.kafka.promise import Promise
from penstock.kafka.server import ConnectionLimits, Listener, Loop, bind
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.node.tasks import Tasks
from penstock.storage.files import OpenFiles
from penstock.wire.api_keys import ApiKey
from penstock.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from tests.support.raw_client import encode_request

NOW: Final = "now"  # answered at once
LATER: Final = "later"  # when `finish` is called; what follows may begin
HELD: Final = "held"  # when `finish` is called; what follows waits
RUNNING: Final = "running"  # as HELD, by a coroutine
PROMISED: Final = "promised"  # as HELD, by a promise
SILENT: Final = "silent"  # no answer
REFUSED: Final = "refused"  # raises a BrokerError
BROKEN: Final = "broken"  # raises something that nobody expects
HANG_UP: Final = "hang-up"  # ends the connection
HOLDING: Final = (HELD, RUNNING, PROMISED)
KINDS: Final = (NOW, NOW, LATER, LATER, *HOLDING, SILENT, REFUSED, BROKEN)
CODES: Final = {REFUSED: ErrorCode.INVALID_REQUEST, BROKEN: ErrorCode.UNKNOWN_SERVER_ERROR}

MB: Final = 1 << 20
LARGE: Final = 100_000  # bytes of a frame that needs memory of its own
SMALL_BUFFER: Final = 4096
_TICKS: Final = 4
_VERSION: Final = 0


@dataclass
class Asked:
    """One request as its handler saw it."""

    number: int
    kind: str
    peer: str
    done: Later
    answer_bytes: int

    @property
    def waits(self) -> bool:
        return self.kind in (LATER, *HOLDING) and not self.done.done()


class Peer:
    """The other end of a connection: it sends and reads what it is told to, and never waits."""

    def __init__(self, stage: "Stage", sock: socket.socket, connection: Connection) -> None:
        self.socket = sock
        self.connection = connection
        self.name = f"peer-{id(self)}"
        self.unsent = bytearray()
        self.received = bytearray()
        self.hung_up = False
        self._stage = stage

    def ask(self, number: int, kind: str, *, padding: int = 0, answer_bytes: int = 0) -> None:
        """Queue a request; `send` sends it."""
        self.unsent += frame(number, kind, self.name, padding, answer_bytes)

    def send(self, limit: int | None = None) -> None:
        """As much of what is queued as the kernel takes, then let the broker work."""
        data = bytes(self.unsent[:limit])
        try:
            sent = self.socket.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except ConnectionError:
            self.hung_up, sent = True, len(data)
        del self.unsent[:sent]
        self._stage.tick()

    def read(self, limit: int = 1 << 20) -> None:
        try:
            data = self.socket.recv(limit)
            self.hung_up = self.hung_up or not data
            self.received += data
        except BlockingIOError:
            pass
        except ConnectionError:
            self.hung_up = True
        self._stage.tick()

    def exchange(self) -> None:
        """Send and read until nothing moves any more."""
        still = 0
        while still < 3:
            before = len(self.unsent), len(self.received), self.hung_up
            self.send()
            self.read()
            still = (
                still + 1 if before == (len(self.unsent), len(self.received), self.hung_up) else 0
            )

    def answers(self) -> list[tuple[int, int, int]]:
        """Of the whole answers so far: number, error code, bytes of payload."""
        found, at = [], 0
        while len(self.received) - at >= 4:
            end = at + 4 + int.from_bytes(self.received[at : at + 4], "big")
            if end > len(self.received):
                break
            number = int.from_bytes(self.received[at + 4 : at + 8], "big")
            body = SyncGroupResponse.decode(memoryview(self.received)[at + 8 : end], _VERSION)
            found.append((number, body.error_code, len(body.assignment)))
            at = end
        return found

    def numbers(self) -> list[int]:
        return [number for number, _, _ in self.answers()]


def frame(number: int, kind: str, peer: str, padding: int = 0, answer_bytes: int = 0) -> bytes:
    request = SyncGroupRequest(
        group_id=kind,
        generation_id=answer_bytes,
        member_id=peer,
        assignments=[SyncGroupRequestAssignment(assignment=bytes(padding))],
    )
    return encode_request(request, _VERSION, number)


@dataclass
class Stage:
    runner: asyncio.Runner
    loop: Loop
    listener: Listener
    services: Any
    tasks: Tasks
    handled: list[Asked] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    _peers: list[Peer] = field(default_factory=list)

    def handle(self, request: SyncGroupRequest, context: Context) -> Any:
        kind = request.group_id
        done = Promise[Any]() if kind == PROMISED else asyncio.get_running_loop().create_future()
        asked = Asked(
            context.header.correlation_id,
            kind,
            request.member_id,
            done,
            request.generation_id,
        )
        self.handled.append(asked)
        context.holds = kind in HOLDING
        match kind:
            case "refused":
                raise BrokerError("not today", ErrorCode.INVALID_REQUEST)
            case "broken":
                raise ZeroDivisionError
            case "hang-up":
                raise HangUp("enough")
            case "silent":
                return None
            case "later" | "held" | "promised":
                return done
            case "running":
                return _awaited(done)
            case _:
                return answer_to(asked)

    def finish(self, asked: Asked, error: Exception | None = None) -> None:
        """The answer of one that waits is known."""
        if error is None:
            asked.done.set_result(answer_to(asked))
        else:
            asked.done.set_exception(error)
        self.tick()

    def waiting(self, peer: Peer) -> list[Asked]:
        return [asked for asked in self.handled if asked.peer == peer.name and asked.waits]

    def connect(self, send_buffer: int | None = None) -> Peer:
        """A connection without a network in between, where time would play a part."""
        ours, theirs = socket.socketpair()
        if send_buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        theirs.setblocking(False)
        ours.setblocking(False)
        assert self.listener._limits.admit("peer") is None
        connection = Connection(ours, self.listener, self.loop, "peer")
        self.listener._connections.add(connection)
        self._peers.append(Peer(self, theirs, connection))
        return self._peers[-1]

    def tick(self, ticks: int = _TICKS) -> None:
        """Let the loop go round a few times."""
        for _ in range(ticks):
            self.runner.run(asyncio.sleep(0))

    def close(self) -> None:
        self.listener.close()
        for peer in self._peers:
            peer.socket.close()
        self.runner.run(self.tasks.close())
        self.tick()


def answer_to(asked: Asked) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=0, assignment=bytes(asked.answer_bytes))


async def _awaited(future: Awaitable[SyncGroupResponse]) -> SyncGroupResponse:
    return await future


@contextmanager
def staged(
    *,
    memory_bytes: int = 64 * MB,
    max_frame_bytes: int = 64 * MB,
    idle_s: float = 600.0,
    connections: int = 100,
    per_host: int = 100,
) -> Iterator[Stage]:
    with asyncio.Runner() as runner:
        loop, tasks = runner.get_loop(), Tasks()
        complaints: list[str] = []
        loop.set_exception_handler(lambda _, about: complaints.append(str(about)))
        faults: list[StorageFault] = []
        services: Any = SimpleNamespace(
            metrics=BrokerMetrics(),
            replicas=SimpleNamespace(
                disk_failed=faults.append,
                faults=faults,
                directory=SimpleNamespace(files=OpenFiles()),
            ),
        )
        sock = bind("127.0.0.1", 0)
        shared = Loop(loop, FrameMemory(memory_bytes), max_frame_bytes, tasks.spawn)
        limits = ConnectionLimits(lambda: connections, lambda: per_host)
        listener = Listener("TEST", sock, services, shared, limits, idle_s)
        stage = Stage(runner, shared, listener, services, tasks, complaints=complaints)
        api = row(
            ApiKey.SYNC_GROUP,
            (_VERSION, _VERSION),
            SyncGroupRequest,
            SyncGroupResponse,
            stage.handle,
            pipelined=True,
        )
        listener.listen()
        with patch.dict(APIS, {ApiKey.SYNC_GROUP: api}):
            runner.run(_open(listener))
            try:
                yield stage
            finally:
                stage.close()
        assert complaints == []


async def _open(listener: Listener) -> None:
    listener.open()
