"""What the tests of the source have in common: topics written with confluent-kafka, and queries over them."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka

from tests.support.server import PATIENCE_S, Server

KEEPS_ALL = {"log.retention.ms": -1}  # the records are of 2023
STAYS_OPEN = {"transaction.timeout.ms": 900_000}  # a job of Spark's may take minutes meanwhile
Create = Callable[..., str]  # conftest's `topic`


class Sent(NamedTuple):
    """A message with its place: what a row must show."""

    key: bytes | None
    value: bytes | None
    partition: int = 0
    timestamp_ms: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = ()


def numbered(count: int, partitions: int = 1, start: int = 0) -> list[Sent]:
    return [
        Sent(b"k%d" % n, b"value %d" % n, n % partitions, 1_700_000_000_000 + n)
        for n in range(start, start + count)
    ]


def produce(
    broker: Server, topic: str, messages: Iterable[Sent], **settings: object
) -> dict[tuple[int, int], Sent]:
    """Writes, and gives what was written by partition and offset. Settings with underscores for dots."""
    written: dict[tuple[int, int], Sent] = {}
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 5,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    for sent in messages:
        producer.produce(topic, **_arguments(sent), on_delivery=_remember(written, sent))
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return written


def _arguments(sent: Sent) -> dict[str, Any]:
    return {
        "key": sent.key,
        "value": sent.value,
        "partition": sent.partition,
        "timestamp": sent.timestamp_ms,
        "headers": list(sent.headers),
    }


def _remember(written: dict[tuple[int, int], Sent], sent: Sent) -> Callable[[Any, Any], None]:
    def on_delivery(error: Any, message: Any) -> None:
        assert error is None, error
        written[message.partition(), message.offset()] = sent

    return on_delivery


def transactions(
    broker: Server, topic: str, outcomes: Iterable[bool], each: int = 3
) -> list[bytes]:
    """Transactions of some records each, committed or aborted; the values that were committed."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"txn-{topic}"}
    )
    producer.init_transactions(PATIENCE_S)
    kept: list[bytes] = []
    for number, is_committed in enumerate(outcomes):
        producer.begin_transaction()
        values = [b"txn %d record %d" % (number, n) for n in range(each)]
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_S)
        if is_committed:
            producer.commit_transaction(PATIENCE_S)
            kept += values
        else:
            producer.abort_transaction(PATIENCE_S)
    return kept


def is_compacted(server: Server, topic: str, left: Iterable[tuple[int, bytes | None]]) -> bool:
    """Whether there is nothing more to compact; `left`: offsets and keys of the records that are there."""
    active = int(server.segments(topic)[-1].stem)  # where the segment begins that is written to
    keys = [key for offset, key in left if offset < active]
    return len(keys) == len(set(keys))


class Queries:
    """Queries of one session over one broker."""

    def __init__(self, spark: Any, broker: Server, home: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.home = home

    def read(self, topic: str | None = None, **options: object) -> Any:
        """A DataFrame; options with double underscores for dots."""
        return self._with(self.spark.read, topic, options).load()

    def stream(self, topic: str | None = None, **options: object) -> Any:
        return self._with(self.spark.readStream, topic, options).load()

    def drain(self, frame: Any, checkpoint: str, **trigger: object) -> list[Any]:
        """Runs a stream until it has read what there is; the rows of this run, batch after batch."""
        return [row for rows in self.batches(frame, checkpoint, **trigger) for row in rows]

    def batches(self, frame: Any, checkpoint: str, **trigger: object) -> list[list[Any]]:
        seen: list[list[Any]] = []
        query = (
            frame.writeStream.foreachBatch(lambda rows, _: seen.append(rows.collect()))
            .option("checkpointLocation", str(self.home / checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .start()
        )
        try:
            assert query.awaitTermination(PATIENCE_S * 2), "the query did not end"
        finally:
            query.stop()
        return seen

    def _with(self, reader: Any, topic: str | None, options: dict[str, object]) -> Any:
        reader = reader.format("penstock").option("kafka.bootstrap.servers", self.broker.bootstrap)
        if topic is not None:
            reader = reader.option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name.replace("__", "."), value)
        return reader


def by_place(rows: Iterable[Any]) -> dict[tuple[int, int], Any]:
    found = list(_places(rows))
    assert len(found) == len({place for place, _ in found}), "a row came twice"
    return dict(found)


def _places(rows: Iterable[Any]) -> Iterator[tuple[tuple[int, int], Any]]:
    for row in rows:
        yield (row["partition"], row["offset"]), row


def values(rows: Iterable[Any]) -> list[bytes]:
    return [bytes(row["value"]) for row in rows]
