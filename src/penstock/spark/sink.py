"""Writes rows to topics, at least once: a task ends well only when the brokers have all of its rows.

A task that is run again writes its rows again. Within one task no row is doubled, and rows of a partition keep their order.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Producer
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from penstock.spark.sink_options import (
    HEADERS,
    KEY,
    PARTITION,
    TOPIC,
    VALUE,
    SinkError,
    SinkPlan,
    plan_sink,
)

_LOGGER: Final = logging.getLogger("penstock.spark.sink")
_ANY_PARTITION: Final = -1
_SERVE_EVERY: Final = 1000  # rows between looks at what came back
_FULL_QUEUE_POLL_S: Final = 0.05
_FLUSH_S: Final = 0.5
_AROUND_REASON: Final = re.compile(r"^\S+/\S+: |Connect to \S+ failed: | \(after .*\)$")


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task sent."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write`. Each task has a producer of its own; there is nothing to commit or take back."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return send(self._plan, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: the same, for each micro-batch."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return send(self._plan, iterator)


def make_writer(schema: Any, options: Mapping[str, str], overwrite: bool) -> BatchWriter:
    """`schema` is a StructType."""
    if overwrite:
        raise SinkError("a topic cannot be overwritten, only added to; write with mode append")
    return BatchWriter(_warned(plan_sink(_types(schema), options)))


def make_stream_writer(schema: Any, options: Mapping[str, str], overwrite: bool) -> StreamWriter:  # noqa: ARG001
    """Spark says `overwrite` in output mode complete: each whole result is added, as with Spark's own sink."""
    return StreamWriter(_warned(plan_sink(_types(schema), options)))


def _warned(plan: SinkPlan) -> SinkPlan:
    for name in plan.ignored:
        _LOGGER.warning("option-without-effect option=%s", name)
    return plan


def _types(schema: Any) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def send(plan: SinkPlan, batches: Iterable[pa.RecordBatch]) -> Written:
    """All rows, acknowledged; or an error that says which the brokers refused, and why."""
    sender = _Sender(plan)
    for batch in batches:
        sender.send(batch)
    sender.finish()
    return Written(sender.rows)


class _Sender:
    """One task's producer. The first refusal ends the task."""

    def __init__(self, plan: SinkPlan) -> None:
        self.rows = 0
        self._plan = plan
        self._failure: SinkError | None = None
        self._trouble = ""
        callbacks = {"on_delivery": self._refused, "error_cb": self._heard}
        self._producer = _connect({**plan.producer, **callbacks})

    def send(self, batch: pa.RecordBatch) -> None:
        for row in _rows(self._plan, batch):
            if self.rows == 0 and self._plan.reach_ms:
                self._reach(row[0])
            while not self._took(row):  # it holds as much as a task may: wait until some has gone
                self._serve(_FULL_QUEUE_POLL_S)
            self.rows += 1
            if self.rows % _SERVE_EVERY == 0:
                self._serve(0)

    def finish(self) -> None:
        """librdkafka gives up on a record after `delivery.timeout.ms`, so this ends."""
        while self._producer.flush(_FLUSH_S):
            self._check()
        self._check()

    def _reach(self, topic: str) -> None:
        """librdkafka would take rows without a broker, and give up on them only after `delivery.timeout.ms`."""
        try:
            self._producer.list_topics(topic, timeout=self._plan.reach_ms / 1000)
        except KafkaException as error:
            self._producer.poll(0)  # what it could not do is in its callbacks
            reason = _AROUND_REASON.sub("", self._trouble) or str(error.args[0].str())
            raise SinkError(
                f"cannot reach {self._plan.producer['bootstrap.servers']}: {reason.lower()}; "
                "is a broker running there? start one with: penstock serve"
            ) from None

    def _took(self, row: tuple[Any, ...]) -> bool:
        try:
            self._producer.produce(*row)
        except BufferError:
            return False
        except KafkaException as error:
            raise _explained(error.args[0], row[0], row[3]) from None
        return True

    def _serve(self, timeout_s: float) -> None:
        self._producer.poll(timeout_s)
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            self._producer.purge()
            raise self._failure

    def _refused(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = _explained(error, message.topic(), message.partition())

    def _heard(self, error: Any) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # which does not say why
            self._trouble = str(error.str())


def _connect(settings: dict[str, Any]) -> Any:
    try:
        return Producer(settings, logger=_LOGGER)
    except KafkaException as error:
        raise SinkError(f"kafka options: {error.args[0].str()}") from None
    except (TypeError, ValueError) as error:
        raise SinkError(f"kafka options: {error}") from None


def _rows(plan: SinkPlan, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """The arguments of `Producer.produce`: topic, value, key, partition, callbacks, timestamp, headers."""
    count = batch.num_rows
    none = [None] * count
    columns = {name: batch.column(name) for name in plan.columns}
    topics = [plan.topic] * count if plan.topic is not None else _topics(columns[TOPIC])
    keys = _bytes(columns[KEY]) if KEY in columns else none
    partitions = (
        _partitions(columns[PARTITION]) if PARTITION in columns else [_ANY_PARTITION] * count
    )
    headers = _headers(columns[HEADERS]) if HEADERS in columns else none
    return zip(
        topics,
        _bytes(columns[VALUE]),
        keys,
        partitions,
        none,
        none,
        [0] * count,
        headers,
        strict=True,
    )


def _topics(column: pa.Array) -> list[str]:
    if column.null_count:
        raise SinkError("a row has no topic: its column topic is null; give the option topic")
    found: list[str] = column.to_pylist()
    return found


def _bytes(column: pa.Array) -> list[bytes | None]:
    """Texts as UTF-8."""
    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    found: list[bytes | None] = column.to_pylist()
    return found


def _partitions(column: pa.Array) -> list[int]:
    lowest = pc.min(column).as_py()
    if lowest is not None and lowest < 0:
        raise SinkError(
            f"a row has partition {lowest}; they begin at 0, and null leaves the choice"
        )
    found: list[int] = column.fill_null(_ANY_PARTITION).to_pylist()
    return found


def _headers(column: pa.Array) -> list[list[tuple[str, bytes | None]] | None]:
    return [
        None if row is None else [_header(header) for header in row] for row in column.to_pylist()
    ]


def _header(header: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    if header is None or header["key"] is None:
        raise SinkError("a row has a header without a key; headers need one")
    return header["key"], header["value"]


def _explained(error: Any, topic: str, partition: int | None) -> SinkError:
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        return SinkError(
            f"topic {topic!r} does not exist; create it with: penstock topic create {topic}"
        )
    if error.code() == KafkaError._UNKNOWN_PARTITION:
        return SinkError(f"topic {topic!r} has no partition {partition}")
    where = f"topic {topic!r}" if partition in (None, _ANY_PARTITION) else f"{topic}-{partition}"
    return SinkError(f"{where} did not take a row: {str(error.str()).removeprefix('Broker: ')}")
