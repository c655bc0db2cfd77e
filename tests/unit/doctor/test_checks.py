"""The table in the documentation is the table of checks, and texts stay short however much there is to say."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.client.reassignments import Member, Members, Place
from penstock.doctor.certificates import expiry
from penstock.doctor.checks import ALL_CHECKS, CLUSTER_CHECKS, UNREACHABLE
from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Check, Found, Severity, examine, listed
from penstock.doctor.host_checks import HOST_CHECKS
from penstock.doctor.units import duration, percent, size
from penstock.model.ids import TopicPartition

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"
_ROW = re.compile(r"^\| `([a-z0-9-]+)` \| (\w+) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_the_page_lists_every_check_as_it_is() -> None:
    documented = {row[0]: row[1:] for row in _ROW.findall(PAGE.read_text())}
    checks = ALL_CHECKS.values()
    assert documented == {c.id: (str(c.severity), c.condition, c.reason) for c in checks}


def test_ids_are_unique_and_well_formed() -> None:
    assert len(ALL_CHECKS) == len(HOST_CHECKS) + len(CLUSTER_CHECKS) + 1
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) for name in ALL_CHECKS)


@pytest.mark.parametrize("check", ALL_CHECKS.values(), ids=lambda check: check.id)
def test_texts_are_sentences(check: Check[Any]) -> None:
    assert check.reason.endswith(".")
    assert not check.condition.endswith(".")


def rule(_: object) -> list[Found]:
    return [Found("f", "r", [str(number) for number in range(500)])]


def test_findings_are_sorted_bounded_and_ignored() -> None:
    checks = [
        Check("b", Severity.NOTE, "c", "R.", rule),
        Check("a", Severity.PROBLEM, "c", "R.", rule),
    ]
    findings = examine(checks, None, "host")
    assert [finding.id for finding in findings] == ["a", "b"]
    assert (len(findings[0].subjects), findings[0].subject_count) == (100, 500)
    assert [finding.id for finding in examine(checks, None, "host", ["a"])] == ["b"]


def test_a_long_list_says_how_much_more_there_is() -> None:
    assert listed([]) == ""
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(number) for number in range(317)]) == "0, 1, 2, 3, 4 and 312 more"


@pytest.mark.slow
def test_a_hundred_thousand_partitions_make_a_short_report_in_a_few_seconds() -> None:
    members = Members("c", 1, tuple(Member(n, "h", 1, "ab"[n % 2], n != 3) for n in range(1, 11)))
    places = {
        TopicPartition(f"topic-{number // 10}", number % 10): Place(
            number % 9 + 1, (number % 10 + 1, 3), (number % 10 + 1,)
        )
        for number in range(100_000)
    }
    begun_s = time.perf_counter()
    findings = examine(CLUSTER_CHECKS, ClusterFacts(members, places, 0), "cluster")
    assert time.perf_counter() - begun_s < 20
    assert {"under-replicated", "broker-missing"} <= {finding.id for finding in findings}
    assert len(findings) < 20
    assert all(len(finding.fact) < 400 for finding in findings)


def test_the_unreachable_cluster_is_a_finding() -> None:
    [finding] = examine([UNREACHABLE], "connection refused", "cluster")
    assert finding.severity is Severity.PROBLEM
    assert "--host" in finding.remedy


# Units -------------------------------------------------------------------------------------------


def test_amounts_are_short() -> None:
    assert [size(n) for n in (0, 1023, 1536, 1 << 40, 1 << 50)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 TiB",
        "1024.0 TiB",
    ]
    assert [duration(n) for n in (0, 999, 1500, 90_000, 9_000_000, 172_800_000)] == [
        "0 ms",
        "999 ms",
        "1.5 s",
        "1.5 min",
        "2.5 h",
        "2 d",
    ]
    assert [percent(share) for share in (0.0, 0.001, 0.5)] == ["0.00 %", "0.10 %", "50 %"]


# Certificates ------------------------------------------------------------------------------------

END_MS = 1_767_225_600_000  # 2026-01-01
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("days_left", "said"),
    [(31, None), (29, "ends in 29 d"), (0, "ended 0 ms ago"), (-2, "ended 2 d ago")],
)
def test_a_certificate_is_reported_when_it_ends_soon(days_left: int, said: str | None) -> None:
    certificate = {"notAfter": "Jan  1 00:00:00 2026 GMT"}
    found = list(expiry("EXTERNAL", certificate, now_ms=END_MS - days_left * DAY_MS))
    assert [said in row.fact for row in found if said] == ([True] if said else [])
    assert bool(found) == bool(said)


@pytest.mark.parametrize("certificate", [{}, {"notAfter": "soon"}, {"notAfter": None}])
def test_a_certificate_whose_end_cannot_be_read(certificate: dict[str, object]) -> None:
    [row] = expiry("EXTERNAL", certificate, now_ms=0)
    assert "cannot be read" in row.fact
