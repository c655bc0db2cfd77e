"""Transactions: producers and consume-transform-produce clients of both versions, and readers of both isolation levels.

`tx` is written by transactional producers. Its committed records are transformed into `out`, with the offsets of the
group in the same transactions. Incarnations of a transactional id follow each other: some after the last one was
fenced or ended, some after it was killed, some while it still runs (a zombie).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.simulation.checks.transactions import (
    NO_OFFSET,
    Ledger,
    check,
    check_transform,
    hanging,
)
from tests.simulation.clients.admin import move_partition
from tests.simulation.clients.client import Client
from tests.simulation.clients.committed import COMMITTED, UNCOMMITTED, IsolatedReader, fetch
from tests.simulation.clients.group_offsets import GROUP_ID, GroupWatcher, committed_offset
from tests.simulation.clients.transactional import Fenced, Incarnation, MustAbort, Transactional
from tests.simulation.loop import Broken
from tests.simulation.workloads.workload import Cluster, Topic
from tests.support.checker import Outcome, Partition, Seen

SETTINGS: Final = (  # of brokers, for histories with transactions
    ("transaction.state.log.num.partitions", "2"),
    ("offsets.topic.num.partitions", "1"),
    ("transaction.abort.timed.out.transaction.cleanup.interval.ms", "500"),
)
_SMALL: Final = (("segment.bytes", "4096"),)
_IN: Final = Topic("tx", 2, _SMALL)
_OUT: Final = Topic("out", 2, _SMALL)
_PRODUCERS: Final = (Transactional("a", 1, 2500), Transactional("b", 2, 2500))
_TRANSFORMERS: Final = (Transactional("c", 1, 4000), Transactional("d", 2, 4000))  # by partition
_LIFE_S: Final = 5.0  # mean, of an incarnation
_KILLED: Final = 0.4  # of all incarnations that are replaced; the others go on as zombies
_PAUSE_S: Final = 0.4
_LULL_PAUSES: Final = 4  # for each pause
_STALLED: Final = 0.06  # of all steps of a transaction
_STALL_S: Final = (0.5, 4.0)
_ABORTED: Final = 0.2
_INPUTS_MAX: Final = 6  # of one transaction
_MOVE_S: Final = 6.0  # mean time between two reassignments
_REPLICAS: Final = 3
_MOVED: Final = (  # partitions that an operator moves; those of coordinators more often
    ("__transaction_state", 0),
    ("__transaction_state", 1),
    ("__transaction_state", 0),
    ("__transaction_state", 1),
    ("__consumer_offsets", 0),
    ("__consumer_offsets", 0),
    ("tx", 0),
    ("out", 0),
)

Values = dict[Partition, list[list[bytes]]]


class TransactionWorkload:
    """Judges fencing, what readers see, and that each record is transformed once."""

    topics: tuple[Topic, ...] = (_IN, _OUT)

    def __init__(self, cluster: Cluster) -> None:
        self.ledger = Ledger()
        self._cluster = cluster
        self._readers: list[IsolatedReader] = []
        self._ids: list[TransactionalId] = []
        inputs = [(_IN.name, index) for index in range(_IN.partitions)]
        self._watcher = GroupWatcher(cluster.loop, cluster.brokers, inputs, self.ledger)
        self._mover = Client(cluster.loop, cluster.brokers, "mover")

    @property
    def operations(self) -> int:
        return sum(it.ends for one in self._ids for it in one.incarnations)

    @property
    def written(self) -> int:
        """Records of transactions that are known to be committed."""
        history = self._cluster.history
        return sum(
            send.outcome is Outcome.DONE
            and history.transactions.get(send.transaction) is Outcome.DONE
            for send in history.sends
            if send.transaction is not None
        )

    def begin(self) -> None:
        cluster = self._cluster
        for settings in _PRODUCERS:
            self._ids.append(TransactionalId(cluster, self.ledger, settings, None))
        for index, settings in enumerate(_TRANSFORMERS):
            place = _IN.name, index
            self._ids.append(TransactionalId(cluster, self.ledger, settings, place))
        for one in self._ids:
            one.begin()
        for topic in self.topics:
            for index in range(topic.partitions):
                self._read((topic.name, index), COMMITTED)
        self._read((_IN.name, 0), UNCOMMITTED)
        cluster.run_client(self._watcher, self._watcher.run())
        cluster.run_client(self._mover, self._move(self._mover))

    async def _move(self, operator: Client) -> None:
        """Move partitions, above all those of coordinators, as an operator may do at any time."""
        world, brokers = self._cluster.world, self._cluster.brokers
        while True:
            await asyncio.sleep(world.pause_s(_MOVE_S))
            if operator.is_stopping:
                return
            if not world.is_lull:
                topic, index = world.rng.choice(_MOVED)
                await move_partition(operator, topic, index, world.rng.sample(brokers, _REPLICAS))

    def _read(self, place: Partition, isolation: int) -> None:
        cluster = self._cluster
        name = f"{'committed' if isolation else 'uncommitted'}-{place[0]}-{place[1]}"
        observe = self._committed(name, place) if isolation else self._uncommitted(name, place)
        reader = IsolatedReader(cluster.loop, cluster.brokers, name, place, isolation, observe)
        self._readers.append(reader)
        cluster.run_client(reader, reader.run())

    def _committed(self, name: str, place: Partition) -> Callable[[int, bytes], None]:
        history = self._cluster.history

        def observe(offset: int, value: bytes) -> None:
            history.seen.append(Seen(name, 0, place, offset, value))
            transaction = value.decode().split("/")[0]
            if history.transactions.get(transaction) is Outcome.FAILED:
                raise Broken(f"{name} read {value!r} at {offset}: nobody had committed it")

        return observe

    def _uncommitted(self, name: str, place: Partition) -> Callable[[int, bytes], None]:
        found: list[tuple[int, bytes]] = []
        self._cluster.history.replicas[name, place] = found  # what it reads stays at its offset
        return lambda offset, value: found.append((offset, value))

    # The end -------------------------------------------------------------------------------------

    def stop(self) -> None:
        self._mover.is_stopping = True
        for one in self._ids:
            one.stop()

    def is_done(self) -> bool:
        return all(one.is_done() for one in self._ids)

    def is_caught_up(self) -> bool:
        """Readers of committed records reach the high watermark only if no transaction hangs."""
        self._watcher.finish()
        return self._watcher.is_done and not any(hanging(self._positions(), self._ends()))

    def _positions(self) -> dict[Partition, int]:
        positions: dict[Partition, int] = {}
        for reader in self._readers:
            positions[reader.place] = min(
                reader.position, positions.get(reader.place, reader.position)
            )
        return positions

    def _ends(self) -> dict[Partition, int]:
        names = {topic.name for topic in self.topics}
        ends = self._cluster.invariants.ends()
        return {place: end for place, end in ends.items() if place[0] in names}

    def judge(self) -> None:
        for reader in self._readers:
            reader.is_stopping = True
        self._watcher.is_stopping = True
        history = self._cluster.history
        found = list(check(self.ledger, history.transactions))
        for index in range(_IN.partitions):
            place = _IN.name, index
            position = max(self._watcher.last.get(place, NO_OFFSET), 0)
            found += check_transform(self.ledger, history.logs, place, position)
        if found:
            raise Broken(f"{len(found)} anomalies: " + "; ".join(map(str, found[:3])))


@dataclass
class TransactionalId:
    """Runs incarnations of one transactional id, one after the other or for a while beside each other."""

    cluster: Cluster
    ledger: Ledger
    settings: Transactional
    place: Partition | None  # the input partition; None: it only produces
    incarnations: list[Incarnation] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _is_stopping: bool = False

    def begin(self) -> None:
        self._replace()

    def stop(self) -> None:
        self._is_stopping = True
        for incarnation in self.incarnations:
            incarnation.is_stopping = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._tasks)

    def _replace(self) -> None:
        """Begin the next incarnation, and choose when the one after it comes."""
        if self._is_stopping:
            return
        cluster = self.cluster
        incarnation = Incarnation(
            cluster.loop,
            cluster.brokers,
            self.settings,
            len(self.incarnations),
            cluster.history,
            self.ledger,
        )
        self.incarnations.append(incarnation)
        life = Life(cluster, incarnation, self.ledger, self.place)
        task = cluster.run_client(incarnation, life.run())
        self._tasks.append(task)
        task.add_done_callback(lambda _: self._ended(incarnation))
        rng = cluster.world.rng
        cluster.loop.call_later(rng.expovariate(1 / _LIFE_S), self._take_over, incarnation, task)

    def _take_over(self, incarnation: Incarnation, task: "asyncio.Task[None]") -> None:
        if task.done() or incarnation is not self.incarnations[-1]:
            return
        if self._is_stopping or self.cluster.world.is_lull:
            return
        if self.cluster.world.rng.random() < _KILLED:
            task.cancel()
        else:
            self._replace()

    def _ended(self, incarnation: Incarnation) -> None:
        if incarnation is self.incarnations[-1]:
            self._replace()


class Life:
    """What one incarnation does until it is fenced, killed or stopped."""

    def __init__(
        self,
        cluster: Cluster,
        incarnation: Incarnation,
        ledger: Ledger,
        place: Partition | None,
    ) -> None:
        self._world = cluster.world
        self._incarnation = incarnation
        self._ledger = ledger
        self._place = place
        self._position = NO_OFFSET
        self._number = 0

    async def run(self) -> None:
        incarnation = self._incarnation
        try:
            await incarnation.initialize()
            while not incarnation.is_stopping:
                try:
                    await (self._produce() if self._place is None else self._transform(self._place))
                except MustAbort:
                    self._position = NO_OFFSET
                    await incarnation.abort()
                await self._pause()
        except (Fenced, asyncio.CancelledError):
            return

    async def _pause(self) -> None:
        count = _LULL_PAUSES if self._world.is_lull and not self._incarnation.is_stopping else 1
        await asyncio.sleep(count * self._world.pause_s(_PAUSE_S))

    async def _stall(self) -> None:
        """Now and then for longer than the transaction may last."""
        rng = self._world.rng
        if rng.random() < _STALLED and not self._incarnation.is_stopping:
            await asyncio.sleep(rng.uniform(*_STALL_S))

    # Produce -------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        rng, incarnation = self._world.rng, self._incarnation
        name = incarnation.begin()
        self._number = 0
        for _ in range(rng.choice((1, 1, 2, 3))):
            places = [(_IN.name, index) for index in range(_IN.partitions)]
            rng.shuffle(places)
            chosen = places[: rng.randint(1, len(places))]
            await incarnation.write({place: self._values(name) for place in chosen})
            await self._stall()
        await self._end()

    def _values(self, name: str) -> list[list[bytes]]:
        rng = self._world.rng
        return [
            [self._value(name) for _ in range(rng.randint(1, 2))]
            for _ in range(rng.choice((1, 1, 2, 4)))
        ]

    def _value(self, name: str) -> bytes:
        self._number += 1
        return f"{name}/{self._number}".encode()

    async def _end(self) -> None:
        if self._world.rng.random() < _ABORTED:
            self._position = NO_OFFSET
            await self._incarnation.abort()
        else:
            await self._incarnation.commit()

    # Consume, transform, produce -----------------------------------------------------------------

    async def _transform(self, place: Partition) -> None:
        incarnation, rng = self._incarnation, self._world.rng
        if self._position == NO_OFFSET:
            self._position = await committed_offset(incarnation, place, self._ledger)
        found = await fetch(incarnation, place, self._position, COMMITTED)
        if found is None:
            await incarnation.recover(place[0])
            return
        if not found.records:
            self._position = found.next_offset
            return
        records = found.records[: rng.randint(1, _INPUTS_MAX)]
        name = incarnation.begin()
        self._number = 0
        outputs: Values = {}
        for offset, _ in records:
            value = self._value(name)
            self._ledger.outputs[value] = place, offset
            outputs.setdefault((_OUT.name, offset % _OUT.partitions), []).append([value])
        next_offset = records[-1][0] + 1
        if is_offset_first := rng.random() < 0.5:
            await incarnation.send_offset(GROUP_ID, place, next_offset)
            await self._stall()
        await incarnation.write(outputs)
        await self._stall()
        if not is_offset_first:
            await incarnation.send_offset(GROUP_ID, place, next_offset)
            await self._stall()
        self._position = next_offset
        await self._end()
