"""Detect that a source lost records which its mirror has, and used their offsets again.

The ends of the two logs do not show that once the source has grown past the mirror's end. So this
module compares records at equal offsets. Compaction and retention remove records from either log at
any time: an offset that only one log has proves nothing, and a difference is only reported where
both logs have a record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

from penstock.client.errors import check
from penstock.client.pool import Deadline, Leader, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.batch import split_batches
from penstock.records.record import Record, decode_records
from penstock.spark.errors import JobError
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

LOST: Final = "the source has lost records that the"  # jobs find it in what a task's error says
_MARKS: Final = 16  # records that a translated link remembers of each partition
_NEW_MARKS: Final = 4  # of one micro-batch
_IDLE_CHECK_S: Final = 60.0
_FETCH_BYTES: Final = 16 << 10  # a broker sends one whole batch at least, however large
_LAST_WITH_NAMES: Final = 12  # later versions of Fetch name topics by their ids
_CHECKS_AT_ONCE: Final = 16
_REASON: Final = "an unclean election or a restored backup may be the cause"

Fingerprints: TypeAlias = Mapping[int, int]  # of records, by their offsets
Read: TypeAlias = Callable[[int], Awaitable[Fingerprints]]

_FACTS: Final = Struct(">q?i")  # timestamp, whether it is a control record, number of headers
_LENGTH: Final = Struct(">i")


class Comparison(NamedTuple):
    """The result of comparing two pieces of log."""

    same_at: int | None  # the last offset before `differs_at` at which both have the same record
    differs_at: int | None  # the first offset at which their records differ

    @property
    def proves_nothing(self) -> bool:
        return self.same_at is None and self.differs_at is None


def fingerprints(batches: memoryview) -> dict[int, int]:
    """Return the fingerprints of all records in whole batches, control records included."""
    found: dict[int, int] = {}
    for header, batch in split_batches(batches):
        for record in decode_records(batch, header):
            found[record.offset] = _fingerprint(record, is_control=header.is_control)
    return found


def _fingerprint(record: Record, *, is_control: bool) -> int:
    """Hash what compaction keeps of a record: everything but its batch."""
    digest = blake2b(digest_size=8)
    digest.update(_FACTS.pack(record.timestamp_ms, is_control, len(record.headers)))
    parts: list[bytes | None] = [record.key, record.value]
    for name, value in record.headers:
        parts += [name.encode("utf-8", "surrogateescape"), value]
    for part in parts:
        digest.update(_LENGTH.pack(-1 if part is None else len(part)))
        digest.update(part or b"")
    return int.from_bytes(digest.digest())


def reader(pool: Pool, partition: TopicPartition) -> Read:
    """Return a function that reads some records, from the batch that has an offset on."""

    async def read(offset: int) -> Fingerprints:
        asked = FetchPartition(
            partition=partition.partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            topics=[FetchTopic(topic=partition.topic, partitions=[asked])],
        )

        async def attempt(deadline: Deadline) -> Fingerprints:
            answer = await pool.once(
                Leader(partition), request, FetchResponse, deadline, at_most=_LAST_WITH_NAMES
            )
            check(answer.error_code, None, str(partition))
            data = answer.responses[0].partitions[0]
            if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return {}
            check(data.error_code, None, str(partition))
            records = data.records or memoryview(b"")
            assert isinstance(records, memoryview), "decoded records are a view of the frame"
            return fingerprints(records)

        return await pool.retry(attempt, patient=True)

    return read


class IdleChecks:
    """Decide when to check partitions that have nothing to copy: in a job's first round, then once a minute.

    Partitions that have something to copy are checked each time.
    """

    def __init__(self) -> None:
        self._checked_s: float | None = None

    def are_due(self, now_s: float) -> bool:
        if self._checked_s is not None and now_s - self._checked_s < _IDLE_CHECK_S:
            return False
        self._checked_s = now_s
        return True


# Two logs ----------------------------------------------------------------------------------------


async def find_difference(source: Read, mirror: Read, start: int, end: int) -> int | None:
    """Return the first offset in `start` to `end` at which the logs are known to differ; None if there is none.

    1. Compare the last batch before `end`: a source that lost its tail has another batch there.
    2. If compaction removed it from one of the logs, go back, twice as far each time, to records that both have.
    3. If they differ, search for the first difference.
    """
    if start >= end:
        return None
    distance = 1
    while True:
        at = max(start, end - distance)
        found = await _compare(source, mirror, at, end)
        if not found.proves_nothing or at == start:
            break
        distance *= 2
    if found.differs_at is None:
        return None
    return await _first_difference(source, mirror, start, found.differs_at)


async def _compare(source: Read, mirror: Read, at: int, end: int) -> Comparison:
    return compare(await source(at), await mirror(at), end)


def compare(one: Fingerprints, other: Fingerprints, end: int) -> Comparison:
    """Compare the records before `end` that both have."""
    same_at = None
    for offset in sorted(one.keys() & other.keys()):
        if offset >= end:
            break
        if one[offset] != other[offset]:
            return Comparison(same_at, offset)
        same_at = offset
    return Comparison(same_at, None)


async def _first_difference(source: Read, mirror: Read, low: int, high: int) -> int:
    """Search between `low` and `high`, at which the logs differ. Once they differ they do so to the end."""
    while low < high:
        middle = (low + high) // 2
        found = await _compare(source, mirror, middle, high)
        if found.differs_at is None:
            low = max(middle, found.same_at or 0) + 1
        elif found.same_at is not None:
            return found.differs_at
        else:
            high = found.differs_at
    return high


class Overlap(NamedTuple):
    """The offsets of a partition that its source and its mirror both have."""

    source: TopicPartition
    mirror: TopicPartition
    start: int
    end: int  # of the mirror


async def check_copy(source: Pool, mirror: Pool, overlap: Overlap) -> None:
    """Raise JobError if the mirror is no copy of the source."""
    offset = await find_difference(
        reader(source, overlap.source),
        reader(mirror, overlap.mirror),
        overlap.start,
        overlap.end,
    )
    if offset is not None:
        raise JobError(
            f"mirror {overlap.mirror} and its source {overlap.source} have different records at offset {offset}, "
            f"and the mirror ends at {overlap.end}: {LOST} mirror has, and has used their offsets again ({_REASON}); "
            "promote the mirror to keep its records, or delete it at the target to begin anew"
        )


async def check_copies(source: Pool, mirror: Pool, overlaps: Iterable[Overlap]) -> None:
    """Check several partitions at the same time."""
    await at_once(check_copy(source, mirror, overlap) for overlap in overlaps)


async def at_once(checks: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all, some at a time; raise the first error as it is."""
    limit = asyncio.Semaphore(_CHECKS_AT_ONCE)

    async def one(work: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await work

    try:
        async with asyncio.TaskGroup() as group:
            for work in checks:
                group.create_task(one(work))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


# A log and what is remembered of it --------------------------------------------------------------


async def new_marks(source: Read, start: int, end: int) -> dict[int, int]:
    """Return marks of the last records before `end`: fingerprints to compare the source with later.

    Take them before the records are read. If the source loses its tail in between, the marks are of records that it
    lost, and the next check finds that.
    """
    if start >= end:
        return {}
    found = await source(end - 1)
    kept = sorted(offset for offset in found if start <= offset < end)[-_NEW_MARKS:]
    return {offset: found[offset] for offset in kept}


def joined_marks(before: Fingerprints, new: Fingerprints) -> dict[int, int]:
    """Return the newest marks. Older ones are kept too: compaction may remove the records of the newest."""
    every = {**before, **new}
    return {offset: every[offset] for offset in sorted(every)[-_MARKS:]}


async def check_marks(
    source: Read, marks: Fingerprints, start: int, names: tuple[TopicPartition, TopicPartition]
) -> None:
    """Raise JobError if the source has another record at the offset of a mark.

    `start`: the first offset that the source has. `names`: the partitions of the source and of the target.
    """
    left = {offset: mark for offset, mark in marks.items() if offset >= start}
    while left:
        newest = max(left)
        found = compare(await source(newest), left, newest + 1)
        if found.differs_at is not None:
            place, copy = names
            raise JobError(
                f"{place} of the source has another record at offset {found.differs_at} than when it was copied to "
                f"{copy}: {LOST} copy has, and has used their offsets again ({_REASON}); "
                "promote the copy to keep its records, or delete it at the target to begin anew"
            )
        if found.same_at is not None:
            return
        del left[newest]
