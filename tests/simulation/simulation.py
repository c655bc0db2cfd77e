"""One history of a cluster: brokers, a store, clients and faults, all from one seed."""

import asyncio
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.metadata.values import CONTROLLER, decode
from penstock.records.batch import iter_headers
from penstock.records.record import decode_records
from penstock.storage.log import Log
from tests.simulation.clients import HOST, TOPIC, Producer, Reader, create_topic
from tests.simulation.invariants import Invariants
from tests.simulation.loop import EPOCH_S, Broken, SimLoop, World
from tests.simulation.machine import Machine, simulated
from tests.simulation.network import Network
from tests.simulation.store import StoreCore
from tests.support.checker import History, assert_sound

_FAST: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
SETTINGS: Final = {
    "replica.lag.time.max.ms": "3000",
    "penstock.disk.reserve.bytes": "0",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "penstock.scrub.bytes.per.second": "0",
}


@dataclass(frozen=True)
class Shape:
    """What the cluster is like."""

    brokers: int = 3
    partitions: int = 2
    configs: tuple[tuple[str, str], ...] = (("segment.bytes", "4096"),)


@dataclass(frozen=True)
class Result:
    trace: str
    steps: int
    simulated_s: float
    acked: int
    read: int


class Simulation:
    """Put together, and not yet running. `finish` is due in any case."""

    def __init__(self, seed: int, directory: str, shape: Shape) -> None:
        self.shape = shape
        self.world = world = World(seed)
        self.network = Network(world)
        self.core = StoreCore(world)
        self.history = History()
        self.machines = {
            number: Machine(
                world, self.network, self.core, number, f"{directory}/{number}", dict(SETTINGS)
            )
            for number in range(1, shape.brokers + 1)
        }
        self.invariants = Invariants(world, self.core, self.machines)
        self.loop = SimLoop(world, HOST, self.network)
        self.network.host_of[self.loop] = HOST
        self.producers: list[Producer] = []
        self.readers: list[Reader] = []
        self._producing: list[asyncio.Task[None]] = []
        world.after_step = self._after_step
        self.core.observe = self.invariants.changed

    def _after_step(self, loop: SimLoop) -> None:
        if self.network.touched:
            self.network.after_step()
        self.invariants.check(loop)

    # The story -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A cluster with a topic, in good health."""
        for machine in self.machines.values():
            machine.start()
        self.world.run_until(self.all_up, 60, "brokers start")
        brokers = list(self.machines)
        first = Reader(self.loop, brokers, "admin", 0, self.history)
        made = self.loop.spawn(
            create_topic(first, self.shape.partitions, dict(self.shape.configs)), "create"
        )
        self.world.run_until(made.done, 60, "the topic is made")
        self.world.run_until(self.is_healthy, 60, "every broker hosts it")

    def begin_clients(self, producers: int = 2) -> None:
        brokers = list(self.machines)
        for partition in range(self.shape.partitions):
            for number in range(producers):
                name = f"p{partition}.{number}"
                self._run(Producer(self.loop, brokers, name, partition, self.history))
            self._run(self._reader(f"r{partition}", partition))

    def _reader(self, name: str, partition: int) -> Reader:
        reader = Reader(self.loop, list(self.machines), name, partition, self.history)
        reader.observe = lambda offset: self.invariants.read((reader.topic_id, partition), offset)
        return reader

    def _run(self, client: Producer | Reader) -> None:
        task = self.loop.spawn(client.run(), client.name)
        if isinstance(client, Producer):
            self.producers.append(client)
            self._producing.append(task)
        else:
            self.readers.append(client)
        task.add_done_callback(lambda done: self._client_ended(done.exception()))

    def _client_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.world.failures.append(str(error))

    # Who is who ----------------------------------------------------------------------------------

    def leader(self, partition: int = 0) -> Machine:
        for place, state in self.invariants.states.items():
            if place[1] == partition:
                return self.machines[state.leader]
        raise KeyError(partition)

    @property
    def controller(self) -> Machine | None:
        entry = self.core.entries.get(CONTROLLER)
        return None if entry is None else self.machines[decode(CONTROLLER, entry.value)["broker"]]

    def bystander(self) -> Machine:
        """One that neither leads the first partition nor is the controller."""
        busy = (self.leader(), self.controller)
        return next(it for it in self.machines.values() if it not in busy)

    def stop_producing(self) -> None:
        for client in self.producers:
            client.is_stopping = True

    def all_up(self) -> bool:
        return all(machine.is_up for machine in self.machines.values())

    def is_healthy(self) -> bool:
        """Everybody runs, hosts the topic, and every replica is in sync with all that there is."""
        return self.all_up() and self.invariants.is_settled(self.shape.partitions)

    def settle(self) -> None:
        """Faults are over: nothing may be stuck."""
        self.stop_producing()
        self.world.run_until(self.is_healthy, 120, "the cluster recovers")
        self.world.run_until(
            lambda: all(task.done() for task in self._producing),
            60,
            "producers get their last answers",
        )
        self.world.run_until(self.is_healthy, 120, "the last records are everywhere")
        ends = self.invariants.ends()
        self.world.run_until(
            lambda: all(reader.position >= ends[reader.partition] for reader in self.readers),
            60,
            "readers come to the end",
        )
        for reader in self.readers:
            reader.is_stopping = True

    def judge(self) -> Result:
        """The whole history, against what there is in the end."""
        for machine in self.machines.values():
            for partition in machine.partitions:
                if partition.topic.name == TOPIC:
                    log = _contents(partition.log)
                    place = (TOPIC, partition.index)
                    self.history.replicas[machine.host, place] = log
                    if partition.is_leader:
                        self.history.logs[place] = log
        self.invariants.judge()
        if self.world.failures:
            raise Broken(self.world.failures[0])
        try:
            assert_sound(self.history)
        except AssertionError as error:
            raise Broken(str(error)) from None
        world = self.world
        return Result(
            world.trace,
            world.steps,
            world.now_s - EPOCH_S,
            sum(producer.acked for producer in self.producers),
            len(self.history.seen),
        )

    def finish(self) -> None:
        for machine in self.machines.values():
            if machine.node is not None:
                machine.node.let_go_of_lock()
        self.world.finish()
        self.network.finish()


def _contents(log: Log) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = log.start_offset
    while offset < log.next_offset:
        read = log.read(offset, 1 << 20, upto_offset=log.next_offset)
        data = memoryview(b"".join(piece.read() for piece in read.slices))
        for start, header in iter_headers(data):
            records = decode_records(data[start : start + header.size_bytes])
            found += [(record.offset, record.value or b"") for record in records]
        offset = read.next_offset
    return found


class _Complaints(logging.Handler):
    """An error with a trace in a broker's log is a bug of the broker, whatever came of it."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.failures.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


@contextmanager
def simulation(seed: int, shape: Shape | None = None) -> Iterator[Simulation]:
    with tempfile.TemporaryDirectory(dir=_FAST) as directory:
        made = Simulation(seed, directory, shape or Shape())
        by_path = {machine.directory: machine for machine in made.machines.values()}
        complaints, log = _Complaints(made.world), logging.getLogger("penstock")
        log.addHandler(complaints)
        with simulated(made.world, by_path), made.invariants.mirrors.watching():
            try:
                yield made
            finally:
                log.removeHandler(complaints)
                made.finish()


def describe(sim: Simulation) -> str:
    """Where everybody stands, for whoever looks into a history that went wrong."""
    lines = [f"seed {sim.world.seed} at {sim.world.now_s:.3f} after {sim.world.steps} steps"]
    lines += [f"store: {place[1]} {state}" for place, state in sim.invariants.states.items()]
    for machine in sim.machines.values():
        lines.append(f"{machine.host}: run {machine.runs}, {'up' if machine.is_up else 'down'}")
        for it in machine.partitions:
            role = f"leads {it.leadership and it.leadership.isr}" if it.is_leader else "follows"
            end = it.log.next_offset if it.is_open and it.failure is None else None
            lines.append(
                f"  {it} {role} {it.leader_id} epoch {it.leader_epoch}"
                f" mark {it.high_watermark} end {end} failure {it.failure}"
            )
    return "\n".join(lines)
