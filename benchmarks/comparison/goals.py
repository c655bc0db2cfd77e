"""The goals we set ourselves against Apache Kafka: the worst of the rows that a goal speaks of decides it."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from benchmarks.comparison.ratios import Spread, ratio
from benchmarks.comparison.samples import Results


class Goal(NamedTuple):
    """A limit on a ratio, for all workloads of a stage that have every one of `words` in their names."""

    title: str
    stage: str
    measure: str
    limit: float
    at_least: bool
    words: tuple[str, ...] = ()
    client_bound_is_equal: bool = False

    @property
    def sign(self) -> str:
        return "≥" if self.at_least else "≤"

    def holds(self, found: float) -> bool:
        return found >= self.limit if self.at_least else found <= self.limit


class Verdict(NamedTuple):
    goal: Goal
    workload: str  # the worst one; "" when none was measured
    found: Spread | None
    is_equal: bool  # both sides waited for the client

    @property
    def text(self) -> str:
        if self.found is None:
            return "not measured"
        if self.is_equal:
            return "reached: client-bound on both sides"
        reached = self.goal.holds(self.found.median)
        doubtful = self.goal.holds(self.found.low) != self.goal.holds(self.found.high)
        if reached:
            return "reached, but the limit is within the spread" if doubtful else "reached"
        gap = abs(self.found.median / self.goal.limit - 1)
        return f"**missed** by {gap:.0%}" + (
            " (the limit is within the spread)" if doubtful else ""
        )


GOALS: Final = (
    *(
        Goal(
            f"produce throughput, {size}, acks={acks}, RF 1",
            *("raw", "messages_s", 1.2, True, (f"produce, {size},", f"acks={acks},")),
        )
        for size in ("100 B", "1 KB")
        for acks in ("1", "all")
    ),
    Goal("consume throughput", "raw", "messages_s", 1.0, True, ("consume,",), True),
    Goal("RF 3, acks=all, three brokers", "rf3", "messages_s", 1.0, True),
    Goal("end to end p50 at 20,000 msg/s", "latency", "p50_ms", 0.7, False, ("20,000",)),
    Goal("end to end p99 at 20,000 msg/s", "latency", "p99_ms", 1.0, False, ("20,000",)),
    Goal("broker CPU s/GB, raw load", "raw", "cpu_s_gb", 0.8, False),
    Goal("broker CPU s/GB, librdkafka", "librdkafka", "cpu_s_gb", 0.8, False),
    Goal("start-up to first acknowledged message", "start", "seconds", 0.25, False),
    Goal("resident memory idle", "start", "idle_mb", 0.2, False),
    Goal("resident memory under load", "memory", "load_mb", 0.5, False),
    Goal("10,000 topics created: time", "topics", "seconds", 0.5, False, ("10,000",)),
    Goal("10,000 topics created: memory", "topics", "idle_mb", 0.5, False, ("10,000",)),
)


def judge(results: Results, ours: str, theirs: str) -> list[Verdict]:
    return [_verdict(goal, results, ours, theirs) for goal in GOALS]


def _verdict(goal: Goal, results: Results, ours: str, theirs: str) -> Verdict:
    open_rows: list[tuple[str, Spread]] = []
    equal_rows: list[tuple[str, Spread]] = []
    for workload in _workloads(goal, results):
        found = ratio(
            results.values(goal.stage, workload, ours, goal.measure),
            results.values(goal.stage, workload, theirs, goal.measure),
        )
        if found is None:
            continue
        bound = [results.is_client_bound(goal.stage, workload, it) for it in (ours, theirs)]
        is_equal = goal.client_bound_is_equal and all(bound) and not goal.holds(found.median)
        (equal_rows if is_equal else open_rows).append((workload, found))
    rows = open_rows or equal_rows
    if not rows:
        return Verdict(goal, "", None, False)
    worst = min if goal.at_least else max
    workload, found = worst(rows, key=lambda row: row[1].median)
    return Verdict(goal, workload, found, is_equal=not open_rows)


def _workloads(goal: Goal, results: Results) -> Iterable[str]:
    names = results.workloads(goal.stage)
    return [name for name in names if all(word in name for word in goal.words)]
