"""What members of both protocols do: fetch what they own, handle it, then commit; leave, crash and pause."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.record import Record
from tests.simulation.checks.groups import Claim, GroupHistory, Place, Rejected
from tests.simulation.clients.client import GROUP
from tests.simulation.clients.group_client import GroupClient, Identity
from tests.simulation.clients.group_fetcher import Fetcher, named
from tests.simulation.loop import Broken, SimLoop

STALE: Final = 0.05  # of all chances to send a request of an epoch that is over
_COMMITS: Final = 0.7
_FATE_S: Final = 5.0  # mean time until a member leaves, crashes or pauses
_PAUSE_S: Final = (0.5, 6.0)
_LATE_COMMITS: Final = 0.7
_REMOVED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
    }
)


@dataclass(slots=True)
class Group:
    """One group, as its members and the workload share it."""

    name: str
    history: GroupHistory
    topic: str  # with records; every group reads all of it
    partitions: int
    volatile: str  # a topic without records, which is deleted and made again
    session_ms: int
    rebalance_ms: int
    is_ending: bool = False  # faults are over: members stay
    is_over: bool = False
    owners: dict[Place, "Member"] = field(default_factory=dict)  # as the members see it

    @property
    def patience_s(self) -> float:
        return min(self.session_ms, self.rebalance_ms) / 1000

    @property
    def places(self) -> list[Place]:
        return [(self.topic, index) for index in range(self.partitions)]


class Ended(Exception):
    """The member left, crashed, or another has its place."""


class Member(GroupClient):
    """One life of a member. Subclasses speak its protocol."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        group: Group,
        instance_id: str | None,
    ) -> None:
        super().__init__(loop, brokers, name, group.history)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.may_be_replaced = False  # at any time, by another with its instance id
        self.owned: dict[Place, Claim] = {}
        self.ids: dict[Place, bytes] = {}
        self.positions: dict[Place, int] = {}
        self.heard_s = float("-inf")
        self.hand_over: Callable[[Member], None] | None = None  # lets a successor start
        self.commit_version: int | None = None
        self.fetch_version: int | None = None
        self._committed: dict[Place, int] = {}
        self._fetcher = Fetcher(self, self._handle)
        self._handled = group.history.handled.setdefault(group.name, {})
        self._fate_s = loop.time() + loop.world.rng.expovariate(1 / _FATE_S)

    async def run(self) -> None:
        while self.group.topic not in self.topic_ids and not self.group.is_over:
            await self.recover(self.group.topic)
        await self.recover(self.group.volatile)
        try:
            await self.live()
        except Ended:
            pass
        finally:
            self.release(list(self.owned))
            for connection in self._connections.values():
                connection.abort()

    async def live(self) -> None:
        """Take part in the group until `Ended`."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Send that the member leaves."""
        raise NotImplementedError

    @property
    def identity(self) -> Identity:
        raise NotImplementedError

    # Partitions --------------------------------------------------------------------------------

    def claim(self, places: Mapping[Place, bytes]) -> None:
        now_s = self.loop.time()
        patience_s = 0 if self.may_be_replaced else self.group.patience_s
        for place, topic_id in places.items():
            claim = Claim(
                self.group.name,
                self.name,
                place,
                now_s,
                patience_s,
            )
            self.history.claims.append(claim)
            self.owned[place] = claim
            self.ids[place] = topic_id
            self.group.owners[place] = self
            if place[0] != self.group.topic:
                self.positions[place] = 0

    def release(self, places: Iterable[Place]) -> None:
        now_s = self.loop.time()
        for place in places:
            self.owned.pop(place).released_s = now_s
            self.positions.pop(place, None)
            self._committed.pop(place, None)
            if self.group.owners.get(place) is self:
                del self.group.owners[place]

    def was_kept(self, places: Iterable[Place], start_s: float) -> None:
        """A request that began then was accepted, and left these partitions to the member."""
        if not self.is_current:
            return
        self.heard_s = start_s
        for place in places:
            claim = self.owned.get(place)
            if claim is not None:
                claim.kept_s.append(start_s)

    def was_rejected(self, *, is_fenced: bool = False) -> None:
        if not self.is_current:
            return
        self.history.rejected.append(
            Rejected(
                self.group.name,
                self.name,
                self.heard_s,
                self.loop.time(),
                self.group.patience_s,
                is_fenced,
            )
        )

    # Records -----------------------------------------------------------------------------------

    def _handle(self, place: Place, records: list[Record], epoch: int) -> None:
        position = self.positions.get(place)
        if position is None or not records:
            return
        handled = self._handled.setdefault(place, set())
        for record in records:
            if record.offset < position:
                continue
            if record.offset != position:
                raise Broken(f"{self.name}: {place} has {record.offset} next after {position - 1}")
            handled.add(record.offset)
            position += 1
            self.read_epochs[place] = epoch
        self.positions[place] = position

    async def work(self) -> None:
        """One poll of a consumer: positions, records, and now and then a commit."""
        await self._find_positions()
        if self._fetcher.needs_metadata or not self._knows_leaders():
            self._fetcher.needs_metadata = False
            for topic in (self.group.topic, self.group.volatile):
                await self.recover(topic)
        await self._fetcher.poll(self.positions, self.ids)
        if self.loop.world.rng.random() < _COMMITS:
            await self.commit_handled()

    def _knows_leaders(self) -> bool:
        return all(named(place) in self._leaders for place in self.positions)

    async def _find_positions(self) -> None:
        missing = [it for it in self.owned if it not in self.positions]
        if not missing:
            return
        code, found = await self.fetch_offsets(
            self.group.name,
            missing,
            self.fetch_identity,
            require_stable=self.loop.world.rng.random() < 0.5,
            at_most=self.fetch_version,
        )
        for place, position in found.items():
            if not position.code and place in self.owned:
                self.positions[place] = max(position.offset, 0)
                self.read_epochs[place] = position.leader_epoch
                self._committed[place] = position.offset
        if code in _REMOVED:
            raise Removed(code)

    @property
    def fetch_identity(self) -> Identity:
        return Identity()

    async def commit_handled(self, places: Iterable[Place] | None = None) -> ErrorCode:
        """Commit what was handled since the last commit."""
        offsets = {
            it: self.positions[it]
            for it in (self.owned if places is None else places)
            if it[0] == self.group.topic
            and self.positions.get(it, -1) > max(self._committed.get(it, -1), 0)
        }
        if not offsets:
            return ErrorCode.NONE
        claims = {it: self.owned[it] for it in offsets}
        code, start_s = await self.commit(
            self.group.name, offsets, self.identity, self.commit_version
        )
        if not code:
            self._committed.update({it: at for it, at in offsets.items() if it in self.owned})
            for claim in claims.values():
                claim.committed_s.append(start_s)
        if code is ErrorCode.FENCED_INSTANCE_ID:
            raise Ended
        if code in _REMOVED:
            raise Removed(code)
        return code

    def has_committed(self, place: Place, end: int) -> bool:
        return max(self._committed.get(place, 0), 0) == end

    # Fate --------------------------------------------------------------------------------------

    async def meet_fate(self) -> None:
        """Now and then: leave, crash, or pause for so long that the group goes on without the member."""
        world, rng = self.loop.world, self.loop.world.rng
        if self.group.is_over:
            raise Ended
        if self.group.is_ending or (self.loop.time() < self._fate_s and not world.is_lull):
            return
        self._fate_s = self.loop.time() + rng.expovariate(1 / _FATE_S)
        chosen = rng.random()
        if chosen < 0.35:
            await self._close()
        if chosen < 0.65 or world.is_lull:
            world.note(f"{self.name} crashes")
            raise Ended
        if self.instance_id is not None and self.hand_over is not None and rng.random() < 0.5:
            self.hand_over(self)
        await asyncio.sleep(rng.uniform(*_PAUSE_S))
        if rng.random() < _LATE_COMMITS:
            await self.commit_handled()

    async def _close(self) -> None:
        try:
            await self.commit_handled()
            await self.leave()
        except (BrokerError, Removed):
            pass
        raise Ended

    def forget_group_coordinator(self) -> None:
        self.forget_coordinator(GROUP, self.group.name)


class Removed(Exception):
    """The coordinator no longer counts the member in, or not with this epoch or generation."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code
