"""One history of a cluster: brokers, a store, clients and faults, all from one seed."""

import asyncio
import gc
import logging
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.metadata.values import CONTROLLER, decode
from penstock.records.batch import iter_headers
from penstock.records.record import Record, decode_records
from penstock.storage.log import Log
from tests.simulation.clients.admin import create_topic
from tests.simulation.clients.client import HOST, TOPIC, Client
from tests.simulation.clients.producers import Producer
from tests.simulation.invariants import Invariants
from tests.simulation.kinds import KINDS
from tests.simulation.log_contents import contents
from tests.simulation.loop import EPOCH_S, Broken, SimLoop, World
from tests.simulation.machine import Machine, rack_of, simulated
from tests.simulation.network import Network
from tests.simulation.store import StoreCore
from tests.simulation.workloads.records import PRODUCERS, Records
from tests.simulation.workloads.workload import JUDGED_APART, Topic, Workload
from tests.support.checker import History, assert_sound

_FAST: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
_COLLECT_S: Final = 60.0
SETTINGS: Final = {
    "replica.lag.time.max.ms": "3000",
    "penstock.disk.reserve.bytes": "262144",
    "penstock.disk.hang.max.ms": "4000",
    "log.flush.offset.checkpoint.interval.ms": "2000",
    "penstock.scrub.bytes.per.second": "0",
    "log.message.timestamp.after.max.ms": "86400000",  # clocks are wrong by up to 6 hours
    "replica.fetch.wait.max.ms": "660",  # polls cost most of the time in which nothing happens
}
_CONFIGS: Final = {  # of topics that do not say otherwise
    "min.insync.replicas": "2",  # also with two replicas: else one machine may lose what was acknowledged
    "message.timestamp.after.max.ms": str((1 << 63) - 1),  # clocks jump
}
UNCLEAN: Final = ("unclean.leader.election.enable", "true")


@dataclass(frozen=True)
class Shape:
    """The cluster, its topic `t`, and the workloads."""

    brokers: int = 3
    partitions: int = 2
    configs: tuple[tuple[str, str], ...] = (("segment.bytes", "4096"),)
    workloads: tuple[str, ...] = ()  # beside `records`
    settings: tuple[tuple[str, str], ...] = ()  # of the brokers, beside SETTINGS


@dataclass(frozen=True)
class Result:
    trace: str
    steps: int
    simulated_s: float
    acked: int  # operations, of all workloads
    written: int  # records that were acknowledged, and that readers of the history read
    read: int  # records, by these readers
    faults: dict[str, int]  # injected, by kind


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
                world,
                self.network,
                self.core,
                number,
                f"{directory}/{number}",
                SETTINGS | {"broker.rack": rack_of(number)} | dict(shape.settings),
            )
            for number in range(1, shape.brokers + 1)
        }
        self.invariants = Invariants(world, self.core, self.machines)
        self.loop = SimLoop(world, HOST, self.network)
        self.network.host_of[self.loop] = HOST
        self.producers: list[Producer] = []
        self.workloads: list[Workload] = [KINDS[name](self) for name in self.shape.workloads]
        world.after_step = self._after_step
        self.core.observe = self.invariants.changed

    def _after_step(self, loop: SimLoop) -> None:
        if self.network.touched:
            self.network.after_step()
        if self.invariants.mirrors.touched:
            self.invariants.check(loop)

    # The story -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A cluster with a topic, in good health."""
        for machine in self.machines.values():
            machine.start()
        self.world.run_until(self.all_up, 60, "brokers start")
        shape = self.shape
        for topic in (Topic(TOPIC, shape.partitions, shape.configs), *self._more_topics()):
            client = Client(self.loop, self.brokers, "admin")
            made = self.loop.spawn(
                create_topic(client, topic.name, topic.partitions, _CONFIGS | dict(topic.configs)),
                "create",
            )
            self.world.run_until(made.done, 60, f"topic {topic.name} exists")
        self.world.run_until(self.is_healthy, 60, "every broker hosts the topics")

    def begin_clients(self, producers: int = PRODUCERS) -> None:
        records = Records(self, producers)
        self.workloads.insert(0, records)
        for workload in self.workloads:
            workload.begin()
        self.producers = records.producers

    def contents(self, topic: str) -> Iterator[tuple[str, list[Record]]]:
        for machine in self.machines.values():
            for partition in machine.partitions:
                if (partition.topic.name, partition.index) == (topic, 0):
                    yield machine.host, _contents(partition.log)

    def run_client(self, client: Client, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.spawn(run, client.name)
        task.add_done_callback(lambda done: self._client_ended(done.exception()))
        return task

    def _client_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.world.failures.append(str(error))

    @property
    def brokers(self) -> list[int]:
        return list(self.machines)

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(TOPIC, index) for index in range(self.shape.partitions)]

    @property
    def lossy_topics(self) -> list[str]:
        """Those that may lose acknowledged records, with an unclean election."""
        return [topic.name for topic in self._more_topics() if UNCLEAN in topic.configs]

    # Who is who ----------------------------------------------------------------------------------

    def leader(self, partition: int = 0) -> Machine:
        return self.machines[self.invariants.state(TOPIC, partition).leader]

    @property
    def controller(self) -> Machine | None:
        entry = self.core.entries.get(CONTROLLER)
        return None if entry is None else self.machines[decode(CONTROLLER, entry.value)["broker"]]

    def bystander(self) -> Machine:
        """One that neither leads the first partition nor is the controller."""
        busy = (self.leader(), self.controller)
        return next(it for it in self.machines.values() if it not in busy)

    def stop_producing(self) -> None:
        for workload in self.workloads:
            workload.stop()

    def all_up(self) -> bool:
        return all(machine.is_up for machine in self.machines.values())

    def is_healthy(self) -> bool:
        """Everybody runs, hosts the topic, and every replica is in sync with all that there is."""
        return self.all_up() and self.invariants.is_settled(self._least_partitions())

    def _least_partitions(self) -> int:
        """Of the topics that `begin` creates; brokers create internal topics when they need them."""
        return self.shape.partitions + sum(topic.partitions for topic in self._more_topics())

    def _more_topics(self) -> list[Topic]:
        return [topic for workload in self.workloads for topic in workload.topics]

    def settle(self) -> None:
        """Faults are over: nothing may be stuck."""
        self.stop_producing()
        self.world.run_until(self.is_healthy, 120, "the cluster recovers")
        self.world.run_until(
            lambda: all(workload.is_done() for workload in self.workloads),
            60,
            "clients get their last responses",
        )
        self.world.run_until(self.is_healthy, 120, "the last records are everywhere")
        self.world.run_until(
            lambda: all(workload.is_caught_up() for workload in self.workloads),
            60,
            "readers read to the end",
        )

    def judge(self) -> Result:
        """The whole history, against what there is in the end."""
        apart = {topic.name for topic in self._more_topics() if not topic.is_whole}
        for machine in self.machines.values():
            for partition in machine.partitions:
                name = partition.topic.name
                if not (name.startswith(JUDGED_APART) or name in apart):
                    everything, committed = contents(partition.log)
                    place = (partition.topic.name, partition.index)
                    self.history.replicas[machine.host, place] = everything
                    if partition.is_leader:
                        self.history.logs[place] = committed
        self.invariants.judge()
        if self.world.failures:
            raise Broken(self.world.failures[0])
        try:
            assert_sound(self.history)
        except AssertionError as error:
            raise Broken(str(error)) from None
        for workload in self.workloads:
            workload.judge()
        world = self.world
        return Result(
            world.trace,
            world.steps,
            world.now_s - EPOCH_S,
            sum(workload.operations for workload in self.workloads),
            sum(workload.written for workload in self.workloads),
            len({(seen.partition, seen.offset) for seen in self.history.seen}),
            dict(world.faults),
        )

    def finish(self) -> None:
        for machine in self.machines.values():
            if machine.node is not None:
                machine.node.let_go_of_lock()
        self.world.finish()


def _contents(log: Log) -> list[Record]:
    found: list[Record] = []
    offset = log.start_offset
    while offset < log.next_offset:
        read = log.read(offset, 1 << 20, upto_offset=log.next_offset)
        data = memoryview(b"".join(piece.read() for piece in read.slices))
        for start, header in iter_headers(data):
            if not header.is_control:
                found += decode_records(data[start : start + header.size_bytes])
        offset = read.next_offset
    return [record for record in found if record.offset >= log.start_offset]


@contextmanager
def _collected_by_the_clock(world: World) -> Iterator[None]:
    """Collect garbage at virtual times: descriptors in cycles are closed then, in every run at the same step."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()

    def collect() -> None:
        gc.collect()
        world.call_later(_COLLECT_S, collect)

    world.call_later(_COLLECT_S, collect)
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
        level, propagates = log.level, log.propagate
        if log.getEffectiveLevel() > logging.ERROR:  # nobody reads the log, but errors count
            log.setLevel(logging.ERROR)
            log.propagate = False
        log.addHandler(complaints)
        with (
            _collected_by_the_clock(made.world),
            simulated(made.world, by_path),
            made.invariants.watching(),
        ):
            try:
                yield made
            finally:
                log.removeHandler(complaints)
                log.setLevel(level)
                log.propagate = propagates
                made.finish()


def describe(sim: Simulation) -> str:
    """Where everybody stands, for whoever looks into a history that went wrong."""
    lines = [f"seed {sim.world.seed} at {sim.world.now_s:.3f} after {sim.world.steps} steps"]
    lines += [
        f"store: {sim.invariants.name_of(place)} {state}"
        for place, state in sim.invariants.states.items()
    ]
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
