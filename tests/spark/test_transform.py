"""`transform` in one session: SQL, Python functions, where rows go, and what it says when it cannot."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.job import Summary, explained
from penstock.spark.jobs.transform import job as transform
from penstock.spark.jobs.transform.options import TransformOptions
from penstock.spark.progress import Progress
from tests.spark.topics import Create, Sent, numbered, produce
from tests.spark.transforms import assert_placed_as_java_does, by_key, read_committed, write_file
from tests.support.server import Server

pytestmark = pytest.mark.spark

FUNCTIONS = """
from pyspark.sql import functions as F

def tens(records):
    return records.select("key", "value").where(F.udf(is_ten, "boolean")("value"))

def is_ten(value):
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

    def options(self, source: str, target: str, **options: Any) -> TransformOptions:
        place = options.pop("checkpoint", str(self.home / "state"))
        return TransformOptions(
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


def test_a_python_function_of_a_file_runs_also_in_workers(
    job: Transform, topic: Create, tmp_path: Path
) -> None:
    source, target = topic("in", retention_ms=-1), topic("out", partitions=2, retention_ms=-1)
    produce(job.broker, source, numbered(40))
    function = write_file(tmp_path, "own.py", FUNCTIONS) + ":tens"
    assert job.run(source, target, function=function).facts["records_written"] == 4
    values = [row.value for row in read_committed(job.broker, target)]
    assert sorted(v for v in values if v) == [b"value %d" % n for n in (0, 10, 20, 30)]


@pytest.mark.long
def test_without_its_checkpoint_the_job_goes_on_where_its_group_is(
    job: Transform, topic: Create, tmp_path: Path
) -> None:
    source, target = topic("in", retention_ms=-1), topic("out", retention_ms=-1)
    produce(job.broker, source, numbered(10))
    job.run(source, target, sql="SELECT key, value FROM records")
    produce(job.broker, source, numbered(5, start=10))
    moved = str(tmp_path / "another")
    again = job.run(source, target, sql="SELECT key, value FROM records", checkpoint=moved)
    assert again.facts["records_written"] == 5
    values = [row.value for row in read_committed(job.broker, target)]
    assert values == [b"value %d" % n for n in range(15)]
    produce(job.broker, source, numbered(1, start=15))
    with pytest.raises(JobError, match="another checkpoint was used; delete the checkpoint"):
        job.run(source, target, sql="SELECT key, value FROM records")
    assert len(read_committed(job.broker, target)) == 15


@pytest.mark.long
@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"sql": "SELECT key FROM records"}, "no column named value"),
        ({"sql": "SELECT 1 AS value FROM records"}, "column value is int"),
        ({"sql": "SELECT valu FROM records"}, "the transformation fails: .*valu"),
        ({"function": "broken"}, "gave a int instead of a DataFrame"),
        ({"function": "missing"}, "has no function 'missing'"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_read(
    job: Transform, topic: Create, tmp_path: Path, query: dict[str, str], said: str
) -> None:
    source, target = topic("in", retention_ms=-1), topic("out", retention_ms=-1)
    file = write_file(tmp_path, "own.py", FUNCTIONS)
    given = {name: f"{file}:{text}" if name == "function" else text for name, text in query.items()}
    with pytest.raises(JobError, match=said):
        job.run(source, target, **given)
    assert not (tmp_path / "state").exists(), "the checkpoint is free for whoever comes"


@pytest.mark.long
def test_at_least_once_uses_the_plain_sink(job: Transform, topic: Create) -> None:
    source, target = topic("in", retention_ms=-1), topic("out", partitions=2, retention_ms=-1)
    produce(job.broker, source, numbered(20))
    facts = job.run(source, target, sql="SELECT key, value FROM records", at_least_once=True).facts
    assert (facts["records_written"], facts["exactly_once"]) == (20, False)
    assert len(read_committed(job.broker, target)) == 20


def test_a_plan_needs_no_spark(job: Transform, topic: Create) -> None:
    source, target = (
        topic("in", partitions=2, retention_ms=-1),
        topic("out", partitions=3, retention_ms=-1),
    )
    produce(job.broker, source, numbered(6, 2))
    made = transform.plan(job.options(source, target, sql="SELECT value FROM records"))
    assert (made.facts["offsets"], made.facts["to_partitions"]) == (6, 3)
    assert made.facts["continues"] is False
