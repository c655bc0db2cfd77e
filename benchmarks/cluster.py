"""What replication costs: three brokers on this machine, RF 3 and acks=all, beside RF 1 in the same run: `make bench B=cluster`.

Broker 1 leads everything and has a core for itself; its followers share the other with the load. All three together
have no more cores than one broker and its load have in the other benchmarks: rates are what this machine gives, CPU
time per GB is what replication costs. "caught up" is a follower that was away while data was written.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import confluent_kafka.admin

from benchmarks.latency import Case as LatencyCase
from benchmarks.latency import RawLoad
from benchmarks.raw import Outcome, Plan, generate
from benchmarks.rig import (
    BROKER_CORES,
    LOAD_CORES,
    CpuMeter,
    load_average,
    on_cores,
    parser,
    percentiles,
    port_of,
    print_heading,
    print_machine,
    print_row,
)
from penstock.testing import Broker

_admin: Any = confluent_kafka.admin  # its stubs hide half of its names
_KIB: Final = 1024
_BROKERS: Final = 3
_PARTITIONS: Final = 4
_PATIENCE_S: Final = 600.0


class Case(NamedTuple):
    name: str
    message_bytes: int
    batch_bytes: int
    window: int = 16
    partitions: int = _PARTITIONS


CASES: Final = (
    Case("100 B, 16 KiB batches", 100, 16 * _KIB),
    Case("100 B, 64 KiB batches", 100, 64 * _KIB),
    Case("1 KB, 64 KiB batches", 1000, 64 * _KIB),
    Case("1 KB, 1 MB batches", 1000, 1_000_000, window=4),
    Case("100 B, 16 KiB batches, 1 partition", 100, 16 * _KIB, partitions=1),
    Case("1 KB, 16 KiB batches, 1 partition", 1000, 16 * _KIB, partitions=1),
    Case("100 B, 16 KiB batches, 64 partitions", 100, 16 * _KIB, window=4, partitions=64),
    Case("1 KB, 16 KiB batches, 64 partitions", 1000, 16 * _KIB, window=4, partitions=64),
)


class Cluster:
    """Three brokers; the first leads what is created here."""

    def __init__(self, home: Path) -> None:
        self.brokers = [
            Broker(
                {"broker.id": number, "penstock.metadata": f"sqlite:{home / 'metadata.sqlite'}"},
                subprocess=True,
                data_dir=home / f"broker-{number}",
            )
            for number in range(1, _BROKERS + 1)
        ]

    def start(self) -> None:
        for number, broker in enumerate(self.brokers):
            with on_cores(LOAD_CORES if number else BROKER_CORES):
                broker.start()
        bootstrap = self.brokers[0].bootstrap
        self.admin = _admin.AdminClient({"bootstrap.servers": bootstrap})
        self._until(lambda: len(self.admin.list_topics(timeout=10).brokers) == _BROKERS)

    def kill(self) -> None:
        for broker in self.brokers:
            if broker.is_running:
                broker.kill()

    def topic(self, replication_factor: int, partitions: int = _PARTITIONS) -> str:
        name = f"bench-{time.monotonic_ns()}"
        replicas = [1, 2, 3][:replication_factor]
        new = _admin.NewTopic(
            name,
            partitions,
            replica_assignment=[replicas] * partitions,
            config={"max.message.bytes": "20000000", "min.insync.replicas": "1"},
        )
        self.admin.create_topics([new])[name].result()
        self.await_in_sync(name, replication_factor, partitions)
        return name

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result()

    def await_in_sync(self, name: str, count: int, partitions: int = _PARTITIONS) -> None:
        def in_sync() -> bool:
            found = self.admin.list_topics(name, timeout=10).topics[name].partitions
            return len(found) == partitions and all(
                len(partition.isrs) == count for partition in found.values()
            )

        self._until(in_sync)

    def _until(self, condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + _PATIENCE_S
        while not condition():
            if time.monotonic() > end_s:
                raise SystemExit("the cluster did not get there")
            time.sleep(0.02)


@contextmanager
def running_cluster(data: str | None) -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=data) as home:
        cluster = Cluster(Path(home))
        with on_cores(LOAD_CORES):
            try:
                cluster.start()
                yield cluster
            finally:
                cluster.kill()


def produce(cluster: Cluster, case: Case, factor: int, seconds: float) -> Outcome:
    name = cluster.topic(factor, case.partitions)
    leader, *followers = cluster.brokers
    outcome = generate(
        Plan(
            port=port_of(leader),
            broker_pid=leader.pid,
            topic=name,
            partitions=case.partitions,
            message_bytes=case.message_bytes,
            batch_bytes=case.batch_bytes,
            now_ms=time.time_ns() // 1_000_000,
            window=case.window,
            seconds=seconds,
            max_bytes=2_000_000_000,
            other_pids=[broker.pid for broker in followers],
        )
    )
    cluster.await_in_sync(name, factor, case.partitions)
    cluster.delete(name)
    return outcome


def throughput(cluster: Cluster, cases: Iterable[Case], seconds: float) -> None:
    print("\nProducing with acks=all\n")
    print_heading(
        "case",
        "RF 1: msg/s (MB/s)",
        "RF 3: msg/s (MB/s)",
        "RF 3 / RF 1",
        "leader CPU s/GB, RF 1 / RF 3",
        "each follower, CPU s/GB",
    )
    for case in cases:
        one, three = (produce(cluster, case, factor, seconds) for factor in (1, 3))
        print_row(
            case.name,
            *(
                f"{it.produced_messages / it.seconds:,.0f} ({_rate(it) / 1e6:.0f})"
                for it in (one, three)
            ),
            f"{_rate(three) / _rate(one):.2f}",
            " / ".join(f"{it.broker_cpu_s / it.produced_bytes * 1e9:.2f}" for it in (one, three)),
            f"{three.others_cpu_s / (_BROKERS - 1) / three.produced_bytes * 1e9:.2f}",
        )


def _rate(outcome: Outcome) -> float:
    return outcome.produced_bytes / outcome.seconds


def latency(cluster: Cluster, seconds: float) -> None:
    print("\nAcknowledged and delivered, 20,000 msg/s of 1 KB, acks=all, ms: p50 / p99 / p99.9\n")
    print_heading("replicas", "linger", "acknowledged", "end to end", "load late by (p99)")
    for linger_ms in (1, 5):
        for factor in (1, 3):
            name = cluster.topic(factor)
            case = LatencyCase("raw", 20_000, linger_ms)
            found = RawLoad(port_of(cluster.brokers[0]), name, case, seconds).run()
            print_row(
                factor,
                f"{linger_ms} ms",
                _points(found.acknowledged_s),
                _points(found.delivered_s),
                f"{percentiles(found.late_s, 0.99)[0] * 1000:.2f}",
            )
            cluster.delete(name)


def _points(values: list[float]) -> str:
    return " / ".join(f"{it * 1000:.2f}" for it in percentiles(values, 0.5, 0.99, 0.999))


def catch_up(cluster: Cluster, gigabytes: float, *, from_nothing: bool = False) -> None:
    """A follower is away while data is written, comes back, with its disk or with a new one, and is in sync again."""
    name = cluster.topic(3)
    away = cluster.brokers[2]
    if not from_nothing:
        away.stop()
    size_mb = _fill(cluster, name, gigabytes) / 1e6
    if from_nothing:
        away.kill()
        shutil.rmtree(away.data_dir)
    cluster.await_in_sync(name, 2)
    begun_s = time.monotonic()
    with on_cores(LOAD_CORES):
        away.start()
    meters = [CpuMeter(broker.pid) for broker in cluster.brokers]
    cluster.await_in_sync(name, 3)
    took_s = time.monotonic() - begun_s
    leader, _, follower = (meter.lap().cpu_s / size_mb * 1000 for meter in meters)
    what = "Rebuilt from nothing" if from_nothing else "Caught up"
    print(
        f"\n{what}: {size_mb:,.0f} MB in {took_s:.1f} s, its start included: {size_mb / took_s:.0f} MB/s; "
        f"CPU s/GB: leader {leader:.2f}, follower {follower:.2f}; load average {load_average():.1f}"
    )
    cluster.delete(name)


def _fill(cluster: Cluster, name: str, gigabytes: float) -> int:
    """How many bytes were written."""
    leader = cluster.brokers[0]
    plan = Plan(
        port=port_of(leader),
        broker_pid=leader.pid,
        topic=name,
        partitions=_PARTITIONS,
        message_bytes=1000,
        batch_bytes=64 * _KIB,
        now_ms=time.time_ns() // 1_000_000,
        warmup_s=0.0,
        seconds=600.0,
        max_bytes=int(gigabytes * 1e9),
    )
    return generate(plan).produced_bytes


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of load for each case")
    options.add_argument(
        "--only",
        metavar="TEXT",
        help="the cases of throughput with this in their names, and nothing else",
    )
    options.add_argument("--gigabytes", type=float, default=2.0, help="that a follower misses")
    options.add_argument(
        "--rebuild",
        action="store_true",
        help="a follower loses its disk with so many, and nothing else",
    )
    arguments = options.parse_args()
    print_machine()
    with running_cluster(arguments.data) as cluster:
        if arguments.only is not None:
            chosen = [case for case in CASES if arguments.only in case.name]
            throughput(cluster, chosen, arguments.seconds)
            return
        if arguments.rebuild:
            catch_up(cluster, arguments.gigabytes, from_nothing=True)
            return
        throughput(cluster, CASES, arguments.seconds)
        latency(cluster, arguments.seconds)
        catch_up(cluster, arguments.gigabytes)


if __name__ == "__main__":
    main()
