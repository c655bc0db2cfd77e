"""Which plots the report has: ratios to Kafka, and curves against what may grow: messages, partitions, connections, groups, topics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.comparison.growth import (
    CONNECTION_COUNTS,
    GROUP_COUNTS,
    connections_name,
    groups_name,
)
from benchmarks.comparison.kafka_load import (
    SPREAD_PARTITIONS,
    RawCase,
    raw_cases,
    spread_name,
    wide_cases,
)
from benchmarks.comparison.lifecycle import topics_name
from benchmarks.comparison.plots import Point, curve_plot, ratio_plot
from benchmarks.comparison.ratios import Spread, ratio, spread
from benchmarks.comparison.samples import Results

_RATIOS: Final = (
    ("throughput", "messages_s", "Throughput, Penstock / Kafka (right of 1: we are faster)"),
    ("cpu", "cpu_s_gb", "Broker CPU s/GB, Penstock / Kafka (left of 1: we need less)"),
    ("latency", "p99_ms", "End-to-end p99, Penstock / Kafka (left of 1: we are faster)"),
)
_STAGES: Final = ("raw", "wide", "rf3", "librdkafka", "transactions", "latency", "spread", "cold")
_MODES: Final = ("produce", "consume", "in and out")


def draw(results: Results, out: Path, ours: str, theirs: str = "kafka") -> list[tuple[str, str]]:
    """Writes them; captions and file names."""
    drawn = []
    for name, caption, svg in (*_ratio_plots(results, ours, theirs), *_curve_plots(results)):
        (out / name).write_text(svg)
        drawn.append((caption, name))
    return drawn


def _ratio_plots(results: Results, ours: str, theirs: str) -> Iterator[tuple[str, str, str]]:
    for name, measure, caption in _RATIOS:
        points = [
            Point(f"{stage}: {workload}", found)
            for stage in _STAGES
            for workload in results.workloads(stage)
            if (found := _ratio(results, stage, workload, measure, ours, theirs)) is not None
        ]
        if points:
            yield f"ratio-{name}.svg", caption, ratio_plot(caption, points)


def _ratio(
    results: Results, stage: str, workload: str, measure: str, ours: str, theirs: str
) -> Spread | None:
    mine, others = (results.values(stage, workload, it, measure) for it in (ours, theirs))
    return ratio(mine, others)


class Axis(NamedTuple):
    """One figure of some workloads, against a number that each of them stands for."""

    file_name: str
    caption: str
    x_title: str
    stages: tuple[str, ...]
    measure: str
    workloads: Mapping[str, int]


def _axes() -> Iterator[Axis]:
    """Along one axis at a time; everything else is as it is by default."""
    for mode in _MODES:
        plain = [case for case in (*raw_cases(), *wide_cases()) if _is_plain(case, mode)]
        by_size = {case.name: case.message_bytes for case in plain if case.partitions == 16}
        by_count = {case.name: case.partitions for case in plain if case.message_bytes == 1_000}
        for axis, x_title, fixed, cases in (
            ("size", "message size, bytes", "16 partitions", by_size),
            ("partitions", "partitions, with a connection each", "1 KB", by_count),
        ):
            caption = f"MB/s, {mode}, {fixed}, acks=all"
            name = f"curve-{mode.replace(' ', '-')}-{axis}.svg"
            yield Axis(name, caption, x_title, ("raw", "wide"), "megabytes_s", cases)
    connections = {connections_name(it): it for it in CONNECTION_COUNTS}
    groups = {groups_name(it): it for it in GROUP_COUNTS}
    topics = {topics_name(it): it for it in (100, 1_000, 10_000, 100_000)}
    spread_out = {spread_name(it): it for it in SPREAD_PARTITIONS}
    for stage, x_title, workloads, figures in (
        ("connections", "connections", connections, (("megabytes_s", "MB/s"), ("load_mb", "resident MB"))),
        ("groups", "groups", groups, (("messages_s", "commits/s"), ("idle_mb", "resident MB"))),
        ("topics", "topics of one partition", topics, (("seconds", "s to create"), ("idle_mb", "resident MB"))),
        ("spread", "partitions", spread_out, (("p50_ms", "end to end p50, ms"), ("p99_ms", "end to end p99, ms"))),
    ):  # fmt: skip
        for measure, title in figures:
            name = f"curve-{stage}-{measure.partition('_')[0]}.svg"
            yield Axis(name, f"{title}, by {stage}", x_title, (stage,), measure, workloads)


def _curve_plots(results: Results) -> Iterator[tuple[str, str, str]]:
    for axis in _axes():
        series = _series(results, axis)
        if any(len(points) > 1 for points in series.values()):
            yield axis.file_name, axis.caption, curve_plot(axis.caption, axis.x_title, series)


def _is_plain(case: RawCase, mode: str) -> bool:
    return case == RawCase(mode, case.message_bytes, case.partitions)


def _series(results: Results, axis: Axis) -> dict[str, dict[float, Spread]]:
    series: dict[str, dict[float, Spread]] = {}
    for stage in axis.stages:
        for system in results.systems(stage):
            for name, x in axis.workloads.items():
                found = spread(results.values(stage, name, system, axis.measure).values())
                if found is not None:
                    series.setdefault(system, {})[x] = found
    return series
