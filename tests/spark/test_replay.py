"""`replay` writes a stretch of topics once more, exactly once for each id, into a topic or a table."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.job import Summary, explained
from penstock.spark.jobs import replay
from penstock.spark.progress import Progress
from tests.spark.lakes import places, read
from tests.spark.topics import Create, Sent, numbered, produce
from tests.spark.transforms import read_committed
from tests.support.server import Server

pytestmark = pytest.mark.spark

FIRST_MS = 1_700_000_000_000


class Replay:
    def __init__(self, spark: Any, broker: Server) -> None:
        self.spark = spark
        self.broker = broker

    def options(self, topic: str, **options: Any) -> replay.ReplayOptions:
        return replay.ReplayOptions(bootstrap=self.broker.bootstrap, topics=(topic,), **options)

    def run(self, topic: str, **options: Any) -> Summary:
        with explained():
            return replay.run(self.spark, self.options(topic, **options), Progress())


@pytest.fixture
def job(spark: Any, broker: Server) -> Replay:
    return Replay(spark, broker)


def test_a_stretch_of_time_arrives_once_as_it_was_with_its_coordinates(
    job: Replay, topic: Create
) -> None:
    source, target = (
        topic("in", partitions=2, retention_ms=-1),
        topic("again", partitions=2, retention_ms=-1),
    )
    sent = [
        Sent(None if n % 3 else b"k", b"%d" % n, n % 2, FIRST_MS + n, (("own", b"%d" % n),))
        for n in range(60)
    ]
    produce(job.broker, source, sent)
    wanted = {"since": FIRST_MS + 10, "until": FIRST_MS + 50, "to": target, "id": f"id-{target}"}
    facts = job.run(source, batch_records=15, **wanted).facts
    assert (facts["records"], facts["batches"], facts["offsets_done_before"]) == (40, 3, 0)
    rows = read_committed(job.broker, target)
    assert [(row.partition, row.key, row.value, row.timestamp_ms) for row in rows] == [
        (partition, sent[n].key, b"%d" % n, FIRST_MS + n)
        for partition in range(2)
        for n in range(10 + partition, 50, 2)
    ]
    assert rows[0].headers == [
        ("own", b"10"),
        ("penstock-replay-id", f"id-{target}".encode()),
        ("penstock-replay-topic", source.encode()),
        ("penstock-replay-partition", b"0"),
        ("penstock-replay-offset", b"5"),
    ]
    produce(job.broker, source, numbered(4, 2))
    again = job.run(source, **{**wanted, "until": None}).facts
    assert (again["records"], again["offsets_done_before"]) == (0, 40)
    assert len(read_committed(job.broker, target)) == 40
    with pytest.raises(JobError, match="begun with other topics, another target"):
        job.run(source, **{**wanted, "where": "key IS NULL"})


def test_pieces_by_offset_of_records_that_are_wanted(job: Replay, topic: Create) -> None:
    source, target = (
        topic("in", partitions=2, retention_ms=-1),
        topic("again", partitions=3, retention_ms=-1),
    )
    produce(job.broker, source, numbered(40, 2))
    options = {"offsets": (f"{source}:1:5-10",), "where": "offset % 2 = 0", "id": f"id-{target}"}
    assert job.run(source, to=target, **options).facts["records"] == 2
    values = [row.value for row in read_committed(job.broker, target)]
    assert sorted(v for v in values if v) == [b"value 13", b"value 17"]


def test_a_table_has_each_record_once_however_often_it_is_replayed(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    source, table = topic("in", partitions=2, retention_ms=-1), tmp_path / "table"
    produce(job.broker, source, numbered(50, 2))
    options = {"table": str(table), "id": "one", "batch_records": 20}
    facts = job.run(source, since=FIRST_MS + 10, **options).facts
    assert (facts["records"], facts["batches"]) == (40, 2)
    produce(job.broker, source, numbered(4, 2, start=50))
    again = job.run(source, since=FIRST_MS + 20, **options).facts
    assert (again["records"], again["offsets_done_before"]) == (0, 40)
    rows = read(table)
    assert places(rows) == {(source, p, o): 1 for p in range(2) for o in range(5, 25)}
    assert {row["value"] for row in rows} == {b"value %d" % n for n in range(10, 50)}
    with pytest.raises(JobError, match="begun with other topics"):
        job.run(source, where="offset > 3", **options)


def test_nothing_to_replay_is_no_error_and_a_plan_says_so(job: Replay, topic: Create) -> None:
    source, target = topic("in", retention_ms=-1), topic("again", retention_ms=-1)
    options = {"to": target, "id": f"id-{target}"}
    assert replay.plan(job.options(source, **options)).facts["offsets"] == 0
    assert job.run(source, **options).facts["records"] == 0
