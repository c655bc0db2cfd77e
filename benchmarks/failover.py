"""How long a producer with acks=all gets no acknowledgement when a broker of three fails: `make bench B=failover`.

Each fault happens several times. What counts is the longest time from the fault on in which some partition acknowledged
nothing, retries of the client included. Nobody tells a client of a broker that hangs or is cut off: it must lose patience
itself, here after 1.5 s (`request.timeout.ms` and `socket.timeout.ms`), which is part of these figures. "Replaced" is the
brokers' part of it: until the others tell of leaders and in-sync replicas without the one that failed. A host is cut off
in a network of its own, with the member of etcd that runs on it; for that it takes root, nft and etcd.
"""

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import pytest

from benchmarks.rig import load_average, parser, print_heading, print_machine, print_row
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tests.support.checker import History
from tests.support.cluster import ClusterOfServers
from tests.support.etcd import Etcd, missing
from tests.support.network import Network
from tests.support.recorders import Load
from tests.support.server import until

_TOPIC: Final = "t"
_PARTITIONS: Final = 3
_PER_SECOND: Final = 300
_PATIENCE_MS: Final = 1500
_BROKERS: Final = 3


class Stage(NamedTuple):
    cluster: ClusterOfServers
    network: Network | None = None
    etcd: Etcd | None = None

    def leader(self) -> int:
        return self.cluster.leader_of(_TOPIC, 0)

    def other_leader(self) -> int:
        """Of a partition; not the controller, unless that leads them all."""
        controller = self.cluster.controller()
        leaders = {self.cluster.leader_of(_TOPIC, index) for index in range(_PARTITIONS)}
        return min(leaders - {controller} or leaders)

    def controller(self) -> int:
        return self.cluster.controller()

    def beside_etcd_leader(self) -> int:
        """Those who remain elect twice: etcd its leader, which lets all sessions live on for once more their time."""
        assert self.etcd is not None
        return self.etcd.members.index(self.etcd.leader()) + 1

    def has_replaced(self, broker: int) -> bool:
        """Whether all others tell of leaders, and of replicas in sync, without it."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=_TOPIC)])
        for number in set(self.cluster.running) - {broker}:
            found = self.cluster.ask(number, request, MetadataResponse, 9)
            if found is None or not found.topics:
                return False
            for partition in found.topics[0].partitions:
                if broker in partition.isr_nodes or partition.leader_id in (-1, broker):
                    return False
        return True

    def kill(self, broker: int) -> None:
        self.cluster.kill(broker)

    def pause(self, broker: int) -> None:
        self.cluster.pause(broker)

    def cut_off(self, broker: int) -> None:
        assert self.network is not None
        self.network.isolate(broker)

    def mend(self, broker: int) -> None:
        if self.network is not None:
            self.network.heal()
            until(self.network.is_settled, "all connections are back")  # one fault at a time
        elif broker in self.cluster.running:
            self.cluster.resume(broker)
        else:
            self.cluster.start(broker)
        self.cluster.wait_healthy()


class Round(NamedTuple):
    silence_s: float
    replaced_s: float


class Fault(NamedTuple):
    name: str
    whom: Callable[[Stage], int]
    break_it: Callable[[Stage, int], None]
    bound_s: float
    typical_s: float | None = None
    needs_network: bool = False


FAULTS: Final = (
    Fault("leader killed with -9", Stage.other_leader, Stage.kill, 5, 3),
    Fault("controller killed with -9", Stage.controller, Stage.kill, 5, 3),
    Fault("leader hangs (SIGSTOP)", Stage.other_leader, Stage.pause, 5),
    Fault("host of a leader cut off", Stage.other_leader, Stage.cut_off, 5, needs_network=True),
    Fault("host of the controller cut off", Stage.controller, Stage.cut_off, 5, needs_network=True),
    Fault("host of etcd's leader cut off", Stage.beside_etcd_leader, Stage.cut_off, 5, needs_network=True),
)  # fmt: skip
FOLLOWER: Final = Fault(
    "follower killed with -9", lambda it: it.leader() % _BROKERS + 1, Stage.kill, 3
)


def measure(stage: Stage, fault: Fault, rounds: int) -> list[Round]:
    """One fault after the other."""
    partitions = [(_TOPIC, index) for index in range(1 if fault is FOLLOWER else _PARTITIONS)]
    found = []
    with Load(
        History(),
        stage.cluster.bootstrap,
        partitions,
        per_second=_PER_SECOND,
        request_timeout_ms=_PATIENCE_MS,
        socket_timeout_ms=_PATIENCE_MS,
    ) as load:
        for _ in range(rounds):
            load.await_all_partitions(time.monotonic_ns())
            victim = fault.whom(stage)
            begun_ns = time.monotonic_ns()
            fault.break_it(stage, victim)
            until(functools.partial(stage.has_replaced, victim), "others are in its place")
            replaced_ns = time.monotonic_ns()
            load.await_all_partitions(replaced_ns)
            silence_s = load.longest_silence_s(begun_ns)
            found.append(Round(silence_s, (replaced_ns - begun_ns) / 1e9))
            stage.mend(victim)
        load.end()
    if load.errors:
        raise SystemExit(f"{fault.name}: the producer got {load.errors[0]}")
    return found


def report(fault: Fault, store: str, rounds: list[Round]) -> None:
    silences = [it.silence_s for it in rounds]
    replaced = [it.replaced_s for it in rounds]
    middle, worst = median(silences), max(silences)
    typical = "" if fault.typical_s is None else f", {fault.typical_s:g} s typically"
    good = worst < fault.bound_s and (fault.typical_s is None or middle < fault.typical_s)
    print_row(
        fault.name,
        store,
        len(silences),
        f"{middle:.2f} s",
        f"{worst:.2f} s",
        f"{median(replaced):.2f} s",
        f"{max(replaced):.2f} s",
        f"{fault.bound_s:g} s{typical}: {'reached' if good else 'missed'}",
        f"{load_average():.1f}",
    )


@contextmanager
def on_sqlite(home: Path) -> Iterator[Stage]:
    with ClusterOfServers(home, _BROKERS) as cluster:
        cluster.create_topic(_TOPIC, partitions=_PARTITIONS)
        yield Stage(cluster)


@contextmanager
def on_hosts(home: Path) -> Iterator[Stage]:
    """With etcd, as between machines."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with Network(_BROKERS) as network, network.inside():
        places = network.places
        with (
            Etcd(home / "etcd", _BROKERS, places=list(places.values())) as etcd,
            ClusterOfServers(
                home / "brokers", _BROKERS, places=places, store=etcd.url()
            ) as cluster,
        ):
            cluster.create_topic(_TOPIC, partitions=_PARTITIONS)
            yield Stage(cluster, network, etcd)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5, help="of each fault")
    options.add_argument(
        "--only", default="", metavar="TEXT", help="faults with this in their names"
    )
    arguments = options.parse_args()
    chosen = [fault for fault in (*FAULTS, FOLLOWER) if arguments.only in fault.name]
    print_machine()
    print_heading(
        "fault",
        "store",
        "times",
        "silent: median",
        "worst",
        "replaced: median",
        "worst",
        "bound",
        "load",
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.data) as home:
        if some := [fault for fault in chosen if not fault.needs_network]:
            with on_sqlite(Path(home) / "sqlite") as stage:
                for fault in some:
                    report(fault, "SQLite", measure(stage, fault, arguments.rounds))
        if some := [fault for fault in chosen if fault.needs_network]:
            try:
                with on_hosts(Path(home) / "hosts") as stage:
                    for fault in some:
                        report(fault, "etcd", measure(stage, fault, arguments.rounds))
            except pytest.skip.Exception as missed:
                print(f"\nnot measured: {missed}")


if __name__ == "__main__":
    main()
