"""Copy stored batches unchanged from one cluster to the other: one task per partition, in order.

Copying continues at the end of the mirror's log. There is no other state, so the next run starts at
the right offset, whichever process died.

A task compares the source with the mirror before it writes what it fetched from another leader than
before: a source that lost its tail must not be copied behind it. The comparison comes after the
fetch, so the source cannot change unnoticed between the two.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.client import admin
from penstock.client.mirroring import MirrorDiverged, append, mirror_state
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition
from penstock.records.batch import parse_header, split_batches
from penstock.spark.cluster import Cluster, Location
from penstock.spark.errors import JobError
from penstock.spark.fetching import RangeReader
from penstock.spark.jobs.mirror.divergence import LOST, Overlap, check_copies, check_copy
from penstock.spark.jobs.mirror.topics import Ends, Pair
from penstock.spark.offsets import OffsetRange
from penstock.spark.options import Fetching, parse_batch
from penstock.spark.steps import reached

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
    shared_from: int = 0  # the first offset that the source and the mirror both have

    @property
    def offsets(self) -> int:
        return max(0, self.end - self.start)

    def overlap(self, mirror_end: int) -> Overlap:
        return Overlap(self.source, self.target, self.shared_from, mirror_end)


Task: TypeAlias = tuple[Span, Location]


class Done(NamedTuple):
    """What one task wrote."""

    place: TopicPartition
    next_offset: int
    batches: int
    records: int
    size_bytes: int


class Request(NamedTuple):
    """Batches that are sent together."""

    next_offset: int
    batch_count: int
    records: int
    leader_epoch: int  # of the last batch, at the source
    batches: memoryview


async def find_spans(
    ends: Ends, pairs: Sequence[Pair], *, allow_loss: bool, check_idle: bool = True
) -> list[Span]:
    """Asked of both ends' leaders. JobError: a mirror is no copy, or the source has lost what comes next.

    `check_idle`: also compare the records of partitions that have nothing to copy. Tasks do it for the others.
    """
    spans = await _spans(ends, pairs)
    for _ in range(_ATTEMPTS):
        if all(span.mirror_end <= span.end for span in spans):
            break
        await asyncio.sleep(_PAUSE_S)
        spans = await _spans(ends, pairs)
    for span in spans:
        _check(span, allow_loss)
    if check_idle:
        idle = [span.overlap(span.mirror_end) for span in spans if not span.offsets]
        await check_copies(ends.source, ends.target, idle)
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
            mirror = state.partitions[index]
            spans.append(
                Span(
                    place,
                    TopicPartition(pair.target, index),
                    state.topic_id,
                    mirror.log_end_offset,
                    max(mirror.log_end_offset, earliest[place].offset),
                    latest[place].offset,
                    max(mirror.log_start_offset, earliest[place].offset),
                )
            )
    return spans


def _check(span: Span, allow_loss: bool) -> None:
    if span.mirror_end > span.end:
        raise JobError(
            f"mirror {span.target} ends at offset {span.mirror_end} and its source at {span.end}: {LOST} mirror has; "
            "promote the mirror to keep its records, or delete it at the target to begin anew"
        )
    if 0 < span.mirror_end < span.start and not allow_loss:
        raise JobError(
            f"{span.source} begins at offset {span.start} now, and the mirror ends at {span.mirror_end}: retention "
            "was faster than the job; to go on with a gap, give --allow-data-loss"
        )


def copy(
    session: Any, bootstrap: str, target: str, spans: Sequence[Span], *, allow_loss: bool
) -> list[Done]:
    """Returns when all in-sync replicas of the mirrors have everything. No byte of it goes through the JVM."""
    due = [span for span in spans if span.offsets]
    if not due:
        return []
    how, tasks = plan(bootstrap, due, allow_loss=allow_loss)
    work = partial(copy_span, how, target)
    done: list[Done] = session.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
    return done


def plan(bootstrap: str, due: Sequence[Span], *, allow_loss: bool) -> tuple[Fetching, list[Task]]:
    """How to read, and from whom."""
    assigned: dict[str, list[int]] = {}
    for span in due:
        assigned.setdefault(span.source.topic, []).append(span.source.partition)
    options = parse_batch(
        {
            "kafka.bootstrap.servers": bootstrap,
            "assign": json.dumps(assigned),
            "failOnDataLoss": "false" if allow_loss else "true",
        }
    )
    cluster = Cluster(options.fetching)
    try:
        locations = cluster.partitions(options.subscription)
    finally:
        cluster.close()
    return options.fetching, [(span, locations[span.source]) for span in due]


def copy_span(how: Fetching, target: str, task: Task) -> Done:
    """Runs in a task."""
    span, location = task
    done = Done(span.target, span.mirror_end, 0, 0, 0)
    wanted = OffsetRange(span.source, span.start, span.end)
    with asyncio.Runner() as runner:
        source, mirror = runner.run(_opened(how.bootstrap, target))
        try:
            with RangeReader(wanted, location, how) as fetches:
                origin: tuple[int, int] | None = None  # connection and leader epoch
                for fetched in fetches:
                    connection, epoch = (
                        fetched.connection,
                        parse_header(fetched.records).leader_epoch,
                    )
                    if origin != (connection, epoch):
                        overlap = span.overlap(done.next_offset)
                        runner.run(check_copy(source, mirror, overlap))
                    for request in requests(fetched.records, span):
                        done = runner.run(_append(mirror, span, request, done))
                        epoch = request.leader_epoch
                    origin = connection, epoch
        finally:
            runner.run(source.close())
            runner.run(mirror.close())
    return done


async def _append(pool: Pool, span: Span, request: Request, done: Done) -> Done:
    reached("mirror:appending")
    try:
        await append(
            pool,
            span.target,
            request.batches,
            continues_at=done.next_offset,
            topic_id=span.topic_id,
        )
    except MirrorDiverged as error:
        raise JobError(
            f"{error.message}: {LOST} mirror has; promote the mirror to keep its records, or delete it at the target "
            "to begin anew"
        ) from error
    reached("mirror:appended")
    return Done(
        done.place,
        request.next_offset,
        done.batches + request.batch_count,
        done.records + request.records,
        done.size_bytes + len(request.batches),
    )


def requests(records: memoryview, span: Span) -> Iterator[Request]:
    """The batches of the span that were fetched, in requests of bounded size; a single one may be larger."""
    begin = end = next_offset = batch_count = record_count = epoch = 0
    for header, batch in split_batches(records):
        if header.last_offset >= span.end:
            break
        if header.last_offset < span.start:  # what is fetched begins with a whole batch
            begin = end = end + len(batch)
            continue
        if batch_count and end - begin + len(batch) > _REQUEST_BYTES:
            yield Request(next_offset, batch_count, record_count, epoch, records[begin:end])
            begin, batch_count, record_count = end, 0, 0
        end += len(batch)
        next_offset = header.last_offset + 1
        batch_count += 1
        record_count += header.record_count
        epoch = header.leader_epoch
    if batch_count:
        yield Request(next_offset, batch_count, record_count, epoch, records[begin:end])


async def _opened(source: str, target: str) -> tuple[Pool, Pool]:
    return Pool(source, client_id=_CLIENT_ID), Pool(target, client_id=_CLIENT_ID)
