"""How much one broker on one core takes and gives: `make bench B=throughput`.

The broker is pinned to the first core and the generators to the others. Every row says what the
broker's CPU was, so that a run that was bound by the generator can be told from one that was not.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from penstock.testing import Broker

_KIB = 1024


class Case(NamedTuple):
    name: str
    message_bytes: int
    batch_bytes: int
    consume: bool
    window: int = 8
    connections: int = 2
    target_messages_s: float | None = None


CASES = [
    Case("produce 100 B / 16 KiB", 100, 16 * _KIB, False),
    Case("produce 100 B / 64 KiB", 100, 64 * _KIB, False),
    Case("both 100 B / 16 KiB", 100, 16 * _KIB, True, target_messages_s=3e6),
    Case("both 100 B / 64 KiB", 100, 64 * _KIB, True, target_messages_s=3e6),
    Case("produce 1 KiB / 1 KiB", 1000, 900, False, window=64),
    Case("produce 1 KiB / 64 KiB", 1000, 64 * _KIB, False),
    Case("produce 1 KiB / 1 MiB", 1000, 1000 * _KIB, False),
    Case("both 1 KiB / 64 KiB", 1000, 64 * _KIB, True, target_messages_s=0.4e6),
    Case("both 1 KiB / 1 MiB", 1000, 1000 * _KIB, True, target_messages_s=1e6),
    Case("produce 10,000 messages a batch", 90, 990_000, False),
    Case("both 10 MB messages", 10_000_000, 10_000_000, True, window=2, connections=1),
]


class Result(NamedTuple):
    case: Case
    produced: dict[str, Any]
    consumed: dict[str, Any] | None
    cpu_s: float
    seconds: float

    def row(self) -> str:
        produced, consumed = self.produced, self.consumed
        rate_in = produced["messages"] / produced["seconds"]
        rate_out = consumed["messages"] / consumed["seconds"] if consumed else 0.0
        gigabytes = (produced["record_bytes"] + (consumed or {}).get("record_bytes", 0)) / 1e9
        target = self.case.target_messages_s
        verdict = ""
        if target is not None:
            verdict = "reached" if min(rate_in, rate_out) >= target else "MISSED"
        return (
            f"| {self.case.name} | {rate_in / 1e6:.3f} | {rate_out / 1e6:.3f} "
            f"| {produced['record_bytes'] / produced['seconds'] / 1e6:.0f} "
            f"| {100 * self.cpu_s / self.seconds:.0f} % | {self.cpu_s / gigabytes:.2f} "
            f"| {1e6 * self.cpu_s / self.requests:.1f} "
            f"| {produced['p50_ms']:.2f} / {produced['p99_ms']:.2f} | {verdict} |"
        )

    @property
    def requests(self) -> int:
        return int(self.produced["requests"] + (self.consumed or {}).get("requests", 0))


HEADER = (
    "| case | M msg/s in | M msg/s out | MB/s in | broker CPU | CPU s/GB | CPU µs/request "
    "| ack p50 / p99 ms | target |\n|---|---|---|---|---|---|---|---|---|"
)


def generator(plan: dict[str, Any]) -> "subprocess.Popen[bytes]":
    cores = sorted(os.sched_getaffinity(0))
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.raw", json.dumps(plan)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
        preexec_fn=lambda: os.sched_setaffinity(0, set(cores[1:]) or set(cores)),
    )


def run(case: Case, broker: Broker, seconds: float) -> Result:
    topic = f"bench-{time.monotonic_ns()}"
    partitions = list(range(case.connections))
    broker.create_topic(
        topic,
        partitions=case.connections,
        config={"max.message.bytes": "20000000", "retention.bytes": "2000000000"},
    )
    plan = {
        "port": int(broker.bootstrap.rsplit(":", 1)[1]),
        "topic": topic,
        "partitions": partitions,
        "message_bytes": case.message_bytes,
        "batch_bytes": case.batch_bytes,
        "window": case.window,
        "acks": 1,
        "seconds": seconds,
        "now_ms": time.time_ns() // 1_000_000,
        "fetch_bytes": max(1 << 20, case.batch_bytes + 4096),
    }
    process = psutil.Process(broker.pid)
    before = process.cpu_times()
    started = time.perf_counter()
    running = [generator({**plan, "mode": "produce"})]
    if case.consume:
        running.append(generator({**plan, "mode": "consume"}))
    results = [json.loads(child.communicate()[0]) for child in running]
    elapsed = time.perf_counter() - started
    after = process.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    broker.delete_topic(topic)
    return Result(case, results[0], results[1] if case.consume else None, cpu_s, elapsed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each case")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--data", help="data directory; a temporary one unless given")
    arguments = parser.parse_args()
    print(HEADER)
    with Broker(subprocess=True, data_dir=arguments.data) as broker:
        os.sched_setaffinity(broker.pid, {min(os.sched_getaffinity(0))})
        for case in CASES:
            if arguments.only in case.name:
                print(run(case, broker, arguments.seconds).row(), flush=True)


if __name__ == "__main__":
    main()
