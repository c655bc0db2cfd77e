"""`mirror --translate` between two real clusters: each committed record once, in its place, and groups that go on at the next one."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import confluent_kafka
import pytest

from penstock.spark.errors import JobError
from penstock.spark.job import Summary
from penstock.spark.jobs.mirror.job import JOB
from penstock.spark.jobs.mirror.names import LINK_LOG_PREFIX
from penstock.spark.jobs.mirror.options import MirrorOptions
from tests.spark.mirrors import change_settings, grow, mirror, settings, two_clusters
from tests.spark.topics import KEEPS_ALL, Sent, is_compacted, numbered, produce
from tests.spark.translated import (
    CODECS,
    a_group_for_every_offset,
    assert_exact,
    assert_groups_go_on,
    groups_at,
    kept,
    next_of,
    origins,
    rows_at,
    set_groups,
)
from tests.support.mirrors import write_transactions
from tests.support.server import PATIENCE_S, Server, until

pytestmark = pytest.mark.spark

Both = tuple[Server, Server]
FOREVER: Any = {"retention_ms": -1}  # the records are old


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with two_clusters(tmp_path_factory.mktemp("translate")) as servers:
        yield servers


def _copy(spark: Any, source: Server, target: Server, *what: str, **more: Any) -> Summary:
    return mirror(spark, source, target, *what, translate=True, **more)


def _mixed(count: int, partitions: int, start: int = 0) -> list[Sent]:
    """Keys, values and headers of all kinds."""
    rng = Random(start)
    headers = [(), (("own", b"h"),), (("own", b"1"), ("own", None), ("", b""))]
    return [
        Sent(
            rng.choice([None, b"", b"key %d" % n]),
            rng.choice([None, b"", b"value %d" % n]),
            n % partitions,
            1_700_000_000_000 + n,
            rng.choice(headers),
        )
        for n in range(start, start + count)
    ]


def test_a_copy_has_every_committed_record_once_and_groups_go_on_exactly(
    spark: Any, both: Both
) -> None:
    """Every codec, nulls, headers; transactions that were committed, aborted and left open; several micro-batches."""
    east, west = both
    stamped = {"message_timestamp_after_max_ms": 5_000}
    east.create_topic("orders", partitions=3, **FOREVER, **stamped)
    for number, codec in enumerate(CODECS):
        produce(east, "orders", _mixed(60, 3, 60 * number), compression_type=codec)
    first = _copy(spark, east, west, "orders", batch_records=100)
    assert first.facts["translated"]["transactions"] >= 3
    assert first.facts["records"] == 300
    assert first.facts["behind"] == {"records": 0, "bytes": 0, "seconds": 0.0}
    left_open = write_transactions(east, "orders", Random(6), 12)
    at = a_group_for_every_offset(east, "orders", "reader")
    second = _copy(spark, east, west, "orders")
    assert second.facts["behind"]["records"] > 0, "a transaction is open"
    assert len(second.facts["groups"]["written"]) == len(at)
    assert_exact(east, west, "orders")
    assert_groups_go_on(east, west, "orders", at)
    left_open.end(committed=True)
    left_open.disconnect()
    third = _copy(spark, east, west, "orders")
    assert third.facts["records"] == 1
    found = assert_exact(east, west, "orders")
    assert found[[row.partition for row in found].count(0) - 1].value == b"never"
    assert_groups_go_on(east, west, "orders", at)
    assert _copy(spark, east, west, "orders").facts["translated"]["transactions"] == 0
    status = mirror(spark, east, west, "status", "orders", translate=True).facts["mirrors"][0]
    assert status["behind"]["records"] == 0
    assert _settings(west, "orders") == {"retention.ms": "-1"}


@pytest.mark.long
def test_gaps_that_compaction_left_are_translated(spark: Any, tmp_path: Path, both: Both) -> None:
    (tmp_path / "own").mkdir()
    with Server(tmp_path / "own", {**KEEPS_ALL, "log.cleaner.backoff.ms": 50}) as own:
        own.create_topic(
            "state",
            cleanup_policy="compact",
            segment_bytes=4000,
            min_cleanable_dirty_ratio=0.01,
            **FOREVER,
        )
        messages = [Sent(b"k%d" % (n % 7 if n % 3 else n), b"value %d" % n) for n in range(300)]
        produce(own, "state", messages, batch_num_messages=10)
        until(lambda: is_compacted(own, "state", _keys(own, "state")), "all is compacted")
        change_settings(own, "state", {"cleanup.policy": "delete"})
        at = a_group_for_every_offset(own, "state", "state")
        assert len(rows_at(own, "state")) < 200
        rows = mirror(spark, own, both[1], "state", translate=True).facts["translated"]["rows"]
        assert rows > 10
        assert_exact(own, both[1], "state")
        assert_groups_go_on(own, both[1], "state", at)


def _keys(server: Server, topic: str) -> list[tuple[int, bytes | None]]:
    return [(row.offset, row.key) for row in rows_at(server, topic)]


@pytest.mark.long
def test_a_consumer_that_moves_reads_the_next_record(spark: Any, both: Both) -> None:
    """While another has members at the target, and a third is further there: these stay."""
    east, west = both
    east.create_topic("moving", **FOREVER)
    produce(east, "moving", numbered(20))
    _copy(spark, east, west, "moving", no_groups=True)
    produce(east, "moving", numbered(5, start=20))
    set_groups(east, "moving", {"mover": {0: 22}, "busy": {0: 3}, "ahead": {0: 4}})
    set_groups(west, "moving", {"ahead": {0: 9}})
    consumer: Any = confluent_kafka.Consumer(
        {"bootstrap.servers": west.bootstrap, "group.id": "busy", "log_level": 0}
    )
    consumer.subscribe(["moving"])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it is a member")
    facts = _copy(spark, east, west, "moving").facts
    assert facts["groups"]["active"] == ["busy"]
    consumer.close()
    assert groups_at(west, "moving", ["ahead", "mover"]) == {"ahead": {0: 9}, "mover": {0: 23}}
    assert next_of(west, "mover", "moving", 3) == [b"value %d" % n for n in (22, 23, 24)]


@pytest.mark.long
def test_a_topic_that_grows_and_changes_is_followed(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("growing", max_message_bytes=3_000_000, **FOREVER)
    produce(east, "growing", numbered(10))
    _copy(spark, east, west, "growing")
    grow(east, "growing", 3)
    change_settings(east, "growing", {"segment.bytes": "2000000"}, ["max.message.bytes"])
    produce(east, "growing", numbered(30, 3, start=10))
    _copy(spark, east, west, "growing")
    assert _settings(west, "growing") == {"retention.ms": "-1", "segment.bytes": "2000000"}
    assert_exact(east, west, "growing")


@pytest.mark.long
def test_two_clusters_under_other_names_do_not_loop(spark: Any, both: Both) -> None:
    east, west = both
    for server in both:
        server.create_topic("clicks", **FOREVER)
    produce(east, "clicks", numbered(20))
    produce(west, "clicks", numbered(35, start=500))
    how: dict[str, Any] = {"pattern": r"(.*\.)?clicks", "rename": "{source}.{topic}"}
    back: dict[str, Any] = {}
    for _ in range(2):
        _copy(spark, east, west, source_name="east", **how)
        back |= _copy(spark, west, east, source_name="west", **how).facts
    assert_exact(east, west, "clicks", "east.clicks")
    assert_exact(west, east, "clicks", "west.clicks")
    assert back["skipped"] == ["'east.clicks' comes from the target cluster: it is not copied back"]
    named = {name for name in [*east.topics(), *west.topics()] if "clicks" in name}
    assert named == {"clicks", "east.clicks", "west.clicks"}


@pytest.mark.long
def test_two_clusters_that_write_to_the_same_topic_do_not_loop(spark: Any, both: Both) -> None:
    """Each has the records of both, each once, and those of either side in their order."""
    east, west = both
    for server in both:
        server.create_topic("votes", partitions=2, **FOREVER)
    own, other = numbered(20, 2), numbered(16, 2, start=500)
    back: dict[str, Any] = {}
    for part in range(2):
        produce(east, "votes", own[10 * part : 10 * part + 10])
        produce(west, "votes", other[8 * part : 8 * part + 8])
        for _ in range(2):
            _copy(spark, east, west, "votes", merge=True)
            back |= _copy(spark, west, east, "votes", merge=True).facts
    assert back["records"] == 0
    for server in both:
        rows = kept(rows_at(server, "votes"))
        for sent in (own, other):
            wanted = [(s.partition, s.key, s.value, s.timestamp_ms) for s in sent]
            found = [(r.partition, r.key, r.value, r.timestamp_ms) for r in rows]
            assert [row for row in found if row in wanted] == sorted(wanted, key=lambda row: row[0])
        assert len(rows) == 36


@pytest.mark.long
def test_promoted_written_to_and_back(spark: Any, both: Both) -> None:
    """Roles change twice; nothing is copied twice, and groups go on exactly each time."""
    east, west = both
    east.create_topic("money", **FOREVER)
    produce(east, "money", numbered(10))
    set_groups(east, "money", {"bank": {0: 4}})
    _copy(spark, east, west, "money")
    set_groups(east, "money", {"bank": {0: 7}})
    with pytest.raises(JobError, match=r"comes from the target cluster.*promote money"):
        _copy(spark, west, east, "failback", "money")
    promoted = _copy(spark, east, west, "promote", "money")
    assert promoted.facts["topics"][0]["mirrored_upto"] == {"0": 10}
    assert promoted.facts["topics"][0]["rpo"]["records"] == 0
    assert promoted.facts["groups"] == ["bank"]
    assert not _copy(spark, east, west, "promote", "money").facts["topics"][0]["was_mirror"]
    with pytest.raises(JobError, match="was promoted"):
        _copy(spark, east, west, "money")
    produce(west, "money", numbered(6, start=100))
    assert next_of(west, "bank", "money", 9) == [
        b"value %d" % n for n in (7, 8, 9, *range(100, 106))
    ]
    set_groups(
        west,
        "money",
        {"slow": {0: 5}, "new": {0: groups_at(west, "money", ["bank"])["bank"][0] - 2}},
    )

    failed_back = _copy(spark, west, east, "failback", "money").facts
    assert (failed_back["records"], failed_back["translated"]["returned"]) == (6, 10)
    assert [row.value for row in kept(rows_at(east, "money"))][10:] == [
        b"value %d" % n for n in range(100, 106)
    ]
    assert groups_at(east, "money", ["slow"]) == {"slow": {0: 5}}
    assert next_of(east, "new", "money", 2) == [b"value 104", b"value 105"]
    _copy(spark, west, east, "promote", "money")
    produce(east, "money", numbered(3, start=200))
    again = _copy(spark, east, west, "failback", "money").facts
    assert (again["records"], again["translated"]["returned"]) == (3, 6)
    values = [row.value for row in rows_at(west, "money")]
    assert values == [b"value %d" % n for n in (*range(10), *range(100, 106), *range(200, 203))]
    assert [len(told) for told in origins(rows_at(west, "money"))] == [1] * 10 + [0] * 6 + [1] * 3


@pytest.mark.long
def test_what_cannot_be_copied_is_said_in_one_line(spark: Any, both: Both) -> None:
    east, west = both
    east.create_topic("own", **FOREVER)
    west.create_topic("own", **FOREVER)
    with pytest.raises(JobError, match=r"'own' of the target is its own.*--merge"):
        _copy(spark, east, west, "own")
    with pytest.raises(JobError, match="the same cluster"):
        _copy(spark, east, east, "own")
    with pytest.raises(JobError, match="is no copy"):
        _copy(spark, east, west, "promote", "own")
    east.create_topic("short", **FOREVER)
    produce(east, "short", numbered(10))
    _copy(spark, east, west, "short")
    produce(east, "short", numbered(10, start=10))
    _delete_before(east, "short", 15)
    with pytest.raises(JobError, match=r"copied up to 10.*--allow-data-loss"):
        _copy(spark, east, west, "short")
    _copy(spark, east, west, "short", allow_data_loss=True)
    assert [row.value for row in rows_at(west, "short")][9:] == [
        b"value %d" % n for n in (9, *range(15, 20))
    ]
    west.delete_topic("short")
    until(lambda: "short" not in west.topics(), "it is gone")
    _copy(spark, east, west, "short")
    assert [row.value for row in rows_at(west, "short")] == [b"value %d" % n for n in range(15, 20)]


@pytest.mark.long
def test_a_plan_changes_nothing(both: Both) -> None:
    east, west = both
    east.create_topic("planned", partitions=2)
    options = MirrorOptions(
        bootstrap=east.bootstrap, target=west.bootstrap, what=("planned",), translate=True
    )
    before = west.admin.list_topics(timeout=PATIENCE_S).topics.keys()
    plan = JOB.plan(options)
    assert plan.facts["to_do"] == ["create planned with 2 partitions"]
    assert LINK_LOG_PREFIX in plan.lines[1]
    assert west.admin.list_topics(timeout=PATIENCE_S).topics.keys() == before


@pytest.mark.long
def test_a_source_that_is_gone_can_be_left(spark: Any, both: Both) -> None:
    """The last one here: it leaves the source without a process."""
    east, west = both
    east.create_topic("lonely", **FOREVER)
    produce(east, "lonely", numbered(10))
    set_groups(east, "lonely", {"lonely": {0: 6}})
    _copy(spark, east, west, "lonely")
    east.kill()
    (row,) = _copy(spark, east, west, "status", "lonely").facts["mirrors"]
    assert not row["source_asked"]
    assert row["behind"]["records"] == 0
    assert row["behind"]["seconds"] > 0
    facts = _copy(spark, east, west, "promote", "lonely").facts
    assert facts["groups_error"]
    assert facts["topics"][0]["rpo"]["records"] is None, "there may have been more"
    assert facts["topics"][0]["rpo"]["seconds"] > 0
    assert next_of(west, "lonely", "lonely", 4) == [b"value %d" % n for n in range(6, 10)]


def _settings(server: Server, topic: str) -> dict[str, str | None]:
    """But for those that let every time be kept."""
    found = settings(server, topic)
    return {key: value for key, value in found.items() if not key.startswith("message.timestamp.")}


def _delete_before(server: Server, topic: str, offset: int) -> None:
    place = confluent_kafka.TopicPartition(topic, 0, offset)
    for done in server.admin.delete_records([place]).values():
        done.result(PATIENCE_S)
