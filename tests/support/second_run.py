"""A pytest plugin that runs tests with real processes a second time after a time-out (`--second-run`).

Only lanes with real processes qualify, and only errors that `failures.reason_for_second_run` names.
Each test runs by itself, after all others. If all pass now, the run is green and its summary lists them
as flaky with their first failure. Many such failures at once are no accident: none is run again then.
"""

import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final

import pytest
from _pytest.terminal import TerminalReporter

from tests.support.failures import reason_for_second_run
from tests.support.lanes import lane_of

LANES: Final = frozenset({"cluster", "conformance", "spark"})
LIMIT: Final = 8  # tests; more than this is not one busy moment
_REASON: Final = "reason_for_second_run"  # an attribute of reports; workers send it along
_RUN_SECONDS: Final = 1200.0
_LINES: Final = 60  # of a first failure

Run = Callable[[str], bool]  # whether the test with this id passes


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-run",
        action="store_true",
        help="run tests with real processes once more if they failed by a time-out",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None and lane_of(item.nodeid) in LANES:
        setattr(report, _REASON, reason_for_second_run(call.excinfo.value))
    return report


@pytest.hookimpl(trylast=True)  # the terminal reporter exists by now
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if config.getoption("--second-run") and terminal and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRun(terminal, lambda nodeid: _passes(config, nodeid)))


class SecondRun:
    """Decide what runs again, and turn failures that pass into flaky ones."""

    def __init__(self, terminal: TerminalReporter, run: Run) -> None:
        self._terminal = terminal
        self._run = run

    @pytest.hookimpl(trylast=True)  # workers are gone by now: the test has the machine for itself
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        failed = self._failed_reports()
        candidates = qualifying(failed)
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not candidates:
            return
        if len(candidates) > LIMIT:
            self._terminal.write_line(
                f"\n{len(candidates)} tests failed by time-outs: too many for a second run ({LIMIT})"
            )
            return
        passed = {nodeid for nodeid in candidates if self._passes_now(nodeid)}
        self._note_flaky(passed)
        if {report.nodeid for report in failed} <= passed:
            session.testsfailed = 0
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        flaky = terminalreporter.stats.get("flaky", [])
        if flaky:
            terminalreporter.section("flaky: failed by a time-out, passed in a second run")
        for report in flaky:
            terminalreporter.write_line(f"{report.nodeid} ({getattr(report, _REASON)})")
            for line in report.longreprtext.splitlines()[-_LINES:]:
                terminalreporter.write_line(f"    {line}")

    def _failed_reports(self) -> list[Any]:
        stats = self._terminal.stats
        return [*stats.get("failed", []), *stats.get("error", [])]

    def _passes_now(self, nodeid: str) -> bool:
        passed = self._run(nodeid)
        outcome = "passed" if passed else "failed again"
        self._terminal.write_line(f"\nsecond run of {nodeid}: {outcome}")
        return passed

    def _note_flaky(self, passed: set[str]) -> None:
        stats = self._terminal.stats
        for category in ("failed", "error"):
            reports = stats.pop(category, [])
            stats.setdefault("flaky", []).extend(r for r in reports if r.nodeid in passed)
            if remaining := [report for report in reports if report.nodeid not in passed]:
                stats[category] = remaining
        if not stats["flaky"]:
            del stats["flaky"]


def qualifying(failed: Iterable[Any]) -> list[str]:
    """Return the tests of which every failure (set-up, call, tear-down) may come from a busy machine."""
    final: set[str] = set()
    candidates: dict[str, None] = {}  # in the order of the failures
    for report in failed:
        if getattr(report, _REASON, None):
            candidates[report.nodeid] = None
        else:
            final.add(report.nodeid)
    return [nodeid for nodeid in candidates if nodeid not in final]


def _passes(config: pytest.Config, nodeid: str) -> bool:
    """Run one test in a process of its own and show its output if it fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "", nodeid]
    try:
        done = subprocess.run(
            command,
            cwd=config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        sys.stdout.write(output)
    return done.returncode == 0 and "1 passed" in output  # a skipped test proves nothing
