"""`lake` reads Avro, and writes Delta and Iceberg tables, exactly once too."""

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake import job as lake_job
from penstock.spark.jobs.replay import table as replay_table
from penstock.spark.jobs.table import batches
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.server import Server

pytestmark = pytest.mark.spark

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    ],
}


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


@pytest.mark.long
def test_avro_is_decoded_and_what_is_not_is_kept_apart(
    lake: Lake, broker: Server, topic: Create, tmp_path: Path
) -> None:
    fastavro = pytest.importorskip("fastavro")
    path, name = tmp_path / "order.avsc", topic("avro", retention_ms=-1)
    path.write_text(json.dumps(SCHEMA))
    values = []
    for number in range(3):
        stream = io.BytesIO(b"\x00\x00\x00\x00\x09")
        stream.seek(5)
        value = {"id": number, "tags": ["a", "b"], "at": 1_700_000_000_000}
        fastavro.schemaless_writer(stream, fastavro.parse_schema(SCHEMA), value)
        values.append(stream.getvalue())
    produce(broker, name, [Sent(b"k", v) for v in [*values, b"not avro", None]])
    lake.run(name, decode="avro", schema=str(path))
    rows = {row["offset"]: row["value"] for row in lake.rows()}
    assert sorted(rows) == [0, 1, 2, 4]
    assert (rows[1]["id"], rows[1]["tags"]) == (1, ["a", "b"])
    assert rows[1]["at"].timestamp() == 1_700_000_000
    assert rows[4] is None
    (dead,) = lake.dead()
    assert (dead["offset"], dead["value"]) == (3, b"not avro")
    assert "--avro-framing none" in dead["error"]


def _crash_once(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The first time that it is reached."""
    left = [step]

    def reached(name: str) -> None:
        if name in left:
            left.remove(name)
            raise RuntimeError(f"killed at {name}")

    monkeypatch.setattr(batches, "reached", reached)


STEPS = ("lake:manifest", "lake:renamed", "lake:table")
DATES = {  # of folders, by times that producers may give
    1_700_000_000_000: "2023-11-14",
    -70_000_000_000_000: "0001-01-01",
    -62_135_596_800_001: "0001-01-01",
    -62_135_596_800_000: "0001-01-01",
    253_402_300_799_999: "9999-12-31",
    253_402_300_800_000: "9999-12-31",
    9_000_000_000_000_000: "9999-12-31",
}
ANY_TIME = {"retention_ms": -1, "message_timestamp_after_max_ms": 1 << 62}


def produce_strange_times(broker: Server, topic: str) -> None:
    """Records with times that no date can say, in one batch behind one with a usual time."""
    sent = [Sent(b"k", b"v", timestamp_ms=at) for at in DATES]
    produce(broker, topic, sent, linger_ms=500)


@pytest.mark.long
def test_date_of_a_folder_is_one_that_readers_know(spark: Any) -> None:
    rows = spark.createDataFrame([(at,) for at in [*DATES, None]], "at bigint")
    timed = rows.selectExpr("at", "timestamp_millis(at) as timestamp", "'t' as topic")
    lake_rows = lake_job.place(timed, ("topic", "date"))
    replay_rows = replay_table._by_day(timed, ("topic", "date"))
    for placed in (lake_rows, replay_rows):
        found = [(row["at"], row["date"]) for row in placed.select("at", "date").collect()]
        assert found == [*DATES.items(), (None, None)]


def test_a_delta_table_has_every_record_once(
    lake: Lake, broker: Server, topic: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltalake = pytest.importorskip("deltalake")
    name = topic("delta", partitions=2, **ANY_TIME)
    for step in STEPS:
        produce(broker, name, numbered(20, partitions=2))
        _crash_once(monkeypatch, step)
        with pytest.raises((JobError, RuntimeError), match="killed at"):
            lake.run(name, format="delta")
    produce_strange_times(broker, name)
    expected = Counter((name, p, o) for p in range(2) for o in range(30))
    expected += Counter((name, 0, 30 + n) for n in range(len(DATES)))
    assert lake.run(name, format="delta").facts["format"] == "delta"
    table = deltalake.DeltaTable(str(lake.table))
    assert table.metadata().partition_columns == ["topic", "date"]
    rows = table.to_pyarrow_table(columns=["topic", "partition", "offset", "date"]).to_pylist()
    assert places(rows) == expected
    strange = {row["offset"]: str(row["date"]) for row in rows if row["offset"] >= 30}
    assert strange == dict(enumerate(DATES.values(), 30))
    compacted = lake.run(name, format="delta", compact_only=True).facts["compacted"]
    assert compacted["after"] < compacted["before"]
    table = deltalake.DeltaTable(str(lake.table))
    rows = table.to_pyarrow_table(columns=["topic", "partition", "offset"]).to_pylist()
    assert places(rows) == expected


@pytest.mark.long
def test_an_iceberg_table_has_every_record_once(
    lake: Lake, broker: Server, topic: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyiceberg")
    pytest.importorskip("sqlalchemy")
    from pyiceberg.catalog import load_catalog

    name = topic("iceberg", partitions=2, **ANY_TIME)
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    how = {
        "format": "iceberg",
        "iceberg_table": "shop.orders",
        "catalog": "test",
        "catalog_property": tuple(properties.items()),
    }
    for step in STEPS:
        produce(broker, name, numbered(20, partitions=2))
        _crash_once(monkeypatch, step)
        with pytest.raises((JobError, RuntimeError), match="killed at"):
            lake.run(name, **how)
    produce_strange_times(broker, name)
    lake.run(name, **how)
    table = load_catalog("test", **properties).load_table("shop.orders")
    assert not [key for key in table.properties if key.startswith("write.metadata.metrics")]
    rows = table.scan(selected_fields=("topic", "partition", "offset")).to_arrow().to_pylist()
    expected = Counter((name, p, o) for p in range(2) for o in range(30))
    assert places(rows) == expected + Counter((name, 0, 30 + n) for n in range(len(DATES)))
    some = table.scan(row_filter="offset >= 30").to_arrow()
    assert sorted(some.column("offset").to_pylist()) == list(range(30, 30 + len(DATES)))
