"""A pytest plugin that reports where the time of a run goes: minutes per lane and the slowest tests.

A lane is a folder below tests/. Its minutes are the durations of its tests divided by the number of
workers: what the lane adds to the whole run.
"""

import os
from collections import defaultdict
from typing import Final

import pytest
from _pytest.terminal import TerminalReporter

BUDGET_MINUTES: Final = {  # of `make test` on two idle cores
    "static": 0.5,
    "unit": 1.5,
    "simulation": 2.0,
    "conformance": 5.0,
    "cluster": 6.0,
    "spark": 5.0,
}
_SLOWEST: Final = 20
_STATIC_SECONDS: Final = "STATIC_SECONDS"  # the Makefile's measurement of the static checks


def lane_of(nodeid: str) -> str:
    """Return the folder below tests/ that holds the test, for example `cluster`."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"


class LaneTimes:
    """Add up the durations of set-up, call and tear-down per test."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if self._seconds:
            terminalreporter.section(f"slowest {_SLOWEST} tests")
            for line in self.slowest():
                terminalreporter.write_line(line)
            terminalreporter.section("lanes")
            for line in self.table():
                terminalreporter.write_line(line)

    def slowest(self) -> list[str]:
        ranked = sorted(self._seconds.items(), key=lambda entry: -entry[1])[:_SLOWEST]
        return [f"{seconds:8.1f} s  {nodeid}" for nodeid, seconds in ranked]

    def table(self) -> list[str]:
        """Return one row per lane, in the order of the budgets, and their sum."""
        minutes, counts = self._per_lane()
        rows = [f"{'lane':12} {'tests':>6} {'minutes':>8} {'budget':>7}"]
        for lane in [*BUDGET_MINUTES, *sorted(minutes.keys() - BUDGET_MINUTES.keys())]:
            if lane in minutes:
                budget = BUDGET_MINUTES.get(lane)
                rows.append(_row(lane, counts.get(lane), minutes[lane], budget))
        total = sum(BUDGET_MINUTES[lane] for lane in minutes if lane in BUDGET_MINUTES)
        rows.append(_row("all", sum(counts.values()), sum(minutes.values()), total))
        return rows

    def _per_lane(self) -> tuple[dict[str, float], dict[str, int]]:
        minutes: dict[str, float] = defaultdict(float)
        counts: dict[str, int] = defaultdict(int)
        for nodeid, seconds in self._seconds.items():
            minutes[lane_of(nodeid)] += seconds / 60 / self._workers
            counts[lane_of(nodeid)] += 1
        if static := os.environ.get(_STATIC_SECONDS):
            minutes["static"] = float(static) / 60
        return minutes, counts


def _row(lane: str, tests: int | None, minutes: float, budget: float | None) -> str:
    shown = "" if budget is None else f"{budget:7.1f}"
    over = "  over budget" if budget is not None and minutes > budget else ""
    return f"{lane:12} {'' if tests is None else tests:>6} {minutes:8.1f} {shown}{over}".rstrip()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lanes", action="store_true", help="report the slowest tests and lane times")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--lanes") and not hasattr(config, "workerinput"):
        workers = getattr(config.option, "numprocesses", None) or 1
        config.pluginmanager.register(LaneTimes(int(workers)))
