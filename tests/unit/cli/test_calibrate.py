"""`penstock plan --calibrate`: the disk is measured and left clean; the file that is written is one that `--file` reads."""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from penstock.cli import calibrate as module
from penstock.cli.calibrate import Disk, measure_disk, profile, this_machine
from penstock.cli.main import main
from penstock.planner.document import merge
from penstock.planner.inputs import Cpu, Inputs, Topic
from penstock.planner.planning import make_plan

DISK = Disk(2e8, 4e8, 1.5, 9.0)
BROKER = {
    "append": 1.1,
    "batch": 8e-6,
    "serve_follower": 0.5,
    "follow": 0.75,
    "read": 0.4,
    "produce_bytes_s": 2.4e8,
    "both_bytes_s": 2e8,
    "took_s": 60.0,
}


def test_a_disk_is_measured_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FILE_MAX_BYTES", 4 << 20)
    monkeypatch.setattr(module, "_SYNCS", 3)
    disk = measure_disk(tmp_path, 0.2)
    assert disk.write_bytes_s > 0
    assert disk.read_bytes_s > 0
    assert 0 < disk.sync_median_ms <= disk.sync_p99_ms
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_read_by_the_planner(tmp_path: Path) -> None:
    machine = this_machine(tmp_path, DISK)
    text = profile("host.example-1", machine, DISK, BROKER)
    inputs = merge(Inputs((Topic(rate=10),)), tomllib.loads(text), "here.toml")
    assert inputs.machine_name == "host.example-1"
    assert inputs.machines["host.example-1"] == machine
    assert inputs.cpu == Cpu(1.1, 8e-6, 0.5, 0.75, 0.4)
    assert make_plan(inputs).month > 0
    assert "# a sync of 4 KiB: 1.50 ms, 99 of 100 within 9.00 ms" in text


def calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: "subprocess.CompletedProcess[str]"
) -> int:
    monkeypatch.setattr(module, "measure_disk", lambda *_: DISK)
    monkeypatch.setattr(module, "_FREE_LEAST_BYTES", 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    words = ["plan", "--calibrate", "--data", tmp_path, "--out", tmp_path / "here.toml"]
    return main([str(word) for word in words])


def test_the_benchmarks_are_run_and_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = subprocess.CompletedProcess([], 0, "a line\n" + json.dumps(BROKER) + "\n", "")
    assert calibrated(tmp_path, monkeypatch, done) == 0
    assert tomllib.loads((tmp_path / "here.toml").read_text())["cpu"]["append"] == 1.1
    assert "use it with: penstock plan --file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("out", "err", "reason"),
    [
        ("", "Traceback\nModuleNotFoundError: no psutil\n", "the benchmark failed: ModuleNotFoundError: no psutil"),
        ("", "", "the benchmark failed: no message"),
    ],
)  # fmt: skip
def test_a_benchmark_that_fails_is_told(
    out: str,
    err: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert calibrated(tmp_path, monkeypatch, subprocess.CompletedProcess([], 1, out, err)) == 1
    assert capsys.readouterr().err.endswith(f"penstock: {reason}\n")
    assert not (tmp_path / "here.toml").exists()


def test_a_disk_with_little_room_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_FREE_LEAST_BYTES", 10**20)
    assert main(["plan", "--calibrate", "--data", str(tmp_path)]) == 1
    assert "free; --calibrate needs 100 EB" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
