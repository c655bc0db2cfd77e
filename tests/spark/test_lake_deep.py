"""JSON that is nested too deep for columns: it never stops the job, and makes no schema that Spark cannot handle."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.jobs.table.decode import DEEPEST, is_shallow
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, produce
from tests.support.command import penstock_command
from tests.support.server import Server

pytestmark = pytest.mark.spark


def deep(depth: int) -> bytes:
    """As many objects in each other, the outermost included."""
    return b'{"id": 2, "deep": ' + b'{"a": ' * (depth - 1) + b"1" + b"}" * depth


@pytest.mark.long
def test_the_depth_is_that_of_objects_and_arrays_and_not_of_brackets(spark: Any) -> None:
    values = {
        deep(DEEPEST): True,
        deep(DEEPEST + 1): False,
        b"[" * DEEPEST + b"]" * DEEPEST: True,
        b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1): False,
        b"[" + b'{"a": []},' * 1000 + b"1]": True,
        json.dumps({"a": "[" * 99, '"{' * 5000: ['\\"[{' * 5000]}).encode(): True,
        b'{"a": "' + b"x" * 1_000_000 + b"[" * 99 + b'"}': True,
        deep(100_000): False,
    }
    rows = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    found = rows.select(is_shallow(rows.value.cast("string"))).collect()
    assert [shallow for (shallow,) in found] == list(values.values())


@pytest.mark.long
@pytest.mark.parametrize("evolve", [False, True])
def test_records_that_are_too_deep_lose_what_is_deep_and_the_rest_goes_on(
    spark: Any, broker: Server, topic: Create, tmp_path: Path, evolve: bool
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("deep", retention_ms=-1)
    values = [b'{"id": 1}', *(deep(depth) for depth in (250, 600, 950)), deep(5000)]
    values += [b'{"id": ' + b"[" * 300 + b"]" * 300 + b"}", b'{"id": 3}']
    produce(broker, name, [Sent(b"k", value) for value in values])
    summary = lake.run(name, decode="json", evolve=evolve)
    assert summary.facts["unknown_fields"] == {"rows": 3, "names": ["value.deep"]}
    assert places(lake.rows(), lake.dead()) == {(name, 0, n): 1 for n in range(len(values))}
    assert [row["value"] for row in lake.rows()] == [{"id": n} for n in (1, 2, 2, 2, 3)]
    errors = {row["offset"]: row["error"][:25] for row in lake.dead()}
    assert errors == {4: "not valid JSON", 5: "does not fit the schema: "}


@pytest.mark.long
@pytest.mark.parametrize("depth", [DEEPEST + 1, 48, 1000])
def test_a_schema_that_is_given_may_not_be_deeper(
    broker: Server, topic: Create, depth: int
) -> None:
    given = "a " + "STRUCT<a: " * (depth - 1) + "INT" + ">" * (depth - 1)
    words = ("--table", "/nowhere", "--decode", "json", "--schema", given)
    for more in ([], ["--dry-run"]):
        done = penstock_command(
            *("pipeline", "lake", topic("deep"), "--bootstrap", broker.bootstrap, *words, *more)
        )
        assert (done.status, done.out) == (2, "")
        assert f": {depth} structs, arrays and maps in each other; the limit is 30: " in done.err
        assert done.err.count("\n") == 1


@pytest.mark.long
def test_a_schema_that_is_just_deep_enough_can_be_given(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("deep", retention_ms=-1)
    produce(broker, name, [Sent(b"k", deep(DEEPEST)), Sent(b"k", b'{"id": 3}')])
    inner = "STRUCT<a: " * (DEEPEST - 2) + "BIGINT" + ">" * (DEEPEST - 2)
    lake.run(name, decode="json", schema=f"id BIGINT, deep STRUCT<a: {inner}>")
    assert lake.rows()[0]["value"] == json.loads(deep(DEEPEST))


def test_what_is_just_deep_enough_becomes_columns(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("deep", retention_ms=-1)
    produce(broker, name, [Sent(b"k", deep(DEEPEST)), Sent(b"k", b'{"id": 3}')])
    summary = lake.run(name, decode="json")
    assert summary.facts["unknown_fields"] == {"rows": 0, "names": []}
    assert lake.rows()[0]["value"] == json.loads(deep(DEEPEST))
