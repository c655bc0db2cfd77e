"""Stored batches go from one cluster to the other as they are: one task for each partition, in order.

Where a mirror's log ends is where copying goes on: there is no other state, so whoever dies, the next run begins right.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.client import admin
from penstock.client.mirroring import append, mirror_state
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.mirror_topics import Ends, Pair
from penstock.spark.steps import reached
from penstock.spark.survey import offsets_json

_COLUMNS: Final = "topic,partition,lastOffset,recordCount,batch"
Row: TypeAlias = tuple[str, int, int, int, bytes]  # those columns
_REQUEST_BYTES: Final = 4 << 20
_CLIENT_ID: Final = "penstock-mirror"
_ATTEMPTS: Final = 10  # a new leader may not know at once how far it may tell
_PAUSE_S: Final = 0.5


class Span(NamedTuple):
    """What of one partition is to be copied."""

    source: TopicPartition
    target: TopicPartition
    topic_id: bytes  # of the mirror
    mirror_end: int
    start: int
    end: int

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)


class Done(NamedTuple):
    """What one task wrote."""

    place: TopicPartition
    next_offset: int
    batches: int
    records: int
    size_bytes: int


class Request(NamedTuple):
    """Batches that are sent together."""

    place: TopicPartition  # at the source
    last_offset: int
    batch_count: int
    records: int
    batches: bytes


async def find_spans(ends: Ends, pairs: Sequence[Pair], *, allow_loss: bool) -> list[Span]:
    """Asked of both ends' leaders. JobError: a mirror is no copy, or the source has lost what comes next."""
    spans = await _spans(ends, pairs)
    for _ in range(_ATTEMPTS):
        if all(span.mirror_end <= span.end for span in spans):
            break
        await asyncio.sleep(_PAUSE_S)
        spans = await _spans(ends, pairs)
    for span in spans:
        _check(span, allow_loss)
    return spans


async def _spans(ends: Ends, pairs: Sequence[Pair]) -> list[Span]:
    places = [TopicPartition(pair.source, n) for pair in pairs for n in range(pair.partitions)]
    latest = await admin.list_offsets(ends.source, dict.fromkeys(places, admin.LATEST))
    earliest = await admin.list_offsets(ends.source, dict.fromkeys(places, admin.EARLIEST))
    spans = []
    for pair in pairs:
        state = await mirror_state(ends.target, pair.target)
        if state.source is None:
            raise JobError(
                f"mirror {pair.target!r} was promoted meanwhile: nothing more is copied to it"
            )
        for index in range(pair.partitions):
            place = TopicPartition(pair.source, index)
            mirror_end = state.partitions[index].log_end_offset
            spans.append(
                Span(
                    place,
                    TopicPartition(pair.target, index),
                    state.topic_id,
                    mirror_end,
                    max(mirror_end, earliest[place].offset),
                    latest[place].offset,
                )
            )
    return spans


def _check(span: Span, allow_loss: bool) -> None:
    if span.mirror_end > span.end:
        raise JobError(
            f"mirror {span.target} ends at offset {span.mirror_end} and its source at {span.end}: the source "
            "has lost records that the mirror has; promote the mirror, or delete it to begin anew"
        )
    if 0 < span.mirror_end < span.start and not allow_loss:
        raise JobError(
            f"{span.source} begins at offset {span.start} now, and the mirror ends at {span.mirror_end}: retention "
            "was faster than the job; to go on with a gap, give --allow-data-loss"
        )


def copy(
    session: Any, bootstrap: str, target: str, spans: Sequence[Span], *, allow_loss: bool
) -> list[Done]:
    """Returns when all in-sync replicas of the mirrors have everything."""
    due = [span for span in spans if span.offsets]
    if not due:
        return []
    rows = session.read.format("penstock").options(**_source_options(bootstrap, due, allow_loss))
    writer = Writer(target, {span.source: span for span in due})
    done: list[Done] = rows.load().rdd.mapPartitions(writer).collect()
    return done


def _source_options(bootstrap: str, due: Sequence[Span], allow_loss: bool) -> dict[str, str]:
    assigned: dict[str, list[int]] = {}
    for span in due:
        assigned.setdefault(span.source.topic, []).append(span.source.partition)
    return {
        "kafka.bootstrap.servers": bootstrap,
        "mode": "rawbatches",
        "columns": _COLUMNS,
        "assign": json.dumps(assigned),
        "startingOffsets": offsets_json({span.source: span.start for span in due}),
        "endingOffsets": offsets_json({span.source: span.end for span in due}),
        "failOnDataLoss": "false" if allow_loss else "true",
    }


class Writer:
    """Runs in a task: what it is given is one partition's, in order."""

    def __init__(self, target: str, spans: Mapping[TopicPartition, Span]) -> None:
        self._target = target
        self._spans = dict(spans)

    def __call__(self, rows: Iterator[Row]) -> Iterator[Done]:
        with asyncio.Runner() as runner:
            pool = runner.run(_opened(self._target))
            try:
                done: Done | None = None
                for request in requests(rows):
                    done = runner.run(self._append(pool, request, done))
            finally:
                runner.run(pool.close())
        if done is not None:
            yield done

    async def _append(self, pool: Pool, request: Request, done: Done | None) -> Done:
        span = self._spans[request.place]
        done = done or Done(span.target, span.mirror_end, 0, 0, 0)
        assert span.target == done.place, "a task has one partition"
        reached("mirror:appending")
        await append(
            pool,
            span.target,
            request.batches,
            continues_at=done.next_offset,
            topic_id=span.topic_id,
        )
        reached("mirror:appended")
        return Done(
            done.place,
            request.last_offset + 1,
            done.batches + request.batch_count,
            done.records + request.records,
            done.size_bytes + len(request.batches),
        )


def requests(rows: Iterable[Row]) -> Iterator[Request]:
    """Batches in requests of bounded size; a single one may be larger."""
    held: list[Row] = []
    size_bytes = 0
    for row in rows:
        if held and size_bytes + len(row[4]) > _REQUEST_BYTES:
            yield _request(held)
            held, size_bytes = [], 0
        held.append(row)
        size_bytes += len(row[4])
    if held:
        yield _request(held)


def _request(rows: Sequence[Row]) -> Request:
    topic, partition, last_offset, _, _ = rows[-1]
    return Request(
        TopicPartition(topic, partition),
        last_offset,
        len(rows),
        sum(row[3] for row in rows),
        b"".join(row[4] for row in rows),
    )


async def _opened(bootstrap: str) -> Pool:
    return Pool(bootstrap, client_id=_CLIENT_ID)
