"""A topic that was deleted and created again is refused by whoever read the old one: its offsets begin anew."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.job import explained
from penstock.spark.jobs.lake import job as lake_job
from penstock.spark.jobs.topic_ids import FILE_NAME
from penstock.spark.jobs.transform import job as transform
from penstock.spark.jobs.transform.options import TransformOptions
from penstock.spark.progress import Progress
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, numbered, produce
from tests.spark.transforms import read_committed
from tests.support.server import Server, until

pytestmark = pytest.mark.spark


def create_again(broker: Server, name: str) -> None:
    broker.delete_topic(name)
    until(lambda: name not in broker.topics(), f"{name} is gone")
    broker.create_topic(name, retention_ms=-1)


def test_the_lake_does_not_skip_the_beginning_of_a_topic_that_is_new(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("again", retention_ms=-1)
    produce(broker, name, numbered(5))
    lake.run(name)
    create_again(broker, name)
    produce(broker, name, numbered(8))
    with pytest.raises(JobError, match=rf"'{name}' was deleted and created again.*another --table"):
        lake.run(name)
    with pytest.raises(JobError, match="was deleted and created again"):
        lake_job.plan(lake.options(name))
    assert places(lake.rows()) == {(name, 0, offset): 1 for offset in range(5)}


@pytest.mark.long
def test_a_table_without_ids_goes_on(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("again", retention_ms=-1)
    produce(broker, name, numbered(5))
    lake.run(name)
    (kept,) = lake.table.glob(f"_penstock/*/{FILE_NAME}")
    kept.unlink()
    produce(broker, name, numbered(2))
    assert lake.run(name).facts["rows"] == 2
    assert kept.exists()


@pytest.mark.long
def test_a_transform_does_not_skip_the_beginning_of_a_topic_that_is_new(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    source, target = topic("again", retention_ms=-1), topic("out", retention_ms=-1)

    def options(name: str) -> TransformOptions:
        return TransformOptions(
            bootstrap=broker.bootstrap,
            topics=(source,),
            to=target,
            checkpoint=str(tmp_path / name),
            name=f"{source}-{name}",
            sql="SELECT key, value FROM records",
        )

    def run(name: str) -> int:
        with explained():
            done = transform.run(spark, options(name), Progress())
        return int(done.facts["records_written"])

    produce(broker, source, numbered(5))
    assert run("one") == 5
    create_again(broker, source)
    produce(broker, source, numbered(8))
    with pytest.raises(JobError, match=r"created again.*another --checkpoint and --name"):
        run("one")
    with pytest.raises(JobError, match="was deleted and created again"):
        transform.plan(options("one"))
    assert len(read_committed(broker, target)) == 5
    assert run("two") == 8
