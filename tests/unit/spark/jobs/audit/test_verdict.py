"""The verdict of an audit, and the options of the job."""

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark.jobs.audit.compare import Kind, Offence
from penstock.spark.jobs.audit.options import AuditOptions
from penstock.spark.jobs.audit.verdict import Gaps, gaps, lines, verdict

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def test_only_faults_make_an_audit_fail() -> None:
    legal = [("t", 0, kind, 3) for kind in (Kind.AGREED, Kind.BEHIND, Kind.EXPIRED, Kind.COMPACTED)]
    found = verdict(legal, [], {ZERO: Gaps(1, 2, 3), ONE: Gaps(1, 0, 0)}, [ZERO, ONE])
    assert found["passed"]
    assert (found["agreed"], found["behind"], found["missing"]) == (3, 3, 0)
    assert found["gaps"] == {"markers": 2, "aborted": 2, "holes": 3}
    assert [entry["agreed"] for entry in found["partitions"]] == [3, 0]


@pytest.mark.parametrize("kind", ["missing", "duplicate", "reordered", "changed", "extra"])
def test_every_fault_makes_it_fail_and_is_named_by_its_offset(kind: str) -> None:
    counts = [("t", 0, Kind.AGREED, 5), ("t", 1, Kind(kind), 3)]
    offences = [Offence("t", 1, offset, Kind(kind), None) for offset in (7, 9)]
    facts = verdict(counts, offences, {}, [ZERO, ONE])
    assert not facts["passed"]
    assert facts["partitions"][1]["first"] == {kind: [7, 9]}
    shown = list(lines({**facts, "compared": "t with u", "notes": ["n"]}))
    assert shown[0] == "FAILED: t with u"
    assert "    t-1 at 7, 9 …" in shown
    assert shown[-1] == "  note: n"


def test_offsets_without_records_are_told_apart() -> None:
    assert gaps(10, records=10, markers=0, stored=10) == Gaps(0, 0, 0)
    assert gaps(10, records=4, markers=2, stored=7) == Gaps(2, 3, 1)
    assert gaps(5, records=9, markers=0, stored=9) == Gaps(0, 0, 0)  # a batch from before the range


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "one of --table, --against and --ledger"),
        ({"table": "a", "ledger": "b"}, "one of --table, --against and --ledger"),
        ({"table": "a", "by": "content"}, "need --against"),
        ({"ledger": "a", "dead_letters": "b"}, "--dead-letters and --without-values need --table"),
        ({"ledger": "a", "iceberg_table": "b.c"}, "--iceberg-table needs --table"),
        ({"table": "a", "at_least_once": True}, "--at-least-once needs --ledger"),
        ({"against": "a:1", "rename": (("u", "v"),)}, "u is not among the topics"),
        ({"table": "a", "topics": ()}, "needs a TOPIC"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AuditOptions(**{"topics": ("t",), **options})  # type: ignore[arg-type]  # as flags give them


def test_a_topic_may_have_another_name_there() -> None:
    options = AuditOptions(topics=("b", "a"), against="x:1", rename=(("a", "eu.a"),))
    assert options.names_there == {"a": "eu.a", "b": "b"}
