"""Where replicas should go, with as few moves as possible: brokers to be left, balanced, or changed in number. Pure.

A plan holds only the partitions that change. No broker gets two replicas of a partition; racks are kept, or
spread better; the order of preference stays, but where leaders are to be evened out.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from penstock.client.layout import Assignment, Layout, Node
from penstock.model.ids import TopicPartition

Plan = dict[TopicPartition, tuple[int, ...]]


class TooFewBrokers(Exception):
    """A partition cannot have that many replicas."""

    def __init__(self, partition: TopicPartition, wanted: int, brokers: int) -> None:
        super().__init__(f"{partition} needs {wanted} brokers, and there are {brokers}")
        self.partition = partition
        self.wanted = wanted
        self.brokers = brokers


def plan_leaving(
    replicas: Assignment, nodes: Iterable[Node], leave: Iterable[int], *, shrink: bool = False
) -> Plan:
    """Every replica on the brokers to `leave` goes to the least loaded of the `nodes`; nothing else moves.

    `shrink`: where no broker is left for a replica, the partition has one less; the last one stays.
    """
    left = frozenset(leave)
    layout = Layout(replicas, [node for node in nodes if node.id not in left])
    for at, members in layout.replicas.items():
        for old in [member for member in members if member in left]:
            if shrink and len(members) > 1 and not layout.candidates(at):
                layout.drop(at, old)
            else:
                layout.replace(at, old, _best(layout, at, old))
    return layout.changes()


def plan_placement(
    replicas: Assignment,
    nodes: Iterable[Node],
    *,
    topics: Iterable[str] | None = None,
    replication_factor: int | None = None,
) -> Plan:
    """The replicas of these topics (None: all) on the `nodes` and nowhere else, so many of each partition."""
    layout = Layout(replicas, nodes, topics)
    for at, members in layout.replicas.items():
        wanted = len(members) if replication_factor is None else replication_factor
        _fit(layout, at, wanted)
    _even_out(layout)
    return layout.changes()


def plan_balance(
    replicas: Assignment, nodes: Iterable[Node], topics: Iterable[str] | None = None
) -> Plan:
    """Replicas and preferred leaders even over the `nodes`. What others hold stays there."""
    layout = Layout(replicas, nodes, topics)
    _even_out(layout)
    return layout.changes()


def plan_factor(
    replicas: Assignment,
    nodes: Iterable[Node],
    replication_factor: int,
    topics: Iterable[str] | None = None,
) -> Plan:
    """So many replicas of each partition; those that are there already stay as far as they can."""
    layout = Layout(replicas, nodes, topics)
    for at in layout.replicas:
        _resize(layout, at, replication_factor)
    return layout.changes()


def copies(before: Sequence[int], after: Sequence[int]) -> int:
    """How many replicas must be copied."""
    return len(set(after).difference(before))


# One partition -----------------------------------------------------------------------------------


def _fit(layout: Layout, at: TopicPartition, wanted: int) -> None:
    for old in [member for member in layout.replicas[at] if member not in layout.racks]:
        if len(layout.replicas[at]) > wanted:
            layout.drop(at, old)
        else:
            layout.replace(at, old, _best(layout, at, old))
    _resize(layout, at, wanted)


def _resize(layout: Layout, at: TopicPartition, wanted: int) -> None:
    while len(layout.replicas[at]) < wanted:
        layout.add(at, _best(layout, at, None))
    while len(layout.replicas[at]) > wanted:
        layout.drop(at, _worst(layout, at))


def _best(layout: Layout, at: TopicPartition, leaving: int | None) -> int:
    candidates = layout.candidates(at)
    if not candidates:
        members = layout.replicas[at]
        raise TooFewBrokers(at, len(members) + (leaving is None), len(layout.racks))
    return min(candidates, key=lambda broker_id: layout.cost(at, broker_id, leaving))


def _worst(layout: Layout, at: TopicPartition) -> int:
    """Who does not run goes first; the preferred leader goes last."""
    members = layout.replicas[at]

    def cost(broker_id: int) -> tuple[bool, bool, int, int, int]:
        runs = broker_id in layout.racks
        crowd = layout.crowd(at, layout.racks.get(broker_id))
        load = layout.loads[broker_id]
        return not runs, broker_id != members[0], crowd, load, members.index(broker_id)

    return max(members, key=cost)


# Balance -----------------------------------------------------------------------------------------


def _even_out(layout: Layout) -> None:
    for at in layout.replicas:
        while _spread(layout, at):
            continue
    while _relieve(layout):
        continue
    _Leads(layout).even_out()


def _spread(layout: Layout, at: TopicPartition) -> bool:
    """Takes one replica to a rack that has fewer of the partition, if there is one."""
    options = [
        (layout.cost(at, new, old), -layout.loads[old], old, new)
        for old in layout.replicas[at]
        if old in layout.racks
        for new in layout.candidates(at)
        if layout.spreads_racks(at, old, new)
    ]
    if not options:
        return False
    *_, old, new = min(options)
    layout.replace(at, old, new)
    return True


def _relieve(layout: Layout) -> bool:
    """Takes one replica from a broker to one that has at least two fewer; directly or, where racks forbid
    that, by way of a third broker that passes on another one."""
    by_load = sorted(layout.racks, key=lambda broker_id: (layout.loads[broker_id], broker_id))
    if not by_load or layout.loads[by_load[-1]] - layout.loads[by_load[0]] < 2:
        return False
    if _pass_on(layout, by_load[-1], by_load[0]):
        return True
    pairs = [
        (old, new)
        for old in reversed(by_load)
        for new in by_load
        if layout.loads[old] - layout.loads[new] > 1
    ]
    pairs.sort(key=lambda pair: layout.loads[pair[1]] - layout.loads[pair[0]])
    return any(_pass_on(layout, old, new) for old, new in pairs) or any(
        _pass_on_through(layout, old, new) for old, new in pairs
    )


def _pass_on(layout: Layout, old: int, new: int) -> bool:
    at = next(layout.movable(old, new), None)
    if at is None:
        return False
    layout.replace(at, old, new)
    return True


def _pass_on_through(layout: Layout, old: int, new: int) -> bool:
    for between in layout.nodes:
        if between in (old, new):
            continue
        first = next(layout.movable(old, between), None)
        second = next(layout.movable(between, new), None) if first else None
        if first is not None and second is not None:
            layout.replace(first, old, between)
            layout.replace(second, between, new)
            return True
    return False


class _Leads:
    """Who is preferred to lead what; a lead is handed on among the replicas of a partition, so nothing is copied."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._count = Counter(dict.fromkeys(layout.racks, 0))
        self._between: defaultdict[tuple[int, int], dict[TopicPartition, None]] = defaultdict(dict)
        for at, members in layout.replicas.items():
            if members and members[0] in layout.racks:
                self._count[members[0]] += 1
                self._enter(at)

    def even_out(self) -> None:
        """Along the shortest ways from who leads most to who leads at least two fewer; so each way is worth it."""
        while (way := self._way()) is not None:
            for old, new in pairwise(way):
                self._hand_on(next(iter(self._between[old, new])), old, new)

    def _way(self) -> list[int] | None:
        for start in sorted(self._count, key=lambda it: (-self._count[it], it)):
            way = self._way_from(start)
            if way is not None:
                return way
        return None

    def _way_from(self, start: int) -> list[int] | None:
        before: dict[int, int | None] = {start: None}
        waiting = deque([start])
        while waiting:
            at = waiting.popleft()
            if self._count[start] - self._count[at] > 1:
                return _walked(before, at)
            for near in self._layout.nodes:
                if near not in before and self._between[at, near]:
                    before[near] = at
                    waiting.append(near)
        return None

    def _hand_on(self, at: TopicPartition, old: int, new: int) -> None:
        self._leave(at)
        self._layout.prefer(at, new)
        self._enter(at)
        self._count[old] -= 1
        self._count[new] += 1

    def _enter(self, at: TopicPartition) -> None:
        for pair in self._pairs(at):
            self._between[pair][at] = None

    def _leave(self, at: TopicPartition) -> None:
        for pair in self._pairs(at):
            del self._between[pair][at]

    def _pairs(self, at: TopicPartition) -> Iterator[tuple[int, int]]:
        leader, *others = self._layout.replicas[at]
        return ((leader, other) for other in others if other in self._layout.racks)


def _walked(before: dict[int, int | None], end: int) -> list[int]:
    way = [end]
    while (previous := before[way[-1]]) is not None:
        way.append(previous)
    return way[::-1]
