"""Members of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup, with the assignment by the leader."""

import asyncio
from struct import Struct
from typing import Final

from penstock.groups.protocol import CONSUMER_PROTOCOL
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
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
from penstock.wire.schema import decode_for
from tests.simulation.checks.groups import Place, Synced
from tests.simulation.clients.client import TIMEOUT_MS
from tests.simulation.clients.group_client import BUSY, Identity
from tests.simulation.clients.group_member import STALE, Ended, Group, Member, Removed
from tests.simulation.loop import Broken, SimLoop

HEARTBEAT_S: Final = 0.5
_ASSIGNOR: Final = "simulated"
_VERSION: Final = Struct(">h")
_SLOW: Final = 0.15  # of all rebalances, in which a member takes its time between two requests
_SLOW_S: Final = (0.3, 4.0)


class ClassicMember(Member):
    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        group: Group,
        instance_id: str | None,
    ) -> None:
        super().__init__(loop, brokers, name, group, instance_id)
        rng = loop.world.rng
        self.commit_version = rng.choice((7, 8, 9, 10))
        self.fetch_version = rng.choice((5, 7, 8, 9, 10))
        self.may_be_replaced = instance_id is not None
        self._join_version = rng.choice((5, 8, 9) if instance_id else (3, 5, 9))
        self._generation = -1
        self._is_stable = False  # it has its assignment
        self._heartbeat_s = 0.0
        self._assignments = 0

    @property
    def identity(self) -> Identity:
        return Identity(self._generation, self.member_id, self.instance_id)

    async def live(self) -> None:
        while True:
            try:
                await self.meet_fate()
                if not self._is_stable:
                    await self._rebalance()
                    continue
                await self._beat_if_due()
                await self.work()
            except Removed as removed:
                await self._give_up(removed.code)
            except BrokerError:
                await self.pause()

    async def _give_up(self, code: ErrorCode) -> None:
        """Before the member joins again, it gives up all that it has (the eager protocol)."""
        if code is ErrorCode.REBALANCE_IN_PROGRESS and self._is_stable:
            try:
                await self.commit_handled()
            except (BrokerError, Removed):
                pass
        self._is_stable = False
        self.release(list(self.owned))
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""

    def _raise(self, code: ErrorCode) -> None:
        """Do what the Java client does about an error of the coordinator."""
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise Ended
        if code in (
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ):
            raise Removed(code)
        if code in BUSY:
            raise BrokerError(code.name, code)
        if code:
            raise Broken(f"{self.name} received {code.name}")

    # Rebalances --------------------------------------------------------------------------------

    async def _rebalance(self) -> None:
        """Join, and get an assignment."""
        request = JoinGroupRequest(
            group_id=self.group.name,
            session_timeout_ms=self.group.session_ms,
            rebalance_timeout_ms=self.group.rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocols=[JoinGroupRequestProtocol(name=_ASSIGNOR, metadata=self._subscription())],
        )
        response = await self.ask(
            self.group.name,
            request,
            JoinGroupResponse,
            at_most=self._join_version,
            timeout_ms=self.group.rebalance_ms + TIMEOUT_MS,
        )
        code = self.note_code(self.group.name, response.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            return
        self._raise(code)
        self.member_id, self._generation = response.member_id, response.generation_id
        rng = self.loop.world.rng
        if rng.random() < _SLOW and not self.group.is_ending:
            await asyncio.sleep(rng.uniform(*_SLOW_S))
        await self._sync(response)

    def _subscription(self) -> bytes:
        topics = [self.group.topic, self.group.volatile]
        return _VERSION.pack(0) + ConsumerProtocolSubscription(topics=topics).encode(0)

    async def _sync(self, joined: JoinGroupResponse) -> None:
        is_leader = joined.leader == joined.member_id and not joined.skip_assignment
        start_s = self.loop.time()
        response = await self._send_sync(
            self._generation, self._assigned(joined) if is_leader else []
        )
        self._raise(self.note_code(self.group.name, response.error_code))
        places, made_in, author = _decoded(response.assignment)
        if author:
            self.history.synced.append(
                Synced(
                    self.group.name,
                    self._generation,
                    self.instance_id or self.name,
                    made_in,
                    author,
                    places,
                )
            )
        self._is_stable = True
        self._heartbeat_s = self.loop.time() + HEARTBEAT_S
        self.claim({it: self.topic_ids.get(it[0], bytes(16)) for it in places})
        self.was_kept(places, start_s)
        if self._generation > 1 and self.loop.world.rng.random() < STALE:
            await self._sync_late()

    async def _send_sync(
        self, generation: int, assignments: list[SyncGroupRequestAssignment]
    ) -> SyncGroupResponse:
        request = SyncGroupRequest(
            group_id=self.group.name,
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=CONSUMER_PROTOCOL,
            protocol_name=_ASSIGNOR,
            assignments=assignments,
        )
        return await self.ask(self.group.name, request, SyncGroupResponse)

    async def _sync_late(self) -> None:
        """A request of the generation before, as if it had been on its way for long."""
        response = await self._send_sync(self._generation - 1, [])
        if not response.error_code:
            detail = f"{self.name}: SyncGroup of {self._generation - 1} in {self._generation}"
            self.history.accepted_late.append(detail)

    def _assigned(self, joined: JoinGroupResponse) -> list[SyncGroupRequestAssignment]:
        """The leader deals the partitions out, beginning with any member."""
        self._assignments += 1
        token = f"{self._generation}:{self.name}.{self._assignments}".encode()
        members = sorted(member.member_id for member in joined.members)
        first = self.loop.world.rng.randrange(len(members))
        shares: dict[str, dict[str, list[int]]] = {it: {} for it in members}
        for number, (topic, index) in enumerate((*self.group.places, (self.group.volatile, 0))):
            member = members[(first + number) % len(members)]
            shares[member].setdefault(topic, []).append(index)
        return [
            SyncGroupRequestAssignment(member_id=it, assignment=_encoded(share, token))
            for it, share in shares.items()
        ]

    # In a generation ---------------------------------------------------------------------------

    async def _beat_if_due(self) -> None:
        start_s = self.loop.time()
        if start_s < self._heartbeat_s:
            return
        self._heartbeat_s = start_s + HEARTBEAT_S
        request = HeartbeatRequest(
            group_id=self.group.name,
            generation_id=self._generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        response = await self.ask(self.group.name, request, HeartbeatResponse)
        code = self.note_code(self.group.name, response.error_code)
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.was_rejected()
        if code in BUSY:
            return
        self._raise(code)
        self.was_kept(self.owned, start_s)

    async def leave(self) -> None:
        if self.instance_id is not None or not self.member_id:
            return
        self.release(list(self.owned))
        request = LeaveGroupRequest(
            group_id=self.group.name,
            members=[MemberIdentity(member_id=self.member_id)],
        )
        await self.ask(self.group.name, request, LeaveGroupResponse)


def _encoded(share: dict[str, list[int]], token: bytes) -> bytes:
    assigned = [TopicPartition(topic=it, partitions=indexes) for it, indexes in share.items()]
    message = ConsumerProtocolAssignment(assigned_partitions=assigned, user_data=token)
    return _VERSION.pack(0) + message.encode(0)


def _decoded(assignment: bytes) -> tuple[list[Place], int, str]:
    """The partitions, and in which generation who assigned them."""
    if not assignment:
        return [], -1, ""
    decode = decode_for(ConsumerProtocolAssignment, 0)
    found = decode(memoryview(assignment), _VERSION.size)[0]
    generation, author = bytes(found.user_data or b"").decode().split(":")
    places = [(it.topic, index) for it in found.assigned_partitions for index in it.partitions]
    return places, int(generation), author
