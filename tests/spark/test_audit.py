"""`audit` of a topic and its lake: each kind of planted damage is found, and named by its offsets."""

from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.spark.errors import JobError
from tests.spark.audits import Row, damage, faults, run_audit
from tests.spark.lakes import Lake
from tests.spark.topics import Create, Sent, numbered, produce, transactions
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


@pytest.fixture
def stored(lake: Lake, broker: Server, topic: Create) -> str:
    """A topic of two partitions with 20 records each, all of which are in the lake."""
    name = topic("audit", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(40, partitions=2))
    lake.run(name, partition_by="none")
    return name


@pytest.mark.long
def test_a_lake_that_has_every_record_once_passes(
    spark: Any, lake: Lake, broker: Server, stored: str
) -> None:
    summary = run_audit(spark, broker, stored, table=str(lake.table))
    assert faults(summary) == {}
    assert summary.facts["agreed"] == 40
    produce(broker, stored, numbered(6, partitions=2, start=40))
    later = run_audit(spark, broker, stored, table=str(lake.table))
    assert later.passed
    assert (later.facts["agreed"], later.facts["behind"]) == (40, 6)
    strict = run_audit(spark, broker, stored, table=str(lake.table), complete=True)
    assert faults(strict) == {"missing": {0: [20, 21, 22], 1: [20, 21, 22]}}


def _damaged(row: Row) -> list[Row]:
    """What becomes of a row: records lost, doubled, swapped and changed."""
    match row["partition"], row["offset"]:
        case 0, 3 | 4 | 19:
            return []
        case 1, 0 | 7:
            return [row, row]
        case 0, 5 | 6 as offset:
            return [{**row, "offset": 11 - offset}]
        case 1, 11:
            return [{**row, "value": row["value"] + b"!"}]
        case 1, 12:
            return [{**row, "headers": [{"key": "h", "value": b"1"}]}]
        case 1, 13:
            return [{**row, "key": None}]
        case _:
            return [row]


def test_planted_damage_is_found_and_named(
    spark: Any, lake: Lake, broker: Server, stored: str
) -> None:
    damage(lake.table, _damaged)
    summary = run_audit(spark, broker, stored, table=str(lake.table))
    assert faults(summary) == {
        "missing": {0: [3, 4, 19]},
        "duplicate": {1: [0, 7]},
        "reordered": {0: [5, 6]},
        "changed": {1: [11, 12, 13]},
    }
    assert summary.facts["agreed"] == 40 - 10
    assert summary.lines[0].startswith("FAILED: ")
    assert f"    {stored}-0 at 3, 4, 19" in summary.lines


@pytest.mark.long
def test_dead_letters_belong_to_what_the_lake_has(
    spark: Any, lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("audit", retention_ms=-1)
    values = [b'{"id": 1}', b"{oops", b'{"id": "two"}', b'{"id": 4}', None]
    produce(broker, name, [Sent(b"k", value, 0, 1000 + n) for n, value in enumerate(values)])
    lake.run(name, decode="json", schema="id BIGINT", partition_by="none")
    summary = run_audit(spark, broker, name, table=str(lake.table))
    assert faults(summary) == {}
    assert summary.facts["agreed"] == 5

    damage(lake.table, lambda row: [{**row, "value": {"id": 5}}] if row["offset"] == 3 else [row])
    damage(
        lake.dead_letters,
        lambda row: [] if row["offset"] == 1 else [{**row, "value": b'{"id": 2}'}],
    )
    broken = run_audit(spark, broker, name, table=str(lake.table))
    assert faults(broken) == {"missing": {0: [1]}, "changed": {0: [2, 3]}}


@pytest.mark.long
def test_markers_and_aborted_records_are_gaps_and_no_faults(
    spark: Any, lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("audit", retention_ms=-1)
    transactions(broker, name, [True, False, True])
    lake.run(name)
    summary = run_audit(spark, broker, name, table=str(lake.table))
    assert faults(summary) == {}
    assert summary.facts["agreed"] == 6
    assert summary.facts["gaps"] == {"markers": 3, "aborted": 3, "holes": 0}


@pytest.mark.long
def test_what_retention_took_is_no_fault(
    spark: Any, lake: Lake, broker: Server, stored: str
) -> None:
    rows = [confluent_kafka.TopicPartition(stored, 0, 8)]
    for done in broker.admin.delete_records(rows).values():
        done.result(PATIENCE_S)
    summary = run_audit(spark, broker, stored, table=str(lake.table))
    assert faults(summary) == {}
    assert (summary.facts["agreed"], summary.facts["expired"]) == (32, 8)


@pytest.mark.long
@pytest.mark.usefixtures("stored")
def test_a_table_of_another_topic_is_refused(
    lake: Lake, spark: Any, broker: Server, topic: Create
) -> None:
    other = topic("audit", retention_ms=-1)
    with pytest.raises(JobError, match=f"has nothing of {other} that a lake job wrote"):
        run_audit(spark, broker, other, table=str(lake.table))
