"""`replay` writes a stretch of topics once more, exactly once for each id, into a topic or a table."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.client.errors import ClientError
from penstock.spark.errors import JobError
from penstock.spark.job import Summary, explained
from penstock.spark.jobs.lake.job import plan as lake_plan
from penstock.spark.jobs.replay import job as replay
from penstock.spark.jobs.replay.options import ReplayOptions
from penstock.spark.progress import Progress
from tests.spark.lakes import Lake, places, read
from tests.spark.topics import STAYS_OPEN, Create, Sent, numbered, produce
from tests.spark.transforms import read_committed
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

FIRST_MS = 1_700_000_000_000


class Replay:
    def __init__(self, spark: Any, broker: Server) -> None:
        self.spark = spark
        self.broker = broker

    def options(self, *topics: str, **options: Any) -> ReplayOptions:
        return ReplayOptions(bootstrap=self.broker.bootstrap, topics=topics, **options)

    def run(self, *topics: str, **options: Any) -> Summary:
        with explained():
            return replay.run(self.spark, self.options(*topics, **options), Progress())


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
    assert (facts["records"], facts["batches"], facts["offsets_done_before"]) == (40, 4, 0)
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
    assert (again["records"], again["offsets_done_before"]) == (0, 50)
    assert len(read_committed(job.broker, target)) == 40
    with pytest.raises(JobError, match="begun with other topics, another target"):
        job.run(source, **{**wanted, "where": "key IS NULL"})


@pytest.mark.long
def test_records_of_a_stretch_of_time_are_all_found_in_whatever_order_they_lie(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    source, target = topic("in", retention_ms=-1), topic("again", retention_ms=-1)
    minutes, minute_ms = (-5, 0, 10, 70, 20, -1, 30, 60, 80, 40), 60_000
    produce(
        job.broker,
        source,
        [Sent(b"k", b"%d" % n, timestamp_ms=FIRST_MS + n * minute_ms) for n in minutes],
    )
    hour = {"since": FIRST_MS, "until": FIRST_MS + 60 * minute_ms}
    plan = replay.plan(job.options(source, to=target, id=f"id-{target}", **hour))
    assert plan.facts["offsets"] == 9, "all but the one before the first of that hour"
    assert "up to 9 offsets in 1 partitions" in plan.lines[0]
    facts = job.run(source, to=target, id=f"id-{target}", batch_records=4, **hour).facts
    assert (facts["records"], facts["offsets"]) == (5, 9)
    wanted = [b"0", b"10", b"20", b"30", b"40"]
    assert [row.value for row in read_committed(job.broker, target)] == wanted
    table = tmp_path / "table"
    for times in (hour, {"since": FIRST_MS + 30 * minute_ms}):  # only the first run's count
        job.run(source, table=str(table), id="hour", batch_records=4, **times)
    assert sorted(row["value"] for row in read(table)) == wanted


@pytest.mark.long
def test_what_follows_an_open_transaction_is_left_out_and_not_waited_for(
    job: Replay, topic: Create
) -> None:
    source, target = topic("in", retention_ms=-1), topic("again", retention_ms=-1)
    options = {"to": target, "id": f"id-{target}"}
    produce(job.broker, source, numbered(5))
    with open_transaction(job.broker, source):
        produce(job.broker, source, numbered(3, start=5))
        assert replay.plan(job.options(source, **options)).facts["offsets"] == 5
        uncommitted = job.options(source, read_uncommitted=True, **options)
        assert replay.plan(uncommitted).facts["offsets"] == 9
        assert job.run(source, **options).facts["records"] == 5
    assert job.run(source, **options).facts["records"] == 0, "the first run has decided"


@contextmanager
def open_transaction(broker: Server, topic: str) -> Iterator[None]:
    """With one record."""
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": f"open-{topic}"}
    producer = confluent_kafka.Producer({**settings, **STAYS_OPEN})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"not yet", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    try:
        yield
    finally:
        producer.abort_transaction(PATIENCE_S)


@pytest.mark.long
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


@pytest.mark.long
def test_several_pieces_of_one_partition_all_arrive_in_their_order(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    source, target = topic("in", retention_ms=-1), topic("again", retention_ms=-1)
    produce(job.broker, source, numbered(100))
    options = {"offsets": (f"{source}:0:50-60", f"{source}:0:0-10", f"{source}:0:5-12")}
    plan = replay.plan(job.options(source, to=target, id=f"id-{target}", **options))
    assert plan.facts["offsets"] == 22
    wanted = [*range(12), *range(50, 60)]
    facts = job.run(source, to=target, id=f"id-{target}", batch_records=8, **options).facts
    assert (facts["records"], facts["batches"]) == (22, 4)
    assert [(one["first"], one["after"]) for one in facts["ranges"]] == [(0, 12), (50, 60)]
    assert [row.value for row in read_committed(job.broker, target)] == [
        b"value %d" % n for n in wanted
    ]
    again = job.run(source, to=target, id=f"id-{target}", **options).facts
    assert (again["records"], again["offsets_done_before"]) == (0, 22)
    table = tmp_path / "table"
    for records, before in ((22, 0), (0, 22)):
        facts = job.run(source, table=str(table), id="one", batch_records=8, **options).facts
        assert (facts["records"], facts["offsets_done_before"]) == (records, before)
    assert places(read(table)) == {(source, 0, n): 1 for n in wanted}


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


@pytest.mark.long
def test_topic_that_was_deleted_between_two_runs_stops_the_replay(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    kept, gone = topic("kept", retention_ms=-1), topic("gone", retention_ms=-1)
    to_topic = {"to": topic("again", retention_ms=-1), "id": gone}
    to_table = {"table": str(tmp_path / "table"), "id": gone}
    for name in (kept, gone):
        produce(job.broker, name, numbered(5))
    for how in (to_topic, to_table):
        assert job.run(kept, gone, **how).facts["records"] == 10
    job.broker.delete_topic(gone)
    for how in (to_topic, to_table):
        with pytest.raises(ClientError, match=f"{gone}.* does not exist"):
            job.run(kept, gone, **how)
    job.broker.create_topic(gone, retention_ms=-1)
    produce(job.broker, gone, numbered(5))
    for how, said in (
        (to_topic, f"the replay has 2: '{gone}' was deleted since the replay began"),
        (to_table, f"topic '{gone}' was deleted and created again since this replay began"),
    ):
        with pytest.raises(JobError, match=said):
            job.run(kept, gone, **how)


@pytest.mark.long
def test_the_table_of_a_lake_job_is_refused_and_stays_as_it_was(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    source = topic("in", retention_ms=-1)
    produce(job.broker, source, numbered(20))
    lake = Lake(job.spark, job.broker, tmp_path)
    lake.run(source, name="nightly")
    options = {"table": str(lake.table), "id": "one", "offsets": (f"{source}:0:0-10",)}
    refused = "is the table of lake job nightly.* give another --table"
    with pytest.raises(JobError, match=refused):
        job.run(source, **options)
    with pytest.raises(JobError, match=refused):
        replay.plan(job.options(source, **options))
    assert places(lake.rows()) == {(source, 0, n): 1 for n in range(20)}
    assert not (lake.table / "_penstock" / "replay-one").exists()


@pytest.mark.long
def test_a_lake_job_is_refused_the_table_of_a_replay(
    job: Replay, topic: Create, tmp_path: Path
) -> None:
    source = topic("in", retention_ms=-1)
    produce(job.broker, source, numbered(5))
    lake = Lake(job.spark, job.broker, tmp_path)
    job.run(source, table=str(lake.table), id="one")
    refused = "is the table of replay 'one'.* give another --table"
    with pytest.raises(JobError, match=refused):
        lake.run(source)
    with pytest.raises(JobError, match=refused):
        lake_plan(lake.options(source))
    assert places(lake.rows()) == {(source, 0, n): 1 for n in range(5)}
    assert job.run(source, table=str(lake.table), id="two").facts["records"] == 5


@pytest.mark.long
def test_nothing_to_replay_is_no_error_and_a_plan_says_so(job: Replay, topic: Create) -> None:
    source, target = topic("in", retention_ms=-1), topic("again", retention_ms=-1)
    options = {"to": target, "id": f"id-{target}"}
    assert replay.plan(job.options(source, **options)).facts["offsets"] == 0
    assert job.run(source, **options).facts["records"] == 0
