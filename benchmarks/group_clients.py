"""Raw clients of groups: members that do what the protocol asks and nothing else, and a blast of equal requests."""

import asyncio
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.rig import CpuMeter, Used
from penstock.client.connection import Connection, parse_address
from penstock.groups.protocol import encode_assignment
from penstock.model.errors import ErrorCode
from penstock.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from penstock.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from penstock.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from penstock.wire.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from penstock.wire.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
)
from penstock.wire.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

PATIENCE_MS: Final = 120_000
CLASSIC_INTERVAL_S: Final = 3.0  # heartbeat.interval.ms of every client
SESSION_MS: Final = 45_000


async def connect(bootstrap: str) -> Connection:
    address = parse_address(bootstrap)
    return await Connection.open(address, client_id="bench", timeout_ms=PATIENCE_MS)


@dataclass
class Progress:
    """What the members of a group know together."""

    members: int
    topic: str
    partitions: int
    at: dict[int, int] = field(default_factory=dict)  # members by the generation they are in
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, member: int, generation: int) -> None:
        self.at[member] = generation
        self.changed.set()

    async def until(self, members: int) -> None:
        """All of them are in one generation."""
        while len(self.at) != members or len(set(self.at.values())) != 1:
            self.changed.clear()
            await self.changed.wait()


class ClassicMember:
    """Joins, syncs and sends heartbeats; the leader gives every member the same number of partitions."""

    def __init__(self, number: int, group: str, progress: Progress) -> None:
        self.number, self.group, self.progress = number, group, progress
        self.id = ""
        self.generation = -1
        subscription = ConsumerProtocolSubscription(topics=[progress.topic])
        self._metadata = b"\0\0" + subscription.encode(0)

    async def live(self, connection: Connection) -> None:
        while True:
            await self._join(connection)
            while True:
                await asyncio.sleep(CLASSIC_INTERVAL_S)
                beat = HeartbeatRequest(
                    group_id=self.group, generation_id=self.generation, member_id=self.id
                )
                answer = await connection.request(beat, HeartbeatResponse, timeout_ms=PATIENCE_MS)
                if answer.error_code:
                    break

    async def _join(self, connection: Connection) -> None:
        while True:
            request = JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=300_000,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=self._metadata)],
            )
            joined = await connection.request(request, JoinGroupResponse, timeout_ms=PATIENCE_MS)
            self.id = joined.member_id or self.id
            if joined.error_code:
                continue
            self.generation = joined.generation_id
            if await self._sync(connection, joined):
                self.progress.note(self.number, self.generation)
                return

    async def _sync(self, connection: Connection, joined: JoinGroupResponse) -> bool:
        names = [member.member_id for member in joined.members]
        given = [
            SyncGroupRequestAssignment(member_id=name, assignment=self._share(place, len(names)))
            for place, name in enumerate(names)
        ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=given,
        )
        answer = await connection.request(request, SyncGroupResponse, timeout_ms=PATIENCE_MS)
        return not answer.error_code

    def _share(self, place: int, count: int) -> bytes:
        numbers = list(range(place, self.progress.partitions, count))
        return encode_assignment({self.progress.topic: numbers}, 0)

    async def leave(self, connection: Connection) -> None:
        request = LeaveGroupRequest(
            group_id=self.group, members=[MemberIdentity(member_id=self.id)]
        )
        await connection.request(request, LeaveGroupResponse, timeout_ms=PATIENCE_MS)


class ConsumerMember:
    """Sends heartbeats of the consumer protocol, and works on what it is told at once."""

    def __init__(self, number: int, group: str, progress: Progress) -> None:
        self.number, self.group, self.progress = number, group, progress
        self.epoch = 0
        self.owned: list[TopicPartitions] = []

    async def live(self, connection: Connection) -> None:
        while True:
            answer = await self._beat(connection)
            if answer.error_code:
                code = ErrorCode(answer.error_code).name
                raise SystemExit(f"member {self.number}: {code} {answer.error_message}")
            self.epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions != self.owned:
                self.owned = answer.assignment.topic_partitions
                self.progress.note(self.number, sum(len(t.partitions) for t in self.owned))
                continue  # it says at once that it has given up, or taken, what it was told
            self.progress.note(self.number, sum(len(t.partitions) for t in self.owned))
            await asyncio.sleep(answer.heartbeat_interval_ms / 1000)

    async def _beat(self, connection: Connection) -> ConsumerGroupHeartbeatResponse:
        joining = self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=f"m-{self.number}",
            member_epoch=self.epoch,
            rebalance_timeout_ms=300_000 if joining else -1,
            subscribed_topic_names=[self.progress.topic] if joining else None,
            topic_partitions=self.owned,
        )
        response = ConsumerGroupHeartbeatResponse
        return await connection.request(request, response, timeout_ms=PATIENCE_MS)

    async def leave(self, connection: Connection) -> None:
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=f"m-{self.number}", member_epoch=-1
        )
        response = ConsumerGroupHeartbeatResponse
        await connection.request(request, response, timeout_ms=PATIENCE_MS)


# Equal requests, as fast as they are answered ----------------------------------------------------


def blast(
    port: int, frames: Sequence[bytes], answer_bytes: int, *, window: int, seconds: float, pid: int
) -> tuple[float, Used]:
    """Each connection sends its frame again and again, `window` in flight; answers per second, and what they cost."""
    sockets: dict[int, tuple[socket.socket, bytes]] = {}
    poller = select.epoll()
    for frame in frames:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets[sock.fileno()] = (sock, frame)
        poller.register(sock.fileno(), select.EPOLLIN)
        sock.sendall(frame * window)
    partial = dict.fromkeys(sockets, 0)
    meter, begun_s, answers = CpuMeter(pid), time.monotonic(), 0
    while time.monotonic() - begun_s < seconds:
        for fd, _ in poller.poll(1):
            sock, frame = sockets[fd]
            count, partial[fd] = divmod(partial[fd] + len(sock.recv(1 << 18)), answer_bytes)
            answers += count
            sock.sendall(frame * count)
    used = meter.lap()
    for sock, _ in sockets.values():
        sock.close()
    return answers / used.wall_s, used
