"""Produce the records of one partition again, in order, and report the offset of each.

This is the part of a translated mirror that runs in Spark's tasks.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from penstock.client.raw_transactions import Fenced, Session, TransactionLost
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.compression import Codec
from penstock.records.record import Header, Record
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror.translate.offset_map import Row, joined, rows_of
from penstock.spark.jobs.mirror.translate.origin import HEADER, Guard, origin
from penstock.spark.outgoing import Outgoing, RecordBatch, batched
from penstock.spark.sending import refuse_second_attempt, send
from penstock.spark.steps import reached
from penstock.spark.transactional import OVERDUE

COLUMNS: Final = "topic,partition,offset,timestamp,key,value,headers"
_MICROS: Final = 1000  # in a millisecond


class Wires(NamedTuple):
    """What every task of a transaction must know."""

    session: Session
    target: str  # brokers
    source_id: str
    target_id: str
    codec: Codec
    places: Mapping[TopicPartition, TopicPartition]  # at the source -> at the target


class Wrote(NamedTuple):
    """By one task."""

    source: TopicPartition
    batches: int
    records: int
    size_bytes: int
    returned: int  # records that came from the target, and are not copied back
    rows: tuple[Row, ...]

    def text(self) -> str:
        return json.dumps(self)


def parse_report(text: str) -> Wrote:
    source, batches, records, size_bytes, returned, rows = json.loads(text)
    return Wrote(
        TopicPartition(*source),
        batches,
        records,
        size_bytes,
        returned,
        tuple(Row(*row) for row in rows),
    )


def write_task(wires: Wires, batches: Iterable[RecordBatch]) -> Wrote | None:
    """All rows of a task, which are one partition's and in order. None: there were none."""
    reached("transaction:task")
    task = _Task(wires)
    try:
        return task.run(batches)
    except (Fenced, TransactionLost) as error:
        raise JobError(f"{error.message}: {OVERDUE}") from error


def in_task(
    wires: Wires, read: Callable[[Any], Iterator[RecordBatch]], parts: Iterator[Any]
) -> Iterator[str]:
    """`write_task` as Spark runs it: its partition of the source is read here, too."""
    refuse_second_attempt()
    for part in parts:
        if (wrote := write_task(wires, read(part))) is not None:
            yield wrote.text()


class _Task:
    def __init__(self, wires: Wires) -> None:
        self._wires = wires
        self._source: TopicPartition | None = None
        self._waiting: deque[int] = deque()  # offsets of records that are not acknowledged yet
        self._rows: list[Row] = []
        self._known: list[Row] = []
        self._batches = self._size_bytes = self._returned = 0

    def run(self, batches: Iterable[RecordBatch]) -> Wrote | None:
        rows = _rows(batches)
        first = next(rows, None)
        if first is None:
            return None
        wires, source = self._wires, TopicPartition(first[0], first[1])
        self._source, target = source, wires.places[source]
        ready = batched(self._records(first, rows, target), wires.codec)
        counts = asyncio.run(
            send(ready, wires.session, wires.target, target.topic, self._acknowledged)
        )
        reached("transaction:sent")
        assert counts.keys() <= {target.partition}, "a task has one partition"
        return Wrote(
            source,
            self._batches,
            counts.get(target.partition, 0),
            self._size_bytes,
            self._returned,
            tuple(joined(sorted([*self._rows, *self._known]))),
        )

    def _records(
        self, first: "_Columns", rest: Iterator["_Columns"], target: TopicPartition
    ) -> Iterator[tuple[int, Record]]:
        guard = Guard(self._wires.target_id, target)
        assert self._source is not None, "it has rows"
        where = origin(self._wires.source_id, self._source)
        row: _Columns | None = first
        while row is not None:
            topic, partition, offset, time_us, key, value, given = row
            assert (topic, partition) == self._source, "a task has one partition"
            headers = _headers(given)
            if guard.was_there(headers):
                self._leave_out(offset, guard.offset_there(headers))
            else:
                self._waiting.append(offset)
                own = (HEADER, where + b"%d" % offset)
                yield (
                    target.partition,
                    Record(0, time_us // _MICROS, key, value, (*headers, own)),
                )
            row = next(rest, None)

    def _leave_out(self, offset: int, offset_there: int | None) -> None:
        self._returned += 1
        if offset_there is not None:
            self._known.append(Row(offset, offset_there, 1))

    def _acknowledged(self, sent: Outgoing, base_offset: int) -> None:
        if base_offset < 0:
            raise TransactionLost(
                "a broker does not remember where it has put a batch",
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            )
        offsets = [self._waiting.popleft() for _ in range(sent.records)]
        self._rows += rows_of(offsets, base_offset)
        self._batches += 1
        self._size_bytes += len(sent.data)


_Columns = tuple[str, int, int, int, bytes | None, bytes | None, list[dict[str, Any]] | None]


def _rows(batches: Iterable[RecordBatch]) -> Iterator[_Columns]:
    for batch in batches:
        columns = []
        for name in COLUMNS.split(","):
            column = batch.column(name)
            columns.append((column.cast("int64") if name == "timestamp" else column).to_pylist())
        yield from zip(*columns, strict=True)


def _headers(given: list[dict[str, Any]] | None) -> tuple[Header, ...]:
    return tuple((header["key"], header["value"]) for header in given or ())
