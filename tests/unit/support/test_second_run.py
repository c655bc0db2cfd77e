"""Whole pytest runs in a folder of their own: which failures run again, and what the run says then."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
PLUGINS = "tests.support.lanes,tests.support.second_run"
HEAD = """
from pathlib import Path
from tests.support.failures import DataError, NotInTime

def is_first_run(name):
    mark = Path(__file__).parent / name
    is_first = not mark.exists()
    mark.touch()
    return is_first
"""
TIMES_OUT_ONCE = """
def test_once():
    if is_first_run("once"):
        raise NotInTime("no leader yet")
"""
TIMES_OUT_ALWAYS = """
def test_always():
    raise NotInTime("never a leader")
"""
LOSES_DATA_ONCE = """
def test_data():
    if is_first_run("data"):
        raise DataError("a record is lost")
"""


class Ran(NamedTuple):
    status: int
    output: str

    @property
    def closing_line(self) -> str:
        return self.output.splitlines()[-1]


def run(home: Path, lane: str, *tests: str, workers: int = 0) -> Ran:
    folder = home / "tests" / lane
    folder.mkdir(parents=True)
    (folder / "test_it.py").write_text(HEAD + "".join(tests))
    (home / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    plugins = {"PYTEST_PLUGINS": PLUGINS, "PYTHONPATH": str(ROOT)}
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*command, "--second-run", "--lanes"],
        cwd=home,
        env=own | plugins,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_timeout_that_passes_alone_is_green_and_listed_as_flaky(
    tmp_path: Path, workers: int
) -> None:
    ran = run(tmp_path, "cluster", TIMES_OUT_ONCE, "def test_fine(): pass", workers=workers)
    assert ran.status == 0, ran.output
    assert "flaky: failed by a time-out" in ran.output
    assert "no leader yet" in ran.output
    assert "1 flaky" in ran.closing_line
    assert "1 passed" in ran.closing_line
    assert "failed" not in ran.closing_line


def test_a_timeout_that_fails_again_is_red(tmp_path: Path) -> None:
    ran = run(tmp_path, "conformance", TIMES_OUT_ALWAYS, TIMES_OUT_ONCE)
    assert ran.status == 1
    assert "second run of tests/conformance/test_it.py::test_always: failed again" in ran.output
    assert "1 failed, 1 flaky" in ran.closing_line


def test_a_failed_check_on_data_never_runs_again(tmp_path: Path) -> None:
    ran = run(tmp_path, "spark", LOSES_DATA_ONCE, TIMES_OUT_ONCE)
    assert ran.status == 1
    assert "second run of tests/spark/test_it.py::test_data" not in ran.output
    assert "1 failed, 1 flaky" in ran.closing_line


def test_a_failed_check_is_not_hidden_by_a_timeout_while_tearing_down(tmp_path: Path) -> None:
    fixture = """
import pytest

@pytest.fixture
def slow_to_end():
    yield
    raise NotInTime("does not end")

def test_data(slow_to_end):
    raise DataError("a record is lost")
"""
    ran = run(tmp_path, "cluster", fixture)
    assert ran.status == 1
    assert "second run" not in ran.output


@pytest.mark.parametrize("lane", ["unit", "simulation"])
def test_lanes_without_processes_are_never_run_again(tmp_path: Path, lane: str) -> None:
    ran = run(tmp_path, lane, TIMES_OUT_ONCE)
    assert ran.status == 1
    assert "second run" not in ran.output


def test_many_timeouts_at_once_are_no_accident(tmp_path: Path) -> None:
    many = [TIMES_OUT_ONCE.replace("once", f"once_{number}") for number in range(9)]
    ran = run(tmp_path, "cluster", *many)
    assert ran.status == 1
    assert "9 tests failed by time-outs: too many for a second run (8)" in ran.output


def test_the_summary_lists_lanes_and_slow_tests(tmp_path: Path) -> None:
    ran = run(tmp_path, "cluster", "def test_fine(): pass")
    assert ran.status == 0
    assert "tests/cluster/test_it.py::test_fine" in ran.output
    assert any(line.split()[:2] == ["cluster", "1"] for line in ran.output.splitlines())
