"""Streaming queries: every record once, from the checkpoint on, within the limits, and losses are loud."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from tests.spark.topics import (
    KEEPS_ALL,
    Create,
    Queries,
    Sent,
    by_place,
    numbered,
    produce,
    transactions,
    values,
)
from tests.support.command import penstock_command
from tests.support.server import PATIENCE_S, Server, until, until_data

pytestmark = pytest.mark.spark
rd: Any = confluent_kafka.admin  # its stubs hide half of its names


@pytest.fixture
def queries(spark: Any, broker: Server, tmp_path: Path) -> Queries:
    return Queries(spark, broker, tmp_path)


def fails(run: Callable[[], object]) -> str:
    """What a query says when it fails."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # Spark's own kinds say nothing
        run()
    return str(caught.value)


def test_a_stream_goes_on_from_its_checkpoint(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("resumed", partitions=2)
    stream = queries.stream(name, startingOffsets="earliest")
    first = produce(broker, name, numbered(20, partitions=2))
    seen = queries.drain(stream, "checkpoint")
    second = produce(broker, name, numbered(10, partitions=2, start=20))
    later = queries.drain(stream, "checkpoint")
    nothing = queries.drain(stream, "checkpoint")

    assert by_place(seen).keys() == first.keys()
    assert by_place(later).keys() == second.keys()
    assert nothing == []


@pytest.mark.long
def test_a_stream_starts_where_it_is_told(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("started")
    produce(broker, name, numbered(10))
    specific = json.dumps({name: {"0": 7}})

    told = queries.drain(queries.stream(name, startingOffsets=specific), "told")
    timed = queries.drain(queries.stream(name, startingTimestamp=1_700_000_000_004), "timed")

    assert [row["offset"] for row in told] == [7, 8, 9]
    assert [row["offset"] for row in timed] == [4, 5, 6, 7, 8, 9]


@pytest.mark.long
def test_a_stream_starts_at_the_end_unless_it_is_told_where(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("latest")
    produce(broker, name, numbered(10))
    seen: list[int] = []
    query = (
        queries.stream(name)
        .writeStream.foreachBatch(
            lambda rows, _: seen.extend(row["offset"] for row in rows.collect())
        )
        .option("checkpointLocation", str(queries.home / "latest"))
        .start()
    )
    try:
        until(
            lambda: "Waiting for data" in query.status["message"], "it has started", PATIENCE_S * 2
        )
        produce(broker, name, numbered(2, start=10))
        until_data(lambda: len(seen) == 2, "the new ones have come", PATIENCE_S * 2)
    finally:
        query.stop()
    assert seen == [10, 11]


def test_a_limit_makes_many_batches_of_what_is_available(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("limited", partitions=2)
    written = produce(
        broker, name, [*numbered(30), *(s._replace(partition=1) for s in numbered(10))]
    )
    stream = queries.stream(name, startingOffsets="earliest", maxOffsetsPerTrigger=8)

    batches = queries.batches(stream, "limited")

    assert [len(batch) for batch in batches[:4]] == [8, 8, 8, 8]
    partitions = [row["partition"] for row in batches[0]]
    assert (partitions.count(0), partitions.count(1)) == (6, 2)
    assert by_place(row for batch in batches for row in batch).keys() == written.keys()


@pytest.mark.long
def test_one_trigger_takes_all_whatever_the_limit(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("once")
    produce(broker, name, numbered(30))
    stream = queries.stream(name, startingOffsets="earliest", maxOffsetsPerTrigger=8)

    assert [len(batch) for batch in queries.batches(stream, "once", once=True)] == [30]


@pytest.mark.long
def test_too_little_waits_for_more(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("waiting")
    stream = queries.stream(name, startingOffsets="earliest", minOffsetsPerTrigger=10)
    produce(broker, name, numbered(3))
    batches: list[list[int]] = []
    query = (
        stream.writeStream.foreachBatch(
            lambda rows, _: batches.append([row["offset"] for row in rows.collect()])
        )
        .option("checkpointLocation", str(queries.home / "waiting"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        until(lambda: batches, "the first batch comes at once", PATIENCE_S * 2)
        produce(broker, name, numbered(4, start=3))
        produce(broker, name, numbered(6, start=7))
        until(lambda: len(batches) > 1, "enough has come", PATIENCE_S * 2)
    finally:
        query.stop()
    assert batches == [[0, 1, 2], list(range(3, 13))]


@pytest.mark.long
def test_available_now_ends_although_little_is_left(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("little")
    produce(broker, name, numbered(25))
    stream = queries.stream(
        name, startingOffsets="earliest", minOffsetsPerTrigger=10, maxOffsetsPerTrigger=10
    )

    assert [len(batch) for batch in queries.batches(stream, "little")] == [10, 10, 5]


@pytest.mark.long
def test_new_partitions_and_topics_are_read_from_their_start(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("growing")
    stream = queries.stream(subscribePattern="^growing-", startingOffsets="earliest")
    produce(broker, name, numbered(5))
    assert len(queries.drain(stream, "growing")) == 5

    broker.admin.create_partitions([rd.NewPartitions(name, 3)])[name].result(PATIENCE_S)
    other = topic("growing")
    produce(broker, name, [s._replace(partition=2) for s in numbered(4)])
    produce(broker, other, numbered(2))
    rows = queries.drain(stream, "growing")

    assert sorted((row["topic"], row["partition"], row["offset"]) for row in rows) == sorted(
        [*((name, 2, n) for n in range(4)), *((other, 0, n) for n in range(2))]
    )


def test_only_decided_transactions_are_streamed(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("decided")
    stream = queries.stream(
        name, startingOffsets="earliest", kafka__isolation__level="read_committed"
    )
    kept = transactions(broker, name, [True, False, True])

    assert values(queries.drain(stream, "decided")) == kept
    assert queries.drain(stream, "decided") == []


def trimmed(broker: Server, name: str, before: int) -> None:
    where = confluent_kafka.TopicPartition(name, 0, before)
    for future in broker.admin.delete_records([where]).values():
        future.result(PATIENCE_S)


def test_records_that_retention_took_fail_the_query(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("retained")
    produce(broker, name, numbered(10))
    strict = queries.stream(name, startingOffsets="earliest")
    queries.drain(strict, "strict")
    produce(broker, name, numbered(10, start=10))
    trimmed(broker, name, 15)

    said = fails(lambda: queries.drain(strict, "strict"))

    assert (
        f"{name}-0: offsets 10 to 14 cannot be read any more, the log starts at offset 15" in said
    )
    assert "set the option failOnDataLoss to false" in said


@pytest.mark.long
def test_records_that_retention_took_are_skipped_when_that_is_allowed(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("skipped")
    produce(broker, name, numbered(10))
    stream = queries.stream(name, startingOffsets="earliest", failOnDataLoss=False)
    queries.drain(stream, "lenient")
    produce(broker, name, numbered(10, start=10))
    trimmed(broker, name, 15)

    assert [row["offset"] for row in queries.drain(stream, "lenient")] == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("fail_on_data_loss", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_topic_that_was_made_again_is_a_loss(
    queries: Queries, broker: Server, topic: Create, fail_on_data_loss: bool
) -> None:
    name = topic("again")
    produce(broker, name, numbered(10))
    stream = queries.stream(name, startingOffsets="earliest", failOnDataLoss=fail_on_data_loss)
    queries.drain(stream, "again")
    broker.delete_topic(name)
    broker.create_topic(name)
    produce(broker, name, numbered(4))

    if fail_on_data_loss:
        said = fails(lambda: queries.drain(stream, "again"))
        assert f"{name}-0 now ends at offset 4, and was to be read from 10 on" in said
    else:
        assert queries.drain(stream, "again") == []
        produce(broker, name, numbered(2, start=4))
        assert [row["offset"] for row in queries.drain(stream, "again")] == [4, 5]


@pytest.mark.long
def test_a_deleted_topic_fails_the_query(queries: Queries, broker: Server, topic: Create) -> None:
    name = topic("deleted")
    produce(broker, name, numbered(3))
    stream = queries.stream(name, startingOffsets="earliest")
    queries.drain(stream, "deleted")
    broker.delete_topic(name)

    assert f"{name}-0 is gone" in fails(lambda: queries.drain(stream, "deleted"))


@pytest.mark.long
def test_progress_is_seen_as_a_groups_offsets(
    queries: Queries, broker: Server, topic: Create
) -> None:
    name = topic("published", partitions=2)
    produce(broker, name, numbered(20, partitions=2))
    stream = queries.stream(name, startingOffsets="earliest", kafka__group__id="my-query")
    queries.drain(stream, "published")
    produce(broker, name, [Sent(None, b"late", 1)])

    described = penstock_command(
        "group", "describe", "my-query", "--json", "--bootstrap", broker.bootstrap
    )

    assert described.status == 0, described.err
    rows = described.json()["partitions"]
    places = {row["partition"]: (row["committed"], row["lag"]) for row in rows}
    assert places == {0: (10, 0), 1: (10, 1)}


@pytest.mark.long
def test_a_restarted_broker_does_not_end_the_query(spark: Any, tmp_path: Path) -> None:
    with Server(tmp_path, KEEPS_ALL) as own:
        name = own.create_topic("survivor")
        stream = Queries(spark, own, tmp_path).stream(name, startingOffsets="earliest")
        seen: list[int] = []
        query = (
            stream.writeStream.foreachBatch(
                lambda rows, _: seen.extend(row["offset"] for row in rows.collect())
            )
            .option("checkpointLocation", str(tmp_path / "survivor"))
            .trigger(processingTime="50 milliseconds")
            .start()
        )
        try:
            produce(own, name, numbered(5))
            until_data(lambda: len(seen) == 5, "the first records", PATIENCE_S * 2)
            own.crash()
            produce(own, name, numbered(5, start=5))
            until_data(lambda: len(seen) >= 10, "records after the restart", PATIENCE_S * 2)
        finally:
            query.stop()
        assert seen == list(range(10))


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is for batch queries"),
        ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset is not supported"),
        ({"subscribe": "nowhere"}, "topic 'nowhere' does not exist"),
    ],
)
def test_mistakes_end_the_query_with_a_line(
    queries: Queries, topic: Create, options: dict[str, str], says: str
) -> None:
    said = fails(lambda: queries.drain(queries.stream(topic(), **options), "mistake"))

    assert says in said
