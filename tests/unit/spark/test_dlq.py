"""What the dlq job takes, and what its ledger calls a letter."""

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.dlq import DlqOptions, plan
from penstock.spark.jobs.dlq_repair import read_repair
from penstock.spark.jobs.dlq_sending import entry


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


def test_the_same_record_to_another_topic_is_another_entry() -> None:
    assert entry("a", 0, 1, "a") != entry("a", 0, 1, "b")
    assert entry("a", 1, 0, "a") != entry("a", 0, 1, "a")


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
