"""The options of the dlq job, and how its ledger identifies a letter."""

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.dlq.job import _lines, plan
from penstock.spark.jobs.dlq.options import DlqOptions
from penstock.spark.jobs.dlq.repair import read_repair


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--table or --topic"),
        ({"table": "a", "topic": "b"}, "--table or --topic"),
        ({"topic": "a", "sql": "x", "function": "y:z"}, "exclude each other"),
        ({"topic": "a", "to": "b"}, "need --send"),
        ({"topic": "a", "again": True}, "need --send"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DlqOptions(**options)  # type: ignore[arg-type]  # as flags give them


def test_a_table_that_is_not_there_is_told_before_spark_starts() -> None:
    with pytest.raises(JobError, match="/no/such: there is no such table"):
        plan(DlqOptions(table="/no/such"))


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [
        (None, "?"),
        (0, "1970-01-01 00:00:00Z"),
        (1_763_400_000_000_000, "@1763400000000000"),
        (9_223_372_036_854_775, "@9223372036854775"),
        (-9_223_372_036_854_775, "@-9223372036854775"),
    ],
)
def test_the_time_of_a_letter_is_shown_even_if_no_date_can_say_it(
    timestamp_ms: int | None, shown: str
) -> None:
    kind = {"kind": "k", "letters": 1, "topics": ["t"]}
    times = {"first_ms": timestamp_ms, "last_ms": timestamp_ms}
    facts = {"letters": 1, "source": "s", "kinds": [{**kind, **times}]}
    assert _lines(facts)[1] == f"  1 k: t, {shown} to {shown}"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("nothing", "expected FILE.py:FUNCTION"),
        ("no_such_module:f", "cannot import 'no_such_module'"),
        ("json:nope", "json has no function 'nope'"),
        ("/no/such.py:f", "cannot read /no/such.py"),
    ],
)
def test_a_function_that_is_not_there_is_named(function: str, said: str) -> None:
    with pytest.raises(JobError, match=said):
        read_repair(None, function)
