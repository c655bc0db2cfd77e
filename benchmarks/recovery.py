"""How long after kill -9 a broker serves again: `make bench B=recovery`.

"ready" is the ready line. "all served" is when every partition has taken another message, since a log may be recovered
as late as its first use. Rows "never synced" keep the broker from syncing, and so from moving its recovery points:
recovery then has every byte to check, the worst case.
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

from benchmarks.calls import connect, exchange
from benchmarks.frames import batch_of, produce_frame
from benchmarks.raw import Plan, generate
from benchmarks.rig import (
    BROKER_CORES,
    LOAD_CORES,
    CpuMeter,
    on_cores,
    parser,
    port_of,
    print_heading,
    print_machine,
    print_row,
    rss_mb,
    start,
)
from penstock.testing import Broker
from penstock.testing.broker import DEFAULTS
from penstock.testing.child import ChildHost
from penstock.testing.endpoints import Endpoints

_START_TIMEOUT_S: Final = 900.0
_TOPIC_PARTITIONS: Final = 1000
_GB_PARTITIONS: Final = 4
_READ_BYTES: Final = "penstock_recovery_read_bytes_total"
_NEVER_SYNCED: Final = {
    "penstock.dirty.bytes.max": 1 << 60,
    "log.flush.scheduler.interval.ms": 1 << 60,
    "log.flush.offset.checkpoint.interval.ms": (1 << 31) - 1,
}


class Case(NamedTuple):
    name: str
    partitions: int
    gigabytes: float  # 0: one small batch a partition
    settings: Mapping[str, object]


@contextmanager
def recovering(data_dir: Path) -> Iterator[Endpoints]:
    """A broker that starts on what another left behind, with all the time it needs."""
    host = ChildHost(data_dir.parent / "recovery.log", _START_TIMEOUT_S)
    with on_cores(BROKER_CORES):
        endpoints = host.start({**DEFAULTS, "log.dirs": str(data_dir)})
    try:
        yield endpoints
    finally:
        host.kill()  # its data goes too


def fill(broker: Broker, case: Case) -> list[tuple[str, int]]:
    """Write what is to be recovered; the partitions that have it."""
    now_ms = time.time_ns() // 1_000_000
    if not case.gigabytes:
        counts = {f"t{n}": _TOPIC_PARTITIONS for n in range(case.partitions // _TOPIC_PARTITIONS)}
    else:
        counts = {"t": case.partitions}
    for topic, count in counts.items():
        broker.create_topic(topic, partitions=count)
    partitions = [(topic, index) for topic, count in counts.items() for index in range(count)]
    if not case.gigabytes:
        write_to_each(port_of(broker), partitions)
        return partitions
    plan = Plan(
        port=port_of(broker),
        broker_pid=broker.pid,
        topic="t",
        partitions=case.partitions,
        message_bytes=1000,
        batch_bytes=64_000,
        now_ms=now_ms,
        warmup_s=0.0,
        seconds=600.0,
        max_bytes=int(case.gigabytes * 1e9),
    )
    generate(plan)
    return partitions


def write_to_each(port: int, partitions: list[tuple[str, int]]) -> None:
    batch = batch_of(100, 10, time.time_ns() // 1_000_000)
    with connect(port) as sock:
        for topic, index in partitions:
            exchange(sock, produce_frame(topic, index, batch))


def run(case: Case, data: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=data) as home:
        data_dir = Path(home) / "data"
        broker = start(Broker(case.settings, subprocess=True, data_dir=data_dir))
        partitions = fill(broker, case)
        broker.kill()
        stored_gb = sum(file.stat().st_size for file in data_dir.rglob("*.log")) / 1e9
        begun_s = time.monotonic()
        with recovering(data_dir) as endpoints:
            ready_s = time.monotonic() - begun_s
            cpu_s = CpuMeter(endpoints.pid).total_s
            write_to_each(int(endpoints.bootstrap.rpartition(":")[2]), partitions)
            served_s = time.monotonic() - begun_s
            print_row(
                case.name,
                f"{stored_gb:.2f}",
                f"{len(partitions):,}",
                f"{ready_s:.2f}",
                f"{served_s:.2f}",
                f"{_metric(endpoints, _READ_BYTES) / 1e9:.2f}",
                f"{cpu_s:.2f}",
                f"{rss_mb(endpoints.pid):.0f}",
            )


def _metric(endpoints: Endpoints, name: str) -> float:
    with urlopen(f"http://{endpoints.http}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise SystemExit(f"{endpoints.http}/metrics has no {name}")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--gb", type=float, default=2.0, help="of data to recover")
    options.add_argument("--partitions", type=int, default=10_000, help="with one batch each")
    arguments = options.parse_args()
    print_machine()
    print_heading(
        "after kill -9",
        "GB",
        "partitions",
        "ready s",
        "all served s",
        "GB checked",
        "CPU s to ready",
        "resident MB",
    )
    cases = (
        Case("large logs", _GB_PARTITIONS, arguments.gb, {}),
        Case("large logs, never synced", _GB_PARTITIONS, arguments.gb, _NEVER_SYNCED),
        Case("many logs", arguments.partitions, 0, {}),
        Case("many logs, never synced", arguments.partitions, 0, _NEVER_SYNCED),
    )
    with on_cores(LOAD_CORES):
        for case in cases:
            run(case, arguments.data)


if __name__ == "__main__":
    main()
