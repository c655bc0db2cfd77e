"""Load in Kafka's protocol, the same bytes for everyone who speaks it: raw, by librdkafka, and on a schedule."""

import gc
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Final, NamedTuple

from benchmarks import librdkafka
from benchmarks.comparison.stages import Effort, Figures, OnRunning, Stage
from benchmarks.comparison.topics import topic
from benchmarks.frames import batch_of, messages_in
from benchmarks.latency import Case as LatencyCase
from benchmarks.latency import RawLoad
from benchmarks.peers import Running
from benchmarks.peers.process import TreeMeter
from benchmarks.raw import Outcome, Plan, generate
from benchmarks.rig import Used, percentiles
from penstock.records.compression import Codec

_KIB: Final = 1024
_IN_FLIGHT_BYTES: Final = 4 << 20  # of all connections together, about
_WINDOW_MAX: Final = 16
_FETCH_BYTES: Final = 1 << 20
_FILL_S: Final = 600.0
_SHORTEST_S: Final = 0.2
_LATENCY_PARTITIONS: Final = 4
_LIBRDKAFKA_PARTITIONS: Final = 4
_RATES: Final = (20_000, 50_000)
_SPREAD_RATE: Final = 10_000
SPREAD_PARTITIONS: Final = (1, 4, 16, 50)
_NAMED_SIZES: Final = {100: "100 B", 1_000: "1 KB", 100_000: "100 KB", 10_000_000: "10 MB"}


class RawCase(NamedTuple):
    """One cell of the matrix."""

    mode: str  # produce, consume, or in and out
    message_bytes: int
    partitions: int
    acks: str = "all"
    codec: str = "none"
    idempotent: bool = False
    synced: bool = False  # before each acknowledgement
    batch_bytes: int = 64 * _KIB

    @property
    def name(self) -> str:
        parts = [self.mode, _NAMED_SIZES[self.message_bytes]]
        if self.mode != "consume":
            parts.append(f"acks={self.acks}")
        parts.append(f"{self.partitions:,} partition{'s' if self.partitions > 1 else ''}")
        if self.batch_bytes != 64 * _KIB and self.batch_bytes > self.message_bytes:
            parts.append(f"{self.batch_bytes // _KIB} KiB batches")
        extras = ("idempotent", self.idempotent), ("fsync", self.synced), (self.codec, True)
        return ", ".join(parts + [word for word, is_on in extras if is_on and word != "none"])

    def plan(self, running: Running, name: str, effort: Effort) -> Plan:
        count = messages_in(self.batch_bytes, self.message_bytes)
        codec = Codec[self.codec.upper()]
        size = len(batch_of(self.message_bytes, count, 0, codec=codec))
        share = _IN_FLIGHT_BYTES // (self.partitions * size)
        return Plan(
            port=running.port,
            broker_pid=running.servers[0].pid,
            topic=name,
            partitions=self.partitions,
            message_bytes=self.message_bytes,
            batch_bytes=self.batch_bytes,
            now_ms=time.time_ns() // 1_000_000,
            window=max(2, min(_WINDOW_MAX, share)),
            acks=-1 if self.acks == "all" else int(self.acks),
            consume=self.mode != "produce",
            idempotent=self.idempotent,
            warmup_s=effort.warmup_s,
            seconds=effort.seconds,
            max_bytes=effort.max_bytes,
            fetch_bytes=max(1, _FETCH_BYTES // size) * size,  # Kafka cuts batches, we do not
            codec=self.codec,
            other_pids=running.other_pids,
        )


def run_raw(case: RawCase, running: Running, effort: Effort) -> Figures:
    settings = {"flush.messages": "1"} if case.synced else {}
    with topic(running, case.partitions, settings) as name:
        plan = case.plan(running, name, effort)
        if case.mode == "consume":
            fill(plan, effort.fill_bytes)
            plan = plan._replace(produce=False)
        return figures_of(generate(plan), case.mode)


def fill(plan: Plan, size_bytes: int) -> None:
    """Put that many bytes into the topic."""
    generate(
        plan._replace(acks=-1, consume=False, warmup_s=0.0, seconds=_FILL_S, max_bytes=size_bytes)
    )


def figures_of(outcome: Outcome, mode: str) -> Figures:
    """Of what goes in and out at once, the slower one is the rate; CPU time is for all bytes, and for all brokers."""
    counts = [outcome.produced_messages, outcome.fetched_messages]
    messages = {"produce": counts[0], "consume": counts[1]}.get(mode, min(counts))
    moved = outcome.produced_bytes + outcome.fetched_bytes
    size = moved / (1 if mode in ("produce", "consume") else 2)
    if not messages or outcome.seconds < _SHORTEST_S:
        raise ValueError(f"{messages} messages in {outcome.seconds:.2f} s are no measurement")
    cpu_s = outcome.broker_cpu_s + outcome.others_cpu_s
    return {
        "messages_s": messages / outcome.seconds,
        "megabytes_s": size / outcome.seconds / 1e6,
        "cpu_s_gb": cpu_s / (moved / 1e9),
        "cpu_s_million": cpu_s / (sum(counts) / 1e6),
        "share": outcome.broker.share,
    }


def run_latency(
    messages_s: int, linger_ms: float, partitions: int, running: Running, effort: Effort
) -> Figures:
    case = LatencyCase("raw", messages_s, linger_ms)
    with topic(running, partitions) as name:
        meter = TreeMeter(running.pids)
        gc.disable()
        try:
            found = RawLoad(running.port, name, case, effort.seconds, partitions).run()
        finally:
            gc.enable()
        share = meter.lap().share
    acked, delivered = (
        percentiles(values, 0.5, 0.99, 0.999)
        for values in (found.acknowledged_s, found.delivered_s)
    )
    return {
        "acked_p50_ms": acked[0] * 1000,
        "acked_p99_ms": acked[1] * 1000,
        "p50_ms": delivered[0] * 1000,
        "p99_ms": delivered[1] * 1000,
        "p999_ms": delivered[2] * 1000,
        "late_ms": percentiles(found.late_s, 0.99)[0] * 1000,
        "share": share,
    }


def spread_name(partitions: int) -> str:
    return f"{_SPREAD_RATE:,} msg/s over {partitions} partition{'s' if partitions > 1 else ''}"


def run_librdkafka(what: str, message_bytes: int, running: Running, effort: Effort) -> Figures:
    """Idempotent, acks=all; who consumes finds what was produced before, which is not counted."""
    count = effort.messages * (1 if message_bytes >= 1_000 else 4)
    case = librdkafka.Case(message_bytes, count)
    with (
        topic(running, _LIBRDKAFKA_PARTITIONS) as name,
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process,
    ):
        process.submit(time.monotonic).result()  # it has started, and imported everything
        works: list[Callable[[str, str, librdkafka.Case], float]] = [librdkafka.produce]
        if what == "consume":
            works.append(librdkafka.consume)
        seconds, used = 0.0, Used(0.0, 1.0)
        for work in works:
            meter = TreeMeter(running.pids)
            seconds = process.submit(work, running.bootstrap, name, case).result()
            used = meter.lap()
    return {
        "messages_s": count / seconds,
        "megabytes_s": count * message_bytes / seconds / 1e6,
        "cpu_s_gb": used.cpu_s / (count * message_bytes / 1e9),
        "cpu_s_million": used.cpu_s / (count / 1e6),
        "share": used.cpu_s / seconds,
    }


def raw_cases() -> list[RawCase]:
    """Not every cell: each axis is walked from the cells that the goals speak of."""
    sizes, counts = (100, 1_000, 100_000), (1, 16)
    small = (100, 1_000)
    return [
        *(RawCase("produce", s, n, a) for s in sizes for n in counts for a in ("1", "all")),
        *(RawCase("produce", s, 16, "0") for s in small),
        *(RawCase("produce", s, 16, batch_bytes=16 * _KIB) for s in small),
        *(RawCase("produce", s, 16, codec=c) for s in small for c in ("lz4", "zstd")),
        *(RawCase("produce", s, 16, idempotent=True) for s in small),
        RawCase("produce", 1_000, 16, synced=True),
        *(RawCase("consume", s, n) for s in sizes for n in counts),
        *(RawCase("consume", 1_000, 16, codec=c) for c in ("lz4", "zstd")),
        *(RawCase("in and out", s, n) for s in sizes for n in counts),
    ]


def wide_cases() -> list[RawCase]:
    """Ends of the axes, which take their time."""
    return [
        RawCase("produce", 10_000_000, 1),
        RawCase("in and out", 10_000_000, 1),
        RawCase("produce", 1_000, 100),
        RawCase("produce", 1_000, 1_000),
        RawCase("in and out", 1_000, 100),
        RawCase("in and out", 1_000, 1_000),
    ]


def _workload(case: RawCase) -> OnRunning:
    return OnRunning(case.name, partial(run_raw, case))


RAW: Final = Stage(
    "raw", "Throughput, raw load, one broker", [_workload(case) for case in raw_cases()]
)
WIDE: Final = Stage(
    "wide",
    "Throughput, raw load: 10 MB messages, 100 and 1,000 partitions with a connection each",
    [_workload(case) for case in wide_cases()],
)
RF3: Final = Stage(
    "rf3",
    "Three brokers, RF 3",
    [_workload(RawCase("produce", size, 4)) for size in (100, 1_000)],
    servers=3,
)
LATENCY: Final = Stage(
    "latency",
    "Latency of 1 KB messages, acks=all, open loop",
    [
        OnRunning(
            f"{rate:,} msg/s, a batch every {linger} ms",
            partial(run_latency, rate, linger, _LATENCY_PARTITIONS),
        )
        for rate in _RATES
        for linger in (1, 5)
    ],
)
SPREAD_OUT: Final = Stage(
    "spread",
    "Latency against partitions: 1 KB messages, acks=all, open loop, a round every 5 ms",
    [
        OnRunning(spread_name(count), partial(run_latency, _SPREAD_RATE, 5, count))
        for count in SPREAD_PARTITIONS
    ],
)
LIBRDKAFKA: Final = Stage(
    "librdkafka",
    "A real client: librdkafka, idempotent, acks=all, 4 partitions",
    [
        OnRunning(f"{what}, {_NAMED_SIZES[size]}", partial(run_librdkafka, what, size))
        for what in ("produce", "consume")
        for size in (100, 1_000)
    ],
)
