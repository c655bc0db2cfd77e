"""What must hold at every step (replication.md, I1 to I9, and I10 to I14 here). Each check costs only what has changed.

I12 is in checks/starts.py, I13 and I14 in checks/log_files.py.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock.broker.partitions.partition import Partition
from penstock.metadata.store import Change, Compare
from penstock.metadata.values import (
    CONTROLLER,
    PartitionImage,
    decode,
    decode_chunk,
    decode_registration,
)
from penstock.model.ids import parse_topic_id
from penstock.records.batch import BatchHeader
from penstock.storage.limits import COMPACT
from penstock.storage.log import Log
from tests.simulation.checks.log_files import LogFiles
from tests.simulation.checks.starts import LogStarts
from tests.simulation.loop import SimLoop, World
from tests.simulation.machine import Machine
from tests.simulation.mirror import Batch, Mirror, Mirrors, Place
from tests.simulation.store import StoreCore, live_keys

DISK_FAULTS: Final = ("fill_disk", "lack_descriptors", "fail_disk", "slow_disk", "hang_disk")
OFFSETS: Final = "__consumer_offsets"
_DECIDED: Final = ("p/", "t/", "reg/", "dead/", "cfg/", "pid")  # by the controller alone


class State(NamedTuple):
    """What a broker knew of a partition after its last step."""

    is_leader: bool
    epoch: int
    high_watermark: int
    end: int
    start: int


class Ghost(NamedTuple):
    """What a replica had when its machine lost power, in which session: leaders may still count on it."""

    broker_epoch: int
    end: int


class Invariants:
    def __init__(self, world: World, core: StoreCore, machines: Mapping[int, Machine]) -> None:
        self._world = world
        self._core = core
        self._machines = machines
        self.mirrors = Mirrors()
        self.mirrors.entered = self._entered
        self.mirrors.taken = self._taken
        self.mirrors.differs = self.fail
        self.starts = LogStarts(self.mirrors, self.fail)
        self.log_files = LogFiles(machines.values(), self.fail)
        self.mirrors.opened = self.log_files.check_opened
        self.mirrors.cutting = lambda log: self._machine_of(log).begin_cut()
        self.moved: Callable[[int], None] = lambda _leader: None  # hears of each high watermark
        self.states: dict[Place, PartitionImage] = {}  # as the store has them
        self.committed: dict[Place, list[Batch]] = {}  # what some leader said to be committed
        self._min_isr: dict[Place, int] = {}
        self._registered: dict[int, int] = {}  # the session of each broker that was dealt with
        self._seen: dict[tuple[int, int, Place], State] = {}
        self._appended: dict[tuple[Place, int], tuple[int, int]] = {}  # who, in each epoch
        self._batches: dict[tuple[Place, int, int], Batch] = {}
        self._ghosts: dict[tuple[int, Place], Ghost] = {}
        self._names: dict[bytes, str] = {}  # of topics, by id
        self._deleted: set[bytes] = set()  # topics, by id
        self._lossy: set[bytes] = set()  # topics that may have unclean elections
        self._lone: dict[Place, None] = {}  # a move left one replica that has all that is committed
        for machine in machines.values():
            machine.on_power_loss = lambda machine=machine: self._power_lost(machine)  # type: ignore[misc]
            machine.on_crash = lambda machine=machine: self.mirrors.tear(machine.directory)  # type: ignore[misc]

    @contextmanager
    def watching(self) -> Iterator[None]:
        with self.mirrors.watching(), self.log_files.watching():
            yield

    def fail(self, what: str) -> None:
        """Nobody may swallow it, as brokers do with what their own calls raise."""
        self._world.failures.append(f"at {self._world.now_s:.3f}: {what}")

    # After a step of a broker --------------------------------------------------------------------

    def check(self, loop: SimLoop) -> None:
        """Look at the partitions that this step has changed."""
        touched, self.mirrors.touched = self.mirrors.touched, {}
        machine = self._machines.get(loop.broker_id)
        if machine is None or machine.loop is not loop or machine.node is None:
            return
        for partition in touched:
            if partition._log is not None and _is_hosted(machine, partition):
                self._check(machine, partition, partition._log)

    def _check(self, machine: Machine, partition: Partition, log: Log) -> None:
        place = partition.topic.id, partition.index
        if place[0] in self._deleted:
            return
        key = machine.broker_id, machine.runs, place
        state = State(
            partition.is_leader,
            partition.leader_epoch,
            partition.high_watermark,
            log.next_offset,
            log.start_offset,
        )
        if partition.is_stopped and not partition.topic.config.unclean_leader_election_enable:
            self.fail(f"F3: {machine.host} {partition} lacks a leader that has what is committed")
        before = self._seen.get(key)
        if state == before:
            return
        self._seen[key] = state
        if before is None:
            self.mirrors.of(log)
            if place in self.states:
                self._check_isr(place)
        where = f"{machine.host} {partition}"
        self._check_state(where, state, before)
        if partition.topic.config.unclean_leader_election_enable:
            self._lossy.add(place[0])
            self._check_reign(where, state, before)
            return
        committed = self.committed.setdefault(place, [])
        if not state.is_leader:
            if before is not None and before.is_leader and place in self._min_isr:
                # it may have moved the mark before it stepped down, all in one step
                self._check_committed(machine, partition, self.mirrors.of(log), committed)
            elif state.high_watermark > _end(committed):
                self.fail(f"I6: {where} shows {state.high_watermark} of {_end(committed)}")
            return
        if not self._check_reign(where, state, before) and self._leads(machine, place, state.epoch):
            self._check_complete(where, self.mirrors.of(log), committed)
        if before is None or state.high_watermark != before.high_watermark:
            self._min_isr[place] = partition.min_isr
            self._check_committed(machine, partition, self.mirrors.of(log), committed)

    def _check_state(self, where: str, state: State, before: State | None) -> None:
        """What holds for every replica by itself."""
        if not state.start <= state.high_watermark <= state.end:
            self.fail(f"I10: {where}: {state.start} <= {state.high_watermark} <= {state.end}")
        if before is not None and state.epoch < before.epoch:
            self.fail(f"I4: {where} went back from epoch {before.epoch} to {state.epoch}")

    def _check_reign(self, where: str, state: State, before: State | None) -> bool:
        """Whether it leads on as before. Then the high watermark only grows."""
        if before is None or not (state.is_leader and before.is_leader):
            return False
        if before.epoch != state.epoch:
            return False
        if state.high_watermark < before.high_watermark:
            self.fail(f"I9: {where}: {before.high_watermark} -> {state.high_watermark}")
        return True

    def _leads(self, machine: Machine, place: Place, epoch: int) -> bool:
        known = self.states.get(place)
        return known is not None and (known.leader, known.leader_epoch) == (
            machine.broker_id,
            epoch,
        )

    def _check_complete(self, where: str, mirror: Mirror, committed: list[Batch]) -> None:
        gap = mirror.gap(committed)
        if gap:
            self.fail(f"I3: {where} leads, and lacks some of what is committed: {gap}")

    def _check_committed(
        self, machine: Machine, partition: Partition, mirror: Mirror, committed: list[Batch]
    ) -> None:
        """I5, I6: what a leader says to be committed stays so, and is where it must be."""
        mark, batches, compacted = partition.high_watermark, mirror.batches, mirror.is_compacted
        shown, known = (bisect_right(it, mark, key=_next_offset) for it in (batches, committed))
        where = f"{machine.host} {partition} at {mark}"
        if not (compacted or _is_at_an_end(mirror, shown, mark)):
            self.fail(f"I3: {where}: the mark lies within a batch, or past the end")
        if shown and known and batches[shown - 1].contradicts(committed[known - 1], compacted):
            self.fail(f"I6: {where}: what is committed here was committed otherwise before")
        if mark <= _end(committed):
            return
        committed += batches[bisect_right(batches, _end(committed), key=_next_offset) : shown]
        self.moved(machine.broker_id)
        place = partition.topic.id, partition.index
        replicas = self.states[place].replicas if place in self.states else ()
        holders = [it for it in replicas if self._has(it, place, committed[-1], machine)]
        if len(holders) < self._min_isr[place]:
            self.fail(f"I5: {where}: committed, and only {holders} have it")
        lacking = [it for it in partition.isr if it in replicas and it not in holders]
        if lacking:
            self.fail(f"I5: {where}: committed, and {lacking} of {partition.isr} lack it")
        self._check_isr(place)

    def _has(self, broker_id: int, place: Place, last: Batch, leader: Machine) -> bool:
        """Whether it has the last batch that is committed, or its leader cannot know that it lost it."""
        mirror = self._mirror(broker_id, place)
        if mirror is not None and _holds(mirror, last, self.starts.highest.get(place, 0)):
            return True
        ghost = self._ghosts.get((broker_id, place))
        if ghost is None or ghost.end < last.next_offset or leader.node is None:
            return False
        known = leader.node.cluster.image.brokers.get(broker_id)
        return known is None or known.epoch <= ghost.broker_epoch

    def _mirror(self, broker_id: int, place: Place) -> Mirror | None:
        topic_id, index = place
        path = f"{self._machines[broker_id].directory}/{self._names[topic_id]}/partition-{index}"
        return self.mirrors.at(path, topic_id)

    def _check_isr(self, place: Place) -> None:
        """I3: who is in sync has all that is committed, unless its loss is still to be dealt with."""
        committed = self.committed.get(place)
        if not committed:
            return
        last = committed[-1]
        for member in self.states[place].isr:
            mirror = self._mirror(member, place)
            ghost = self._ghosts.get((member, place))
            if ghost is not None and self._registered.get(member, 0) <= ghost.broker_epoch:
                continue
            if ghost is not None and mirror is None:
                continue  # it has not opened its log since: then it is looked at again
            if mirror is None or not _holds(mirror, last, self.starts.highest.get(place, 0)):
                self.fail(
                    f"I3: broker {member} is in sync of {place[1]} and lacks {last}: it ends at"
                    f" {0 if mirror is None else mirror.end}"
                )

    # What enters a log ---------------------------------------------------------------------------

    def _entered(self, log: Log, batch: Batch, led: bool) -> None:
        place = bytes(log.topic_id), log.partition
        key = place, batch.epoch, batch.base_offset
        before = self._batches.setdefault(key, batch)
        if not before.is_same(batch, compacted=COMPACT in log.config.cleanup_policy):
            self.fail(f"I2: {log.path}: {batch} where {self._batches[key]} was before")
        if led:
            machine = self._machine_of(log)
            me = machine.broker_id, machine.runs
            if machine.node is not None and not machine.node.cluster.epoch:
                self.fail(f"B4: {machine.host} took records without a session")
            first = self._appended.setdefault((place, batch.epoch), me)
            if first != me:
                self.fail(f"I1: {me} and {first} both took records in epoch {batch.epoch}")

    def _machine_of(self, log: Log) -> Machine:
        return next(it for it in self._machines.values() if log.path.startswith(f"{it.directory}/"))

    def _taken(self, log: Log, header: BatchHeader) -> None:
        """I11: what all replicas in sync shall have is not taken while these are too few. Idempotent producers,
        transactions and their markers want that; coordinators look before they change their memory, not here."""
        if header.producer_id < 0:
            return
        partition = self.mirrors.owner_of(log)
        if partition is not None and not partition.has_enough_in_sync:
            self.fail(
                f"I11: {partition} took a batch of producer {header.producer_id} with {partition.isr} in sync"
            )

    def read(self, place: Place, offset: int) -> None:
        """A consumer was given this."""
        if offset >= _end(self.committed.get(place, [])):
            self.fail(f"I6: offset {offset} of {place[1]} was read, and is not committed")

    # After a change of the store -----------------------------------------------------------------

    def changed(self, compares: Sequence[Compare], changes: Sequence[Change]) -> None:
        decided = [it.key for it in changes if it.key.startswith(_DECIDED)]
        fenced = any(it.key == CONTROLLER and it.create_revision for it in compares)
        if decided and not fenced:
            self.fail(f"I7: {decided} were written without the controller's office")
        for change in changes:
            if change.key.startswith("dead/") and change.entry is not None:
                self._topic_deleted(bytes(parse_topic_id(change.key[5:])))
            elif change.entry is not None and change.key.startswith("t/"):
                topic_id = parse_topic_id(decode(change.key, change.entry.value)["id"])
                self._names[bytes(topic_id)] = change.key[2:]
        for change in changes:
            if change.entry is None:
                continue
            if change.key.startswith("p/"):
                self._chunk_changed(change.key, change.entry.value)
            elif change.key.startswith("reg/"):
                self._registration_changed(int(change.key[4:]), change.key, change.entry.value)

    def _topic_deleted(self, topic_id: bytes) -> None:
        self._deleted.add(topic_id)
        for place in [it for it in self.states if it[0] == topic_id]:
            del self.states[place]
            self.committed.pop(place, None)

    def _chunk_changed(self, key: str, value: bytes) -> None:
        _, topic_id, chunk = key.split("/")
        first = int(chunk) * 64
        for number, state in enumerate(decode_chunk(decode(key, value), {}), first):
            place = bytes(parse_topic_id(topic_id)), number
            before = self.states.get(place)
            if before == state:
                continue
            if before is not None and (
                state.leader_epoch < before.leader_epoch
                or state.partition_epoch <= before.partition_epoch
            ):
                self.fail(f"I4: {key}: {before} -> {state}")
            self.states[place] = state
            if before is not None:
                self._note_lone(place, before, state)
            self._check_isr(place)

    def _note_lone(self, place: Place, before: PartitionImage, after: PartitionImage) -> None:
        """A move may take away replicas that have all that is committed while too few others have it (O2)."""
        had = {*before.isr, *before.elr}
        if len({*after.isr, *after.elr}) > 1:
            self._lone.pop(place, None)
        elif had - {*after.replicas} and len(after.replicas) > 1:
            self._lone[place] = None

    def _registration_changed(self, broker_id: int, key: str, value: bytes) -> None:
        epoch = decode_registration(decode(key, value)).epoch
        if epoch < self._registered.get(broker_id, 0):
            self.fail(f"I4: {key}: epoch {epoch} after {self._registered[broker_id]}")
        self._registered[broker_id] = epoch
        for place in self.committed:
            self._check_isr(place)

    # Faults --------------------------------------------------------------------------------------

    def _power_lost(self, machine: Machine) -> None:
        live = live_keys(self._core.entries).get(machine.broker_id)  # registered or not yet
        epoch = max(self._registered.get(machine.broker_id, 0), live.create_revision if live else 0)
        for place in self.committed:
            mirror = self._mirror(machine.broker_id, place)
            if mirror is not None:
                self._ghosts[machine.broker_id, place] = Ghost(epoch, mirror.end)
        self.mirrors.forget(machine.directory)

    # The end -------------------------------------------------------------------------------------

    def state(self, topic: str, partition: int) -> PartitionImage:
        """As the store has it; of the newest topic with that name."""
        for place, state in reversed(self.states.items()):
            if place[1] == partition and self._names[place[0]] == topic:
                return state
        raise KeyError((topic, partition))

    def name_of(self, place: Place) -> str:
        return f"{self._names[place[0]]}-{place[1]}"

    @property
    def places(self) -> list[tuple[str, int]]:
        """All partitions that there are, by name."""
        return [(self._names[topic_id], index) for topic_id, index in self.states]

    def is_settled(self, least: int) -> bool:
        """There are at least so many partitions, and every replica is in sync and has all records."""
        places = [place for place in self.states if self._exists(place)]
        if len(places) < least:
            return False
        return all(map(self._is_settled, places))

    def has_lone_replica(self) -> bool:
        """Whether a partition has all that is committed on one machine only, because an operator asked for that."""
        return any(place in self.states for place in self._lone)

    def all_in_sync(self) -> bool:
        """As the store has it."""
        return all(len(it.isr) == len(it.replicas) for it in self.states.values())

    def reaches_store(self, broker_id: int) -> bool:
        """As far as the broker knows. One that does not goes on, and may have been replaced (B5).

        Nor does one that hears late what others wrote, while it coordinates what is no longer its own.
        """
        node = self._machines[broker_id].node
        return (
            node is not None
            and node.replicas is not None
            and not node.replicas.is_cut_off
            and bool(node.cluster.epoch)
            and not self._coordinates_late(broker_id)
        )

    def _coordinates_late(self, broker_id: int) -> bool:
        """Whether another leads by now what it coordinates, and its image lags behind the store: it cannot know."""
        machine = self._machines[broker_id]
        image = None if machine.node is None else machine.node.cluster.image
        for partition in machine.partitions:
            if not partition.is_leader or partition.topic.name != OFFSETS:
                continue
            state = self.states.get((partition.topic.id, partition.index))
            if image is None or state is None or state.leader_epoch <= partition.leader_epoch:
                continue
            if image.topics[OFFSETS].partitions[partition.index].leader_epoch < state.leader_epoch:
                return True
        return False

    def term(self, broker_id: int, topic: str, index: int) -> tuple[int, ...]:
        """The run of the broker and the epoch in which it leads the partition, until the next trouble with a disk.

        Empty if it does not lead, or if its own disk has trouble.
        """
        machine = self._machines[broker_id]
        if machine.has_disk_trouble:
            return ()
        troubles = sum(self._world.faults[kind] for kind in DISK_FAULTS)
        for partition in machine.partitions:
            if (partition.topic.name, partition.index) == (topic, index) and partition.is_leader:
                return broker_id, machine.runs, index, partition.leader_epoch, troubles
        return ()

    def _exists(self, place: Place) -> bool:
        return any(
            place[0] in machine.node.replicas.topics_by_id
            for machine in self._machines.values()
            if machine.node is not None and machine.node.replicas is not None
        )

    def _is_settled(self, place: Place) -> bool:
        state, ends = self.states[place], set()
        led = self._hosted(state.leader, place) if state.leader in self._machines else None
        if len(state.isr) < len(state.replicas) or state.adding or state.removing:
            return False
        for broker_id in state.replicas:
            hosted = self._hosted(broker_id, place)
            if hosted is None or hosted.leader_epoch != state.leader_epoch or not hosted.is_open:
                return False
            if hosted.failure is not None:
                return False
            if hosted.is_leader != (broker_id == state.leader):
                return False
            ends |= {hosted.high_watermark, hosted.log.next_offset}
            if led is None or hosted.log.start_offset < led.log.start_offset:
                return False  # it has yet to delete what its leader has deleted
        return len(ends) == 1

    def _hosted(self, broker_id: int, place: Place) -> Partition | None:
        for partition in self._machines[broker_id].partitions:
            if (partition.topic.id, partition.index) == place:
                return partition
        return None

    def ends(self) -> dict[tuple[str, int], int]:
        """The end of the committed records of each partition; of the newest topic with that name."""
        return {
            (self._names[place[0]], place[1]): _end(batches)
            for place, batches in self.committed.items()
        }

    def judge(self) -> None:
        """Every replica holds all that was ever committed; those of a topic that may lose records hold the same."""
        for place in self.states:
            if place[0] in self._lossy and self._exists(place):
                self._check_same(place)
        for place, committed in self.committed.items():
            for broker_id in self.states[place].replicas:
                mirror = self._mirror(broker_id, place)
                if mirror is not None and mirror.log.path and self._exists(place):
                    self._check_complete(f"broker {broker_id}", mirror, committed)

    def _check_same(self, place: Place) -> None:
        held = {it: self._mirror(it, place) for it in self.states[place].replicas}
        contents = {it: mirror.batches for it, mirror in held.items() if mirror is not None}
        first = next(iter(contents.values()), [])
        if any(batches != first for batches in contents.values()):
            ends = {it: _end(batches) for it, batches in contents.items()}
            self.fail(f"the replicas of {self.name_of(place)} differ; they end at {ends}")


def _is_hosted(machine: Machine, partition: Partition) -> bool:
    topic = partition.topic
    if machine.node is None or machine.node.replicas is None:
        return False
    known = machine.node.replicas.topics_by_id.get(topic.id) is topic
    return known and topic.partitions[partition.index] is partition


def _end(batches: Sequence[Batch]) -> int:
    return batches[-1].next_offset if batches else 0


def _next_offset(batch: Batch) -> int:
    return batch.next_offset


def _is_at_an_end(mirror: Mirror, shown: int, mark: int) -> bool:
    """Whether a batch ends at the mark, which is above `shown` batches. Records are deleted up to any offset."""
    if mark == mirror.log.start_offset:
        return True
    return bool(shown) and mirror.batches[shown - 1].next_offset == mark


def _holds(mirror: Mirror, last: Batch, start: int) -> bool:
    """Whether a replica has everything up to this batch; with I2, all before it agrees.

    What is deleted at the leader, whose log starts at `start`, may be different here until this replica hears of it.
    """
    if mirror.end < last.next_offset:
        return False
    if last.next_offset <= start:
        return True
    found = mirror.ends_at(last.next_offset)
    if found is None:
        return mirror.is_compacted
    return found.is_same(last, compacted=mirror.is_compacted)
