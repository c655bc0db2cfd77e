"""Three brokers with very many partitions, RF 3, of which one dies and comes back: `make bench B=scale`.

A broker is killed with -9. A look at all partitions takes longer than what it looks for, so many small topics among the
large ones are watched: they are elected in one order with all others, each as likely early as late, and when all of them
have another leader at both survivors, no more than a hundredth of the time is left. After that comes one look at all
partitions, and none may be without a leader. "CPU" is what the survivors used meanwhile: where other work has the cores,
it tells more than the clock. How long a change takes to reach all brokers, and what the partitions weigh, comes first.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import confluent_kafka.admin

from benchmarks.rig import (
    CpuMeter,
    load_average,
    parser,
    print_heading,
    print_machine,
    print_row,
    rss_mb,
)
from penstock.client.connection import Connection, parse_address
from penstock.model.errors import BrokerError
from penstock.testing import Broker
from penstock.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponsePartition,
)

_admin: Any = confluent_kafka.admin  # its stubs hide half of its names
_BROKERS: Final = 3
_PATIENCE_S: Final = 600.0
_ASK_MS: Final = 30_000
_LOOK_S: Final = 0.02  # between two looks
_TOPIC_PARTITIONS: Final = 1000
_WATCHED: Final = 600  # topics of one partition
_CHANGES: Final = 10
_STARTS: Final = 3  # tries


class Watch:
    """One broker, and what it tells clients; over one connection, for as long as that lasts."""

    def __init__(self, broker: Broker, runner: asyncio.Runner) -> None:
        self.broker = broker
        self._runner = runner
        self._connection: Connection | None = None

    def ask(self, topics: Iterable[str] | None) -> MetadataResponse:
        return self._runner.run(self._ask(topics))

    async def _ask(self, topics: Iterable[str] | None) -> MetadataResponse:
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        if self._connection is None or self._connection.is_closed:
            address = parse_address(self.broker.bootstrap)
            self._connection = await Connection.open(address, client_id="bench", timeout_ms=_ASK_MS)
        return await self._connection.request(request, MetadataResponse, timeout_ms=_ASK_MS)

    def partitions(self, topics: Iterable[str] | None) -> list[MetadataResponsePartition]:
        return [it for topic in self.ask(topics).topics for it in topic.partitions]


class Scale:
    def __init__(self, brokers: list[Broker], runner: asyncio.Runner) -> None:
        self._brokers = brokers
        self._runner = runner
        self._watches = [Watch(broker, runner) for broker in brokers]
        self._watched = [f"watched-{number}" for number in range(_WATCHED)]
        self._count = 0

    def measure(self, partitions: int, *, written: bool) -> None:
        for broker in self._brokers:
            broker.start()
        until(lambda: all(len(it.ask([]).brokers) == _BROKERS for it in self._watches))
        self._create(partitions)
        self._change()
        if written:
            self._write()
        for victim in (2, 0):
            self._kill(victim)

    def _row(self, what: str, took: str, bound: str = "") -> None:
        print_row(f"{self._count:,}", what, took, bound, f"{load_average():.1f}")

    # Growing -----------------------------------------------------------------------------------

    @property
    def _admin(self) -> Any:
        return _admin.AdminClient({"bootstrap.servers": self._brokers[0].bootstrap})

    def _create(self, partitions: int) -> None:
        """The watched ones are spread among the others."""
        idle_mb = [rss_mb(broker.pid) for broker in self._brokers]
        admin, begun_s = self._admin, time.monotonic()
        topics = max(1, (partitions - _WATCHED) // _TOPIC_PARTITIONS)
        size = (partitions - _WATCHED) // topics
        for number in range(topics):
            some = self._watched[number::topics]
            new = [_admin.NewTopic(f"bench-{number}", size, _BROKERS)]
            new += [_admin.NewTopic(name, 1, _BROKERS) for name in some]
            until(partial(_created, admin, new))
        self._count = topics * size + _WATCHED
        self._row("created", f"{time.monotonic() - begun_s:.1f} s")
        until(lambda: all(-1 not in _leaders(it, self._watched) for it in self._watches))
        self._row("and led", f"{time.monotonic() - begun_s:.1f} s")
        weights = [rss_mb(it.pid) - idle for it, idle in zip(self._brokers, idle_mb, strict=True)]
        each = max(weights) * 1e6 / self._count
        self._row("memory of a broker", f"{max(weights):.0f} MB, {each:.0f} B a partition")

    def _change(self) -> None:
        """From the moment in which it is asked for: until all brokers tell of it."""
        admin, took_s = self._admin, []
        for number in range(_CHANGES):
            name = f"latecomer-{number}"
            begun_s = time.monotonic()
            until(partial(_created, admin, [_admin.NewTopic(name, 1, _BROKERS)]))
            until(partial(self._is_known, name))
            took_s.append(time.monotonic() - begun_s)
            self._count += 1
        text = f"{sorted(took_s)[_CHANGES // 2]:.2f} s, {max(took_s):.2f} s at worst"
        self._row("a topic is created: known to all", text, "1 s")

    def _is_known(self, name: str) -> bool:
        return all(_leaders(it, [name]) - {-1} for it in self._watches)

    def _write(self) -> None:
        """One record into each: from now on it has a log, with files."""
        begun_s = time.monotonic()
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._brokers[0].bootstrap, "linger.ms": 50}
        )
        for topic in self._watches[0].ask(None).topics:
            for partition in topic.partitions:
                producer.produce(topic.name or "", b"x", partition=partition.partition_index)
            producer.flush(_PATIENCE_S)
        self._row("one record in each", f"{time.monotonic() - begun_s:.1f} s")

    # Dying -------------------------------------------------------------------------------------

    def _kill(self, victim: int) -> None:
        others = [it for number, it in enumerate(self._watches) if number != victim]
        gone = {-1, victim + 1}
        for other in others:
            other.ask([])
        meters = [CpuMeter(it.broker.pid) for it in others]
        begun_s = time.monotonic()
        self._brokers[victim].kill()
        until(lambda: all(not gone & _leaders(it, self._watched) for it in others))
        took_s = time.monotonic() - begun_s
        used = " and ".join(f"{meter.lap().cpu_s:.1f}" for meter in meters)
        what = f"led again after kill -9 of {victim + 1}"
        self._row(what, f"{took_s:.2f} s (CPU {used} s)", "5 s")
        for other in others:
            left = sum(it.leader_id in gone for it in other.partitions(None))
            if left:
                self._row("... but for these, at the next look", f"{left:,}")
        self._restart(victim)

    def _restart(self, victim: int) -> None:
        begun_s = self._start(victim)
        ready_s = time.monotonic() - begun_s
        until(lambda: all(_are_in_sync(it, self._watched) for it in self._watches))
        served_s = time.monotonic() - begun_s
        used_s = CpuMeter(self._brokers[victim].pid).total_s
        self._row("restart: ready", f"{ready_s:.2f} s", "30 s")
        self._row("restart: in sync", f"{served_s:.2f} s (its CPU {used_s:.1f} s)")

    def _start(self, victim: int) -> float:
        """When the start that succeeded began."""
        for _ in range(_STARTS):
            begun_s = time.monotonic()
            try:
                self._brokers[victim].start()
            except RuntimeError:  # it takes too long
                self._row(
                    "restart: ready", f"not within {time.monotonic() - begun_s:.0f} s", "30 s"
                )
            else:
                return begun_s
        raise SystemExit("the broker does not start")


def _created(admin: Any, new: list[Any]) -> bool:
    """A controller that changes in between is asked again."""
    made = admin.create_topics(new, operation_timeout=120, request_timeout=120)
    errors = [future.exception() for future in made.values()]
    codes = {error.args[0].code() for error in errors if error is not None}
    return codes <= {confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS}


def _leaders(watch: Watch, topics: Iterable[str]) -> set[int]:
    return {it.leader_id for it in watch.partitions(topics)}


def _are_in_sync(watch: Watch, topics: Iterable[str]) -> bool:
    return all(len(it.isr_nodes) == _BROKERS for it in watch.partitions(topics))


def until(condition: Callable[[], bool]) -> None:
    """What cannot be asked does not hold yet."""
    end_s = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end_s:
        with suppress(BrokerError, OSError):
            if condition():
                return
        time.sleep(_LOOK_S)
    raise SystemExit("the cluster did not get there")


def _broker(home: Path, number: int) -> Broker:
    return Broker(
        {
            "broker.id": number,
            "penstock.metadata": f"sqlite:{home / 'metadata.sqlite'}",
            "broker.session.timeout.ms": 2000,
            "penstock.partitions.per.broker.max": 1_000_000,
        },
        subprocess=True,
        data_dir=home / f"broker-{number}",
    )


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--partitions", type=int, default=10_000, help="of the cluster, RF 3")
    options.add_argument("--written", action="store_true", help="each has a record, and so files")
    arguments = options.parse_args()
    print_machine()
    print_heading("partitions", "what", "took", "bound", "load")
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.data) as home,
        asyncio.Runner() as runner,
    ):
        brokers = [_broker(Path(home), number) for number in range(1, _BROKERS + 1)]
        try:
            Scale(brokers, runner).measure(arguments.partitions, written=arguments.written)
        finally:
            for broker in brokers:
                if broker.is_running:
                    broker.kill()


if __name__ == "__main__":
    main()
