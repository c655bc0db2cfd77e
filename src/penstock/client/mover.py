"""Carries a plan out in steps: so many moves at once per broker, at a bounded rate. All state is in the cluster, so
it may be stopped at any moment, and whoever runs the plan again goes on."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock.client import reassignments, throttles
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.reassignment_plan import Plan
from penstock.client.reassignments import Members, Place, Places, Refusals
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition

DEFAULT_PER_BROKER: Final = 5
_FIRST_PAUSE_S: Final = 0.05  # between two looks; it grows
_LONGEST_PAUSE_S: Final = 1.0
_RATE_OVER_S: Final = 10.0
_LOOKS_THAT_TELL: Final = 3


class Progress(NamedTuple):
    """Of the partitions of a plan that were not yet where they should be."""

    partitions: int
    done: int
    moving: int
    copied_bytes: int
    total_bytes: int
    bytes_per_s: float
    stalled_on: tuple[int, ...]  # brokers that do not run, and that moves wait for

    @property
    def left_s(self) -> float | None:
        """None: nobody can tell."""
        if self.bytes_per_s <= 0:
            return None
        return (self.total_bytes - self.copied_bytes) / self.bytes_per_s


class Summary(NamedTuple):
    partitions: int
    done: int
    copied_bytes: int
    seconds: float
    refused: Refusals


class Options(NamedTuple):
    per_broker: int = DEFAULT_PER_BROKER  # moves at once
    bytes_per_s: int | None = None  # None: whatever is in force


def next_moves(
    plan: Plan, places: Places, under_way: Mapping[TopicPartition, Place], per_broker: int
) -> Plan:
    """What can be begun: a copy loads the broker that leads and those that receive."""
    busy = Counter(broker_id for place in under_way.values() for broker_id in _loaded(place))
    begun: Plan = {}
    for at, target in plan.items():
        place = places[at]
        if place.target == target:
            continue
        new = [member for member in target if member not in place.original]
        loaded = {*new, place.leader} if new else set()
        if all(busy[broker_id] < per_broker for broker_id in loaded):
            busy.update(loaded)
            begun[at] = target
    return begun


def _loaded(place: Place) -> Iterator[int]:
    yield from place.adding
    if place.adding and place.leader not in place.adding:
        yield place.leader


class _Copies:
    """Bytes that were and are to be copied, as far as the brokers' disks tell."""

    def __init__(self) -> None:
        self._copied: dict[TopicPartition, int] = {}
        self._total: dict[TopicPartition, int] = {}
        self._samples: deque[tuple[float, int]] = deque()
        self._before_bytes: int | None = None  # what an earlier run copied

    async def look(
        self, pool: Pool, plan: Plan, places: Places, running: frozenset[int], now_s: float
    ) -> None:
        """`plan`: what is not done yet."""
        for at in self._total:
            if at not in plan:
                self._copied[at] = self._total[at]
        brokers = {
            member for at, target in plan.items() for member in (*places[at].replicas, *target)
        }
        disks = await reassignments.disks(pool, sorted(brokers & running), plan)
        for at, target in plan.items():
            place = places[at]
            sizes = {
                member: disk.sizes_bytes[at]
                for member, disk in disks.items()
                if at in disk.sizes_bytes
            }
            if place.leader in sizes:  # it may have been moved away since
                new = [member for member in target if member not in place.original]
                whole = sizes[place.leader]
                self._total[at] = whole * len(new)
                self._copied[at] = sum(
                    min(whole, sizes.get(member, 0)) for member in new if member in place.adding
                )
        if self._before_bytes is None:
            self._before_bytes = self.copied_bytes
        self._samples.append((now_s, self.copied_bytes))
        while self._samples[0][0] < now_s - _RATE_OVER_S:
            self._samples.popleft()

    @property
    def copied_bytes(self) -> int:
        return sum(self._copied.values())

    @property
    def here_bytes(self) -> int:
        """Copied since the first look."""
        return self.copied_bytes - (self._before_bytes or 0)

    @property
    def total_bytes(self) -> int:
        return sum(self._total.values())

    @property
    def bytes_per_s(self) -> float:
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (last_s - first_s)) if last_s > first_s else 0.0


class Mover:
    """`run` returns when nothing of the plan is left to do, or can be done."""

    def __init__(
        self, pool: Pool, plan: Plan, options: Options, tell: Callable[[Progress], None]
    ) -> None:
        self._pool = pool
        self._plan = plan
        self._options = options
        self._tell = tell
        self._clock = asyncio.get_running_loop().time
        self._refused: Refusals = {}
        self._missed: dict[
            TopicPartition, int
        ] = {}  # looks since a move that was under way was seen
        self._copies = _Copies()

    async def run(self) -> Summary:
        started_s = self._clock()
        members, places = await self._look()
        self._check(members, places)
        wanted = frozenset(self._left(places))
        if self._options.bytes_per_s is not None and wanted:
            await self._set_throttles(places)
        pause_s = _FIRST_PAUSE_S
        while await self._step(wanted):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        await self._remove_throttles()
        return Summary(
            len(wanted),
            len(wanted.difference(self._refused)),
            self._copies.here_bytes,
            self._clock() - started_s,
            self._refused,
        )

    async def _look(self) -> tuple[Members, Places]:
        members = await reassignments.members(self._pool)
        topics = {at.topic for at in self._plan}
        return members, await reassignments.places(self._pool, topics) if topics else {}

    async def _step(self, wanted: frozenset[TopicPartition]) -> int:
        """Begins what can be begun; how many partitions are left."""
        members, places = await self._look()
        self._refused.update(
            {at: _gone(at) for at in self._plan if at not in places and at not in self._refused}
        )
        self._notice_cancelled(places)
        left = self._left(places)
        running = frozenset(node.id for node in members.running)
        await self._copies.look(self._pool, left, places, running, self._clock())
        under_way = await self._under_way()
        new = {at: target for at, target in left.items() if at not in self._missed}
        begun = next_moves(new, places, under_way, self._options.per_broker)
        for at, error in (await reassignments.move(self._pool, begun)).items():
            if not error.is_retriable:
                self._refused[at] = error
        self._tell(self._progress(wanted, left, places, running))
        return len([at for at in left if at not in self._refused])

    def _notice_cancelled(self, places: Places) -> None:
        """What somebody called off is not begun again. A single look may be of a broker that lags."""
        for at, target in self._left(places).items():
            if places[at].target == target:
                self._missed[at] = 0
            elif at in self._missed:
                self._missed[at] += 1
                if self._missed[at] == _LOOKS_THAT_TELL:
                    self._refused[at] = ClientError(
                        "somebody called the move off", ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                    )

    async def _under_way(self) -> dict[TopicPartition, Place]:
        """Those of others too: they load the same brokers."""
        moves = await reassignments.moves(self._pool)
        topics = {at.topic for at in moves}
        places = await reassignments.places(self._pool, topics) if topics else {}
        return {at: place for at, place in places.items() if place.is_moving}

    def _left(self, places: Places) -> Plan:
        return {
            at: target
            for at, target in self._plan.items()
            if at in places
            and at not in self._refused
            and (places[at].is_moving or places[at].replicas != target)
        }

    def _progress(
        self,
        wanted: frozenset[TopicPartition],
        left: Plan,
        places: Places,
        running: frozenset[int],
    ) -> Progress:
        waited_for = {
            member
            for at, target in left.items()
            if places[at].is_moving
            for member in target
            if member not in running
        }
        return Progress(
            len(wanted),
            len(wanted.difference(left)),
            sum(places[at].is_moving for at in left),
            self._copies.copied_bytes,
            self._copies.total_bytes,
            self._copies.bytes_per_s,
            tuple(sorted(waited_for)),
        )

    def _check(self, members: Members, places: Places) -> None:
        """Before anything is begun: a plan of another cluster is no plan."""
        registered = {member.id for member in members.brokers}
        for at, target in self._plan.items():
            if at not in places:
                raise _gone(at)
            unknown = [broker_id for broker_id in target if broker_id not in registered]
            if unknown:
                raise ClientError(
                    f"the plan sends {at} to brokers {unknown}, and only {sorted(registered)} are"
                    " registered; make a new one with: penstock reassign plan",
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                )

    async def _set_throttles(self, places: Places) -> None:
        moving = {at: (places[at], target) for at, target in self._left(places).items()}
        brokers = {
            member for place, target in moving.values() for member in (*place.replicas, *target)
        }
        assert self._options.bytes_per_s is not None
        await throttles.set_throttles(self._pool, self._options.bytes_per_s, brokers, moving)

    async def _remove_throttles(self) -> None:
        """Ours, and those of an earlier run of the plan; rates stay while others move."""
        found = await throttles.throttles(self._pool, (), {at.topic for at in self._plan})
        others = await reassignments.moves(self._pool)
        members = await reassignments.members(self._pool)
        topics = [topic for topic in found.topics if not any(at.topic == topic for at in others)]
        if found.topics or self._options.bytes_per_s is not None:
            brokers = [] if others else [member.id for member in members.brokers]
            await throttles.remove_throttles(self._pool, brokers, topics)


def _gone(at: TopicPartition) -> ClientError:
    return ClientError(
        f"{at} does not exist; see: penstock topic list", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
