"""`mirror` between two real clusters: logs, settings and groups are the same at both ends, and nothing goes round."""

from collections.abc import Iterator
from io import StringIO
from random import Random
from typing import Any

import confluent_kafka
import pytest

from penstock.client.errors import ClientError
from penstock.spark.errors import JobError
from penstock.spark.job import Summary, run_job
from penstock.spark.jobs.mirror.beats import PREFIX
from penstock.spark.jobs.mirror.job import JOB
from penstock.spark.jobs.mirror.options import MirrorOptions
from penstock.spark.progress import Progress
from tests.spark.mirrors import (
    change_settings,
    commit,
    committed,
    grow,
    mirror,
    settings,
    stored,
    two_clusters,
)
from tests.spark.topics import numbered, produce
from tests.support.mirrors import committed_rows, write_transactions
from tests.support.server import PATIENCE_S, Server, until

pytestmark = pytest.mark.spark

Both = tuple[Server, Server]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with two_clusters(tmp_path_factory.mktemp("mirror")) as servers:
        yield servers


def test_a_mirror_is_its_source_offset_by_offset(spark: Any, both: Both) -> None:
    """Compressed batches, transactions that were committed, aborted and left open, and what comes later."""
    east, west = both
    east.create_topic("orders", partitions=2, retention_ms=777_000_000_000)
    east.create_topic("money")
    produce(east, "orders", numbered(300, 2), compression_type="zstd")
    mirror(spark, east, west, "orders")  # one of the two is there already when both are copied
    left_open = write_transactions(east, "money", Random(6), 15)
    commit(east, "readers", "orders", 17, 23)

    first = mirror(spark, east, west, "orders", "money")
    assert first.facts["topics"] == {"money": "money", "orders": "orders"}
    assert first.facts["behind"]["records"] == 0
    assert first.facts["groups"]["written"] == ["readers"]
    produce(east, "orders", numbered(100, 2, start=300))
    left_open.end(committed=True)
    left_open.disconnect()
    status = mirror(spark, east, west, "status", "orders")
    assert status.facts["mirrors"][0]["behind"]["records"] == 100
    second = mirror(spark, east, west, "orders", "money")

    assert second.facts["records"] > 100
    assert second.facts["groups"] == {"written": [], "same": 1, "active": []}
    for topic, partitions in (("orders", 2), ("money", 1)):
        for index in range(partitions):
            assert stored(west, topic, index) == stored(east, topic, index) != []
    rows = committed_rows(west.bootstrap, "money")
    assert rows == committed_rows(east.bootstrap, "money")
    assert rows[-1].value == b"never", "its transaction ended after all"
    assert committed(west, "readers", "orders", 2) == [(17, "at 17"), (23, "at 23")]
    assert mirror(spark, east, west, "orders", "money").facts["records"] == 0
    with pytest.raises(JobError, match="the same cluster"):
        mirror(spark, east, east, "orders")


@pytest.mark.long
def test_settings_and_partitions_are_kept_in_step(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("growing", retention_ms=1_000_000, min_insync_replicas=1)
    mirror(spark, east, west, "growing")
    made = settings(west, "growing")
    assert made.pop("penstock.mirror.source").endswith(":growing")  # type: ignore[union-attr]  # it is set
    assert made == settings(east, "growing")

    grow(east, "growing", 3)
    change_settings(east, "growing", {"cleanup.policy": "compact"}, ["retention.ms"])
    produce(east, "growing", numbered(30, 3))
    mirror(spark, east, west, "growing")
    made = settings(west, "growing")
    del made["penstock.mirror.source"]
    assert made == settings(east, "growing")
    assert [stored(west, "growing", n) for n in range(3)] == [
        stored(east, "growing", n) for n in range(3)
    ]


@pytest.mark.long
def test_two_clusters_mirror_each_other_under_other_names(spark: Any, both: Both) -> None:
    """Each has its own topic and the other's; what came from a cluster never returns to it."""
    east, west = both
    for server in both:
        server.create_topic("clicks")
    produce(east, "clicks", numbered(20))
    produce(west, "clicks", numbered(35, start=500))
    commit(east, "watchers", "clicks", 9)
    how: dict[str, Any] = {"pattern": r"(.*\.)?clicks", "rename": "{source}.{topic}"}
    backs = []
    for _ in range(2):
        mirror(spark, east, west, source_name="east", **how)
        backs.append(mirror(spark, west, east, source_name="west", **how).facts)

    assert stored(west, "east.clicks") == stored(east, "clicks")
    assert stored(east, "west.clicks") == stored(west, "clicks")
    assert backs[1]["topics"] == {"clicks": "west.clicks"}
    assert backs[1]["skipped"] == [
        "'east.clicks' comes from the target cluster: it is not copied back"
    ]
    clicks = {name for name in [*east.topics(), *west.topics()] if "clicks" in name}
    assert clicks == {"clicks", "east.clicks", "west.clicks"}
    assert committed(west, "watchers", "east.clicks") == [(9, "at 9")]


@pytest.mark.long
def test_a_group_with_members_at_the_target_is_left_alone(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("busy")
    produce(east, "busy", numbered(10))
    mirror(spark, east, west, "busy", no_groups=True)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": west.bootstrap, "group.id": "busy-group", "log_level": 0}
    )
    consumer.subscribe(["busy"])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it is a member")
    commit(east, "busy-group", "busy", 4)
    assert mirror(spark, east, west, "busy").facts["groups"]["active"] == ["busy-group"]
    consumer.close()
    assert mirror(spark, east, west, "busy").facts["groups"]["written"] == ["busy-group"]
    assert committed(west, "busy-group", "busy") == [(4, "at 4")]


@pytest.mark.long
def test_a_promotion_says_how_many_records_the_source_has_that_were_not_mirrored(
    spark: Any, both: Both
) -> None:
    """If it can be asked; of one that does not answer, or is not the source, it is not known."""
    east, west = both
    names = ("late", "later", "latest")
    for name in names:
        east.create_topic(name)
        produce(east, name, numbered(10))
    mirror(spark, east, west, *names)
    for name in names:
        produce(east, name, numbered(1, start=10))

    promoted = mirror(spark, east, west, "promote", "late")
    (row,) = promoted.facts["topics"]
    assert (row["source_asked"], row["rpo"]["records"], row["mirrored_upto"]) == (
        True,
        1,
        {"0": 10},
    )
    assert row["rpo"]["bytes"] > 0
    assert promoted.facts["source_error"] is None
    assert promoted.lines[0].startswith("late: takes writes; 1 records, about 0.0 MB, at most ")
    assert "last heard" not in promoted.lines[0]

    promoted = promote(west, "later", source="127.0.0.1:1")
    (row,) = promoted.facts["topics"]
    assert (row["source_asked"], row["rpo"]["records"], row["rpo"]["bytes"]) == (False, None, None)
    assert row["rpo"]["seconds"] > 0, "the bound is kept at the target"
    assert promoted.facts["source_error"].startswith("cannot reach 127.0.0.1:1: ")
    assert promoted.lines[0].endswith(" behind when the source was last heard")

    promoted = promote(west, "latest", source=west.bootstrap)
    assert promoted.facts["topics"][0]["rpo"]["records"] is None


def promote(target: Server, topic: str, *, source: str) -> Summary:
    options = MirrorOptions(what=("promote", topic), target=target.bootstrap, bootstrap=source)
    return run_job(JOB, options, progress=Progress(StringIO()))


@pytest.mark.long
def test_a_promoted_topic_is_not_written_to_and_comes_back_only_when_asked(
    spark: Any, both: Both
) -> None:
    """Planned: nothing was lost, so nothing needs to be discarded. Then the roles change back."""
    east, west = both
    east.create_topic("moving")
    produce(east, "moving", numbered(40))
    mirror(spark, east, west, "moving")
    assert _refusal(west, "moving") == "POLICY_VIOLATION"
    with pytest.raises(JobError, match=r"comes from the target cluster.*promote it first"):
        mirror(spark, west, east, "failback", "moving")
    promoted = mirror(spark, east, west, "promote", "moving")
    assert promoted.facts["topics"][0]["rpo"]["records"] == 0
    assert mirror(spark, east, west, "promote", "moving").facts["topics"][0]["was_mirror"] is False
    produce(west, "moving", numbered(25, start=1000))
    with pytest.raises(JobError, match=r"'moving' of the target is no mirror.*failback"):
        mirror(spark, east, west, "moving")

    mirror(spark, west, east, "failback", "moving")
    assert stored(east, "moving") == stored(west, "moving")
    assert len(committed_rows(east.bootstrap, "moving")) == 65
    mirror(spark, west, east, "promote", "moving")
    assert _refusal(east, "moving") is None

    with pytest.raises(JobError, match="not known whether they were mirrored"):
        mirror(spark, west, east, "failback", "moving")
    mirror(spark, east, west, "failback", "moving")
    assert stored(west, "moving") == stored(east, "moving")


def test_failback_does_not_throw_records_away_unasked(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("precious")
    produce(east, "precious", numbered(10))
    mirror(spark, east, west, "precious")
    produce(east, "precious", numbered(3, start=10))
    mirror(spark, east, west, "promote", "precious")
    with pytest.raises(JobError, match=r"3 offsets that were never mirrored.*--discard"):
        mirror(spark, west, east, "failback", "precious")
    assert len(committed_rows(east.bootstrap, "precious")) == 13
    mirror(spark, west, east, "failback", "precious", discard=True)
    assert stored(east, "precious") == stored(west, "precious")


@pytest.mark.long
def test_what_cannot_be_copied_is_said_in_one_line(spark: Any, both: Both) -> None:
    east, west = both
    with pytest.raises(JobError, match="'nothing' does not exist at the source"):
        mirror(spark, east, west, "nothing")
    with pytest.raises(JobError, match="'nothing' does not exist at the target"):
        mirror(spark, east, west, "promote", "nothing")
    east.create_topic("own")
    west.create_topic("own")
    with pytest.raises(JobError, match="'own' of the target is no mirror"):
        mirror(spark, east, west, "own")
    found = mirror(spark, east, west, pattern="own|moving2")
    assert not found.passed
    assert "'own' of the target is no mirror" in found.facts["skipped"][0]
    east.create_topic("anew")
    produce(east, "anew", numbered(10))
    mirror(spark, east, west, "anew")
    east.delete_topic("anew")
    until(lambda: "anew" not in east.topics(), "it is gone")
    east.create_topic("anew")
    with pytest.raises(JobError, match="deleted and created again"):
        mirror(spark, east, west, "anew")


@pytest.mark.long
def test_a_gap_that_retention_made_is_copied_only_when_allowed(spark: Any, both: Both) -> None:
    """But a mirror that is new begins where its source does."""
    east, west = both
    east.create_topic("short")
    produce(east, "short", numbered(10))
    _delete_before(east, "short", 4)
    mirror(spark, east, west, "short")
    assert stored(west, "short")[-1] == stored(east, "short")[-1]
    produce(east, "short", numbered(10, start=10), linger_ms=0)
    produce(east, "short", numbered(10, start=20), linger_ms=0)
    _delete_before(east, "short", 20)
    with pytest.raises(JobError, match=r"begins at offset 20 now.*--allow-data-loss"):
        mirror(spark, east, west, "short")
    mirror(spark, east, west, "short", allow_data_loss=True)
    assert committed_rows(west.bootstrap, "short")[-10:] == committed_rows(east.bootstrap, "short")


@pytest.mark.long
def test_a_source_that_is_gone_leaves_a_status(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("lonely")
    produce(east, "lonely", numbered(5))
    mirror(spark, east, west, "lonely")
    east.kill()
    try:
        status = mirror(spark, east, west, "status", "lonely")
        with pytest.raises(ClientError):
            mirror(spark, east, west, "lonely")
    finally:
        east.start()
    assert status.facts["source_error"]
    (row,) = status.facts["mirrors"]
    assert row["is_mirror"]
    assert not row["source_asked"]
    assert row["behind"]["records"] == 0
    assert row["behind"]["seconds"] > 0
    assert not [name for name in west.topics() if name.startswith(PREFIX)]


def _delete_before(server: Server, topic: str, offset: int) -> None:
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    for done in server.admin.delete_records([place]).values():
        done.result(PATIENCE_S)


def _refusal(server: Server, topic: str) -> str | None:
    """Why it does not take a record; None: it took one."""
    told: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce(
        topic, b"one", on_delivery=lambda error, _: told.append(error and error.name())
    )
    assert producer.flush(PATIENCE_S) == 0
    name: str | None = told[0]
    return name
