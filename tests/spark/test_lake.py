"""`lake` writes every record of a topic to a table, once, and goes on where it was."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, numbered, produce, transactions
from tests.support.command import penstock_command
from tests.support.server import Server

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


def test_raw_records_are_in_the_table_as_they_are_in_the_topic(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("lake", partitions=2, retention_ms=-1)
    sent = produce(
        broker,
        name,
        [
            *numbered(50, partitions=2),
            Sent(None, b"\x00\xff", 0, 1_700_000_000_000 + DAY_MS, (("h", b"1"), ("h", None))),
            Sent(b"k", None, 1),
        ],
    )
    summary = lake.run(name)
    rows = lake.rows()
    assert places(rows) == {(name, partition, offset): 1 for partition, offset in sent}
    for row in rows:
        message = sent[row["partition"], row["offset"]]
        assert (row["key"], row["value"]) == (message.key, message.value)
        assert int(row["timestamp"].timestamp() * 1000) == message.timestamp_ms
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
        assert headers == list(message.headers)
    assert {row["date"] for row in rows} == {"2023-11-14", "2023-11-15"}
    assert summary.facts["rows"] == 52
    assert summary.facts["dead_letters"] == 0
    assert not lake.dead_letters.exists()


@pytest.mark.long
def test_the_next_run_takes_only_what_is_new(lake: Lake, broker: Server, topic: Create) -> None:
    name = topic("lake", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(20, partitions=2))
    assert lake.run(name, batch_records=7, partition_by="none").facts["rows"] == 20
    assert lake.run(name, batch_records=7, partition_by="none").facts["rows"] == 0
    produce(broker, name, numbered(10, partitions=2))
    summary = lake.run(name, batch_records=7, partition_by="none")
    assert summary.facts["rows"] == 10
    assert places(lake.rows()) == {(name, p, o): 1 for p in range(2) for o in range(15)}
    assert summary.facts["covered"][0] == {
        "topic": name,
        "partition": 0,
        "first": 0,
        "last": 14,
        "records": 15,
    }


def test_a_lost_checkpoint_loses_and_doubles_nothing(
    lake: Lake, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("lake", retention_ms=-1)
    produce(broker, name, numbered(10))
    lake.run(name, checkpoint=str(tmp_path / "one"))
    produce(broker, name, numbered(10))
    assert lake.run(name, checkpoint=str(tmp_path / "two")).facts["rows"] == 10
    assert places(lake.rows()) == {(name, 0, offset): 1 for offset in range(20)}
    produce(broker, name, numbered(5))
    with pytest.raises(JobError, match="delete that checkpoint"):
        lake.run(name, checkpoint=str(tmp_path / "one"))
    assert places(lake.rows()) == {(name, 0, offset): 1 for offset in range(20)}


JSON_VALUES = [
    b'{"id": 1, "price": 2.5, "who": {"name": "a"}}',
    b'{"id": "one"}',
    b"{oops",
    b'{"id": 2} {"id": 3}',
    b'{"id": 3, "who": {"name": "\xff"}}',
    b"[1]",
    b"",
    None,
    b'{"id": 4, "unknown": true}',
]
GOOD = {0, 7, 8}


@pytest.mark.long
@pytest.mark.parametrize("schema", [None, "id BIGINT, price DOUBLE, who STRUCT<name: STRING>"])
def test_json_is_decoded_and_what_is_not_json_is_kept_apart(
    lake: Lake, broker: Server, topic: Create, schema: str | None
) -> None:
    name = topic("json", retention_ms=-1)
    good = JSON_VALUES if schema else [JSON_VALUES[n] for n in sorted(GOOD)]
    produce(broker, name, [Sent(b"k%d" % n, v) for n, v in enumerate(good)])
    summary = lake.run(name, decode="json", schema=schema)
    assert places(lake.rows(), lake.dead()) == {(name, 0, n): 1 for n in range(len(good))}
    rows = {row["key"]: row["value"] for row in lake.rows()}
    first = rows[b"k0"]
    assert (first["id"], first["price"], first["who"]) == (1, 2.5, {"name": "a"})
    if schema is None:
        assert rows[b"k2"]["unknown"] is True
        return
    dead = {row["offset"]: row for row in lake.dead()}
    assert set(dead) == set(range(len(good))) - GOOD
    assert summary.facts["dead_letters"] == len(dead)
    for offset, row in dead.items():
        assert row["value"] == JSON_VALUES[offset]
        assert row["key"] == b"k%d" % offset
    assert dead[1]["error"] == "does not fit the schema: OBJECT<id: STRING>"
    assert dead[2]["error"] == "not valid JSON"
    assert dead[3]["error"] == "not valid JSON"
    assert dead[4]["error"] == "not valid UTF-8"
    assert dead[5]["error"] == "not one JSON object"
    assert dead[6]["error"] == "it is empty"


@pytest.mark.long
def test_a_schema_grows_only_when_asked(lake: Lake, broker: Server, topic: Create) -> None:
    name = topic("json", retention_ms=-1)
    produce(broker, name, [Sent(b"0", b'{"id": 1}')])
    lake.run(name, decode="json", schema="id BIGINT")
    produce(broker, name, [Sent(b"1", b'{"id": 2, "more": {"x": 1.5}}')])
    with pytest.raises(JobError, match=r"value\.more.*--evolve"):
        lake.run(name, decode="json", schema="id BIGINT, more STRUCT<x: DOUBLE>")
    with pytest.raises(JobError, match=r"value\.id as bigint.*string"):
        lake.run(name, decode="json", schema="id STRING", evolve=True)
    lake.run(name, decode="json", evolve=True)
    rows = {row["key"]: row["value"] for row in lake.rows()}
    assert rows == {b"0": {"id": 1}, b"1": {"id": 2, "more": {"x": 1.5}}}
    merged = lake.spark.read.option("mergeSchema", True).parquet(str(lake.table))
    assert {row["x"] for row in merged.select("value.more.x").collect()} == {None, 1.5}


@pytest.mark.long
def test_the_progress_is_a_group_and_the_state_is_readable(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("lake", retention_ms=-1)
    produce(broker, name, numbered(5))
    summary = lake.run(name)
    (path,) = lake.table.glob("_penstock/*/manifests/*.json")
    manifest = json.loads(path.read_text())
    assert manifest["covered"] == {name: {"0": [0, 4, 5]}}
    assert [file["rows"] for file in manifest["files"]] == [5]
    assert summary.facts["group"] == f"penstock-lake-{manifest['job']}"


@pytest.mark.long
def test_what_retention_took_is_told_and_can_be_passed_over(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("lake", retention_ms=-1)
    produce(broker, name, numbered(10))
    lake.run(name)
    produce(broker, name, numbered(10))
    trim = ("topic", "trim", name, "--partition", 0, "--before", 15)
    assert penstock_command(*trim, "--bootstrap", broker.bootstrap).status == 0
    with pytest.raises(JobError, match=r"offsets 10 to .* give --allow-data-loss"):
        lake.run(name)
    lake.run(name, allow_data_loss=True)
    kept = [*range(10), *range(15, 20)]
    assert places(lake.rows()) == {(name, 0, offset): 1 for offset in kept}


def test_only_committed_records_of_transactions_are_taken(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("lake", retention_ms=-1)
    kept = transactions(broker, name, [True, False, True])
    lake.run(name, batch_records=4)
    assert [row["value"] for row in lake.rows()] == kept


def test_what_is_wrong_is_told_before_spark_starts(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("lake", retention_ms=-1)
    produce(broker, name, numbered(5))
    lake.run(name)
    words = ("pipeline", "lake", "--table", str(lake.table), "--bootstrap", broker.bootstrap)
    shown = penstock_command(*words, name, "--dry-run")
    assert (shown.status, shown.err) == (0, "")
    assert "0 offsets in 1 partitions, after 1 batches that are in the table" in shown.out
    for more, reason in (
        ((name, "--decode", "json"), "decode 'raw' instead of 'json'"),
        (("nope",), "topic 'nope' does not exist"),
    ):
        refused = penstock_command(*words, *more)
        assert (refused.status, refused.out) == (1, "")
        assert reason in refused.err
        assert refused.err.count("\n") == 1
    assert penstock_command(*words, name, "--schema", "a INT").status == 2
