"""`transform` in one session: SQL, Python functions, where rows go, and what it says when it cannot."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.job import Summary, explained
from penstock.spark.jobs import transform
from penstock.spark.progress import Progress
from tests.spark.topics import Create, Sent, numbered, produce
from tests.spark.transforms import assert_placed_as_java_does, by_key, read_committed
from tests.support.server import Server

pytestmark = pytest.mark.spark

UPPER = """
from pyspark.sql import functions as F

def shout(records):
    return records.select("key", F.upper("value_text").alias("value"))

def each(records):
    def rows(batches):
        for batch in batches:
            yield batch.filter([helper(value) for value in batch.column("value").to_pylist()])
    return records.select("key", "value").mapInArrow(rows, "key binary, value binary")

def helper(value):
    return value.endswith(b"0")

def broken(records):
    return 17
"""


class Transform:
    """One checkpoint, and the jobs that use it."""

    def __init__(self, spark: Any, broker: Server, home: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.home = home

    def options(self, source: str, target: str, **options: Any) -> transform.TransformOptions:
        place = options.pop("checkpoint", str(self.home / "state"))
        return transform.TransformOptions(
            bootstrap=self.broker.bootstrap,
            topics=(source,),
            to=target,
            checkpoint=place,
            **options,
        )

    def run(self, source: str, target: str, **options: Any) -> Summary:
        with explained():
            return transform.run(self.spark, self.options(source, target, **options), Progress())


@pytest.fixture
def job(spark: Any, broker: Server, tmp_path: Path) -> Transform:
    return Transform(spark, broker, tmp_path)


def test_sql_makes_rows_of_records_in_their_order(job: Transform, topic: Create) -> None:
    forever = {"retention_ms": -1}  # the records are old
    source, target = topic("in", partitions=2, **forever), topic("out", partitions=3, **forever)
    sent = [Sent(b"k%d" % (n % 5), b"%d" % n, n % 5 % 2, 1_700_000_000_000 + n) for n in range(300)]
    produce(job.broker, source, sent)
    sql = "SELECT key, value_text || '!' AS value, timestamp FROM records WHERE value_text != '7'"
    summary = job.run(source, target, sql=sql, batch_records=120)
    assert summary.facts["records_read"] == 300
    assert summary.facts["records_written"] == 299
    assert summary.facts["batches"] == 3
    rows = read_committed(job.broker, target)
    assert by_key(rows) == {
        b"k%d" % k: [b"%d!" % n for n in range(k, 300, 5) if n != 7] for k in range(5)
    }
    assert_placed_as_java_does(rows, 3)
    assert {row.timestamp_ms - 1_700_000_000_000 for row in rows} == set(range(300)) - {7}
    again = job.run(source, target, sql=sql)
    assert again.facts["records_written"] == 0
    produce(job.broker, source, numbered(4))
    assert job.run(source, target, sql=sql).facts["records_written"] == 4
