"""Define the options of `penstock pipeline traffic`."""

from dataclasses import dataclass

from penstock.spark.job import JobOptions, Kind, option
from penstock.spark.jobs.record_times import Times


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(JobOptions):
    topics: tuple[str, ...] = option("to measure", metavar="TOPIC", many=True, positional=True)
    since: int | None = option(
        "only messages of this time and later, such as -7d",
        kind=Kind.TIME,
        metavar="TIME",
        default=None,
    )
    until: int | None = option(
        "only messages before this time", kind=Kind.TIME, metavar="TIME", default=None
    )
    step: int | None = option(
        "length of the intervals that rates are for, such as 1m (default: by the time that is covered)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=None,
    )
    hot_keys: int = option(
        "how many of the busiest keys to name; 0 spares a scan (default 10)",
        kind=Kind.COUNT,
        metavar="N",
        default=10,
    )
    output: str | None = option("also write the JSON there", metavar="FILE", default=None)
    picture: str | None = option(
        "draw rates and partitions as an SVG", metavar="FILE", default=None
    )

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("traffic needs a TOPIC")
        if self.step is not None and self.step < 1:
            raise ValueError("--step must be at least 1ms")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("--since must be before --until")

    @property
    def times(self) -> Times:
        return Times(self.since, self.until)
