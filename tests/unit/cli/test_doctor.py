"""`penstock doctor` prints its findings for people and for machines, and its exit code says how bad they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.client.reassignments import Place
from penstock.doctor import host_reader
from penstock.doctor.host_facts import HostFacts, Nic
from penstock.model.ids import TopicPartition
from tests.support.fake_cluster import FakeCluster, at_rest

NOBODY = "127.0.0.1:1"


def ran(*words: object) -> int:
    return main(["doctor", *map(str, words), "--seconds", "0"])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Facts of the host, to be changed by the test."""
    facts: dict[str, Any] = {}

    def gather(data: str | None, **given: Any) -> HostFacts:
        return HostFacts(data_directory=data, replicas=given["replicas"], **facts)

    monkeypatch.setattr(host_reader, "gather", gather)
    return facts


def test_a_host_with_nothing_to_report(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran("--host") == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "unknown   data directory and its disk (name it: --data DIR); open files;"
    )
    assert out.endswith("nothing found (36 checks)\n")
    assert host == {}


def test_findings_wrap_at_the_width_of_the_terminal(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    host |= {"swapped_bytes": 1 << 30, "oom_kills": 2, "slow_start_after_idle": 1}
    assert ran("--host") == 1
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    shown = [line.split()[0] for line in out.splitlines() if " host: " in line]
    assert shown == ["PROBLEM", "WARNING", "NOTE"]
    assert "  remedy  add memory, or turn swap off: swapoff -a\n" in out
    assert "1 problem, 1 warning, 1 note (36 checks)" in out


def test_each_step_of_a_remedy_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeCluster(at_rest([1]), [1, 2]).served() as where:
        assert ran("--cluster", "--bootstrap", where) == 0
    out = capsys.readouterr().out
    assert "\n          penstock reassign execute plan.json\n" in out


@pytest.mark.parametrize(
    ("facts", "words", "status"),
    [
        ({"slow_start_after_idle": 1}, ["--strict"], 0),
        ({"swapped_bytes": 1 << 30}, [], 0),
        ({"swapped_bytes": 1 << 30}, ["--strict"], 1),
        ({"oom_kills": 1}, [], 1),
        ({"oom_kills": 1}, ["--ignore", "out-of-memory-kills", "--strict"], 0),
    ],
)
def test_the_exit_code_is_that_of_the_worst_finding(
    host: dict[str, Any], facts: dict[str, Any], words: list[str], status: int
) -> None:
    host |= facts
    assert ran("--host", *words) == status


def test_json_names_findings_and_what_is_unknown(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    host |= {"nics": (Nic("eth0", 100, "full", 1, 0, 0),)}
    assert ran("--host", "--json", "--ignore", "swappiness") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["healthy"], found["problems"], found["warnings"]) == (True, 0, 1)
    assert found["ignored"] == ["swappiness"]
    assert "kernel" in found["unknown"]
    [finding] = found["findings"]
    assert finding["id"] == "slow-network"
    assert finding["severity"] == "warning"
    assert finding["scope"] == "host"
    assert set(finding) == {"id", "severity", "scope", "fact", "reason", "remedy", "subjects", "subject_count"}  # fmt: skip


def test_a_cluster_and_the_host_together(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    host |= {"swapped_bytes": 1 << 30}
    places = {TopicPartition("t", 0): Place(1, (1, 2), (1,))}
    with FakeCluster(places, [1], stopped=[2]).served() as where:
        assert ran("--json", "--bootstrap", where) == 1
    found = json.loads(capsys.readouterr().out)
    ids = [finding["id"] for finding in found["findings"]]
    assert ids == ["under-min-isr", "broker-missing", "min-isr-all", "swap-used"]
    assert found["findings"][1]["remedy"].startswith("start it (it has 1 replica)")


def test_a_cluster_that_cannot_be_reached_is_an_error_when_it_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ran("--cluster", "--bootstrap", NOBODY) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("penstock: cannot reach 127.0.0.1:1")
    assert captured.err.count("\n") == 1


def test_a_cluster_that_cannot_be_reached_is_a_finding_beside_the_host(
    host: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran("--bootstrap", NOBODY, "--json") == 1
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["id"] == "cluster-unreachable"
    assert ran("--bootstrap", NOBODY, "--ignore", "cluster-unreachable") == 0
    assert host == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ignore", "swapines"], "there is no check 'swapines' (did you mean swappiness?)"),
        (["--ignore", "zzz"], "see docs/doctor.md"),
        (["--data", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        (["--host", "--pid", "2147483647"], "there is no process 2147483647"),
        (["--seconds", "61"], "expected seconds from 0 to 60, not '61'"),
        (["--seconds", "nan"], "expected seconds from 0 to 60, not 'nan'"),
        (["--bootstrap", "x:y:z", "--cluster"], "--bootstrap"),
    ],
)
def test_wrong_usage_is_one_line_before_anything_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_the_disk_of_a_data_directory_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--host", "--data", str(tmp_path), "--seconds", "0.01", "--json"]) in (
        0,
        1,
    )
    found = json.loads(capsys.readouterr().out)
    assert "sync times" not in found["unknown"]
    assert "room" not in found["unknown"]
    assert list(tmp_path.iterdir()) == []
