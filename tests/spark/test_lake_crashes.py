"""`lake` is interrupted at any of its steps, in any batch, over and over in one session: each record is there once at the end."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import HadoopFiles
from penstock.spark.jobs.lake import compact
from penstock.spark.jobs.lake import job as lake_job
from penstock.spark.jobs.table import batches
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROUNDS = 8


class Crash(Exception):
    pass


class Crashes:
    """Counts steps, and raises at the one that is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.due = 0
        self.hits: list[str] = []
        for module in (batches, compact):
            monkeypatch.setattr(module, "reached", self._reached)

    def _reached(self, step: str) -> None:
        self.due -= 1
        if self.due == 0:
            self.hits.append(step)
            raise Crash(step)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="raw"),
        pytest.param(
            {"decode": "json", "schema": "n BIGINT", "compact": True},
            id="json, bad records, compaction",
            marks=pytest.mark.long,
        ),
    ],
)
@pytest.mark.parametrize(
    "through_spark",
    [
        pytest.param(False, id="local files"),
        pytest.param(True, id="Spark's files", marks=pytest.mark.long),
    ],
)
def test_interrupted_at_any_step(
    spark: Any,
    broker: Server,
    topic: Create,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    through_spark: bool,
) -> None:
    if through_spark:  # as for hdfs and s3a
        monkeypatch.setattr(lake_job, "open_files", HadoopFiles)
    lake, name, dice = (
        Lake(spark, broker, tmp_path),
        topic("crash", partitions=2, retention_ms=-1),
        random.Random(7),
    )
    crashes, count = Crashes(monkeypatch), 0
    for _ in range(ROUNDS):
        values = [b'{"n": %d}' % n if n % 4 else b"bad" for n in range(20)]
        produce(broker, name, [Sent(b"k", value, n % 2) for n, value in enumerate(values)])
        count += len(values)
        crashes.due = dice.randint(1, 20)
        with suppress(Crash, JobError):  # which of them: where the step was
            lake.run(name, batch_records=15, **options)
        found = places(lake.rows(), lake.dead())
        assert "compact" in options or max(found.values(), default=1) == 1
    crashes.due = 0
    lake.run(name, batch_records=15, **options)
    assert len(crashes.hits) > ROUNDS // 2
    expected = {(name, p, o): 1 for p in range(2) for o in range(count // 2)}
    assert places(lake.rows(), lake.dead()) == expected
    assert list(tmp_path.glob("*/_penstock/*/staging/*")) == []


@pytest.mark.long
def test_compaction_keeps_every_record_and_leaves_few_files(
    spark: Any, broker: Server, topic: Create, tmp_path: Path
) -> None:
    lake, name = Lake(spark, broker, tmp_path), topic("crash", partitions=2, retention_ms=-1)
    produce(broker, name, numbered(60, partitions=2))
    lake.run(name, batch_records=15)
    before = sorted((row["partition"], row["offset"], row["value"]) for row in lake.rows())
    summary = lake.run(name, compact_only=True)
    assert summary.facts["compacted"]["after"] == 1
    after = [(row["partition"], row["offset"], row["value"]) for row in lake.rows()]
    assert after == before  # and in order
    assert lake.run(name, compact=True).facts["compacted"] == {"before": 0, "after": 0}
    assert len(places(lake.rows())) == 60
