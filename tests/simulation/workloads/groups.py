"""Consumer groups of both protocols, and groups whose offsets an operator and a transactional producer commit."""

import asyncio
from typing import Final

from penstock.broker.coordinators.groups import OFFSETS_TOPIC
from penstock.broker.coordinators.shards import partition_for
from tests.simulation.checks.groups import GroupHistory, Place, assert_sound
from tests.simulation.clients.group_classic import ClassicMember
from tests.simulation.clients.group_client import GroupClient
from tests.simulation.clients.group_consumer import ConsumerMember
from tests.simulation.clients.group_member import Group, Member
from tests.simulation.clients.group_mover import Mover
from tests.simulation.clients.group_operator import Operator, Watcher
from tests.simulation.clients.group_transactions import OffsetsInTransactions
from tests.simulation.clients.producers import Producer
from tests.simulation.loop import Broken
from tests.simulation.workloads.workload import Cluster, Topic

TOPIC_NAME: Final = "g"
VOLATILE: Final = "v"
PARTITIONS: Final = 3
SLOTS: Final = 3  # members of a group; the first of them is static
SESSION_MS: Final = 2_500
REBALANCE_MS: Final = 2_500
OPERATED: Final = ("manual-0", "manual-1", "manual-2")  # each has a coordinator of its own
TRANSACTED: Final = "txn"
OFFSETS_PARTITIONS: Final = 3
SETTINGS: Final = (
    ("offsets.topic.num.partitions", str(OFFSETS_PARTITIONS)),
    ("transaction.state.log.num.partitions", "1"),
    ("group.min.session.timeout.ms", "500"),
    ("group.consumer.min.session.timeout.ms", "500"),
    ("group.consumer.session.timeout.ms", str(SESSION_MS)),
    ("group.consumer.min.heartbeat.interval.ms", "100"),
    ("group.consumer.heartbeat.interval.ms", "500"),
    ("max.incremental.fetch.session.cache.slots", "8"),
)
_KINDS: Final = {"classic": ClassicMember, "consumer": ConsumerMember}
_WRITES_S: Final = 0.4
_RESTART_S: Final = 0.8
_LULL_LOOK_S: Final = 1.0


class SlowProducer(Producer):
    """An idempotent producer of a few records."""

    async def run(self) -> None:
        await self._begin()
        while not self.is_stopping:
            await self._send([f"{self.name}-{self._sequence}".encode()])
            await asyncio.sleep(self.loop.world.pause_s(_WRITES_S))


class Groups:
    """The history of groups is judged by tests/simulation/checks/groups.py."""

    topics: tuple[Topic, ...] = (
        Topic(TOPIC_NAME, PARTITIONS),
        Topic(VOLATILE),
    )

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.history = GroupHistory()
        self.groups = [
            Group(name, self.history, TOPIC_NAME, PARTITIONS, VOLATILE, SESSION_MS, REBALANCE_MS)
            for name in _KINDS
        ]
        self._places: list[Place] = self.groups[0].places
        self._producers: list[SlowProducer] = []
        self._others: list[Operator | OffsetsInTransactions | Watcher | Mover] = []
        self._ending: list[asyncio.Task[None]] = []  # tasks that end after `stop`
        self._lives = 0

    @property
    def operations(self) -> int:
        return sum(it.acked for it in self._producers) + len(self.history.writes)

    @property
    def written(self) -> int:
        return 0

    # Clients -----------------------------------------------------------------------------------

    def begin(self) -> None:
        cluster, brokers = self._cluster, self._cluster.brokers
        for index in range(PARTITIONS):
            place = (TOPIC_NAME, index)
            producer = SlowProducer(cluster.loop, brokers, f"g{index}", place, cluster.history)
            self._producers.append(producer)
        groups = [*_KINDS, *OPERATED]
        self._others = [
            Operator(cluster.loop, brokers, OPERATED, self._places, VOLATILE, self.history),
            OffsetsInTransactions(cluster.loop, brokers, TRANSACTED, self._places[0], self.history),
            *(
                Watcher(cluster.loop, brokers, f"w{it}", groups, self._places, self.history)
                for it in range(2)
            ),
            Mover(cluster.loop, brokers, OFFSETS_PARTITIONS),
        ]
        for other in self._others:
            if isinstance(other, GroupClient):
                self._let_look(other)
        for client in (*self._producers, *self._others):
            self._ending.append(cluster.run_client(client, client.run()))
        for group in self.groups:
            for number in range(SLOTS):
                cluster.run_client(self._producers[0], self._fill(group, number))

    def _let_look(self, client: GroupClient) -> None:
        """The checks excuse or blame a coordinator by what the broker is at that moment."""
        invariants = self._cluster.invariants
        client.reaches_store = invariants.reaches_store
        client.term_of = lambda broker_id, group: invariants.term(
            broker_id, OFFSETS_TOPIC, partition_for(group, OFFSETS_PARTITIONS)
        )

    async def _fill(self, group: Group, number: int) -> None:
        """Run one member after the other in a place of the group."""
        world = self._cluster.world
        while not group.is_over:
            if world.is_lull and not group.is_ending:
                await asyncio.sleep(_LULL_LOOK_S)
                continue
            await self._live(group, number)
            await asyncio.sleep(world.pause_s(_RESTART_S))

    async def _live(self, group: Group, number: int) -> None:
        """Return when the member has ended, or its successor may start beside it."""
        cluster = self._cluster
        self._lives += 1
        instance_id = f"{group.name}-{number}" if number == 0 else None
        name = f"{group.name}-{number}.{self._lives}"
        member = _KINDS[group.name](cluster.loop, cluster.brokers, name, group, instance_id)
        replaced: asyncio.Future[None] = cluster.loop.create_future()

        def hand_over(_: Member) -> None:
            if not replaced.done():
                replaced.set_result(None)

        member.hand_over = hand_over
        self._let_look(member)
        task = cluster.run_client(member, member.run())
        task.add_done_callback(lambda _: hand_over(member))
        await replaced

    # The end -----------------------------------------------------------------------------------

    def stop(self) -> None:
        for client in (*self._producers, *self._others):
            client.is_stopping = True
        for group in self.groups:
            group.is_ending = True

    def is_done(self) -> bool:
        return all(task.done() for task in self._ending)

    def is_caught_up(self) -> bool:
        """Every partition of each group has an owner, and it has committed all that there is."""
        ends = self._cluster.invariants.ends()
        return all(
            place in group.owners and group.owners[place].has_committed(place, ends.get(place, 0))
            for group in self.groups
            for place in self._places
        )

    def judge(self) -> None:
        for group in self.groups:
            group.is_over = True
        logs = self._cluster.history.logs
        ends = {place: len(logs[place]) for place in self._places}
        try:
            assert_sound(self.history, ends)
        except AssertionError as error:
            raise Broken(str(error)) from None
