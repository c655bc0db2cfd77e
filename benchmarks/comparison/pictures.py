"""Which plots the report has: ratios to Kafka, and curves against the size of messages and the number of partitions."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.comparison.kafka_load import RawCase, raw_cases, wide_cases
from benchmarks.comparison.plots import Point, curve_plot, ratio_plot
from benchmarks.comparison.ratios import Spread, ratio, spread
from benchmarks.comparison.samples import Results

_RATIOS: Final = (
    ("throughput", "messages_s", "Throughput, Penstock / Kafka (right of 1: we are faster)"),
    ("cpu", "cpu_s_gb", "Broker CPU s/GB, Penstock / Kafka (left of 1: we need less)"),
    ("latency", "p99_ms", "End-to-end p99, Penstock / Kafka (left of 1: we are faster)"),
)
_STAGES: Final = ("raw", "wide", "rf3", "librdkafka", "latency")
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


def _curve_plots(results: Results) -> Iterator[tuple[str, str, str]]:
    """Along one axis at a time; everything else is as it is by default."""
    for mode in _MODES:
        plain = [case for case in (*raw_cases(), *wide_cases()) if _is_plain(case, mode)]
        by_size = {case.name: case.message_bytes for case in plain if case.partitions == 16}
        by_count = {case.name: case.partitions for case in plain if case.message_bytes == 1_000}
        axes = (
            ("size", "message size, bytes", "16 partitions", by_size),
            ("partitions", "partitions, with a connection each", "1 KB", by_count),
        )
        for axis, x_title, fixed, cases in axes:
            series = _series(results, cases)
            if any(len(points) > 1 for points in series.values()):
                caption = f"MB/s, {mode}, {fixed}, acks=all"
                file_name = f"curve-{mode.replace(' ', '-')}-{axis}.svg"
                yield file_name, caption, curve_plot(caption, x_title, series)


def _is_plain(case: RawCase, mode: str) -> bool:
    return case == RawCase(mode, case.message_bytes, case.partitions)


def _series(results: Results, cases: Mapping[str, int]) -> dict[str, dict[float, Spread]]:
    series: dict[str, dict[float, Spread]] = {}
    for stage in ("raw", "wide"):
        for system in results.systems(stage):
            for name, x in cases.items():
                found = spread(results.values(stage, name, system, "megabytes_s").values())
                if found is not None:
                    series.setdefault(system, {})[x] = found
    return series
