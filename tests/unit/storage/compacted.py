"""A compacted log on disk, fed with histories, and rounds of compaction over it."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from penstock.model.configs import TopicConfig, resolve_topic_config
from penstock.model.ids import TopicId
from penstock.records.batch import split_batches
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from penstock.storage import cleaner, swap
from penstock.storage.cleaner import Job, Outcome
from penstock.storage.compaction import Allowance, Candidate, Round, assess
from penstock.storage.files import Disk, OpenFiles
from penstock.storage.log import Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past
from penstock.storage.swap import Swap
from penstock.storage.worker import Worker
from tests.unit.records.histories import History, Step

TOPIC_ID = TopicId(b"compacted-topic!")
ALLOWANCE = Allowance(map_bytes=1 << 20, io_bytes_per_second=1e18)
NOW_MS = 1_000_000


def config(**overrides: Any) -> TopicConfig:
    settings = {"cleanup.policy": "compact", "delete.retention.ms": "100"}
    settings |= {name.replace("_", "."): str(value) for name, value in overrides.items()}
    return resolve_topic_config(settings, {})


def open_compacted(
    path: str, past: Past | None = None, topic_config: TopicConfig | None = None
) -> Log:
    past = past or Past(Ending.CLEAN, 0)
    return open_log(OpenFiles(), f"{path}/t", 0, TOPIC_ID, topic_config or config(), past)


def write(log: Log, batches: Sequence[bytes | bytearray], roll: bool = True) -> None:
    """Append as a follower does, and close the segment."""
    for batch in batches:
        log.append_as_follower(memoryview(batch))
    if roll:
        log.roll()


def write_keys(log: Log, *segments: Sequence[tuple[bytes, bytes | None]]) -> History:
    """One segment each, one batch per record, after what the log has."""
    history = History(next_offset=log.next_offset)
    for segment in segments:
        batches = len(history.batches)
        for key, value in segment:
            history.append(Step(-1, False, None, Codec.NONE, [(key, value, 1)]))
        write(log, history.batches[batches:])
    return history


@contextmanager
def without_syncs() -> Iterator[None]:
    """What is tested here is not durability, and disks are slow."""
    with (
        patch.object(os, "fsync", lambda _: None),
        patch.object(Disk, "fdatasync", staticmethod(lambda _: None)),
    ):
        yield


class InProcess(Worker):
    """The same work without the process, so that thousands of rounds take seconds."""

    def clean(self, job: Job) -> Outcome:
        return cleaner.clean(job)

    def prepare(self, directory: str, swaps: Sequence[Swap], interval_bytes: int) -> None:
        for change in swaps:
            swap.prepare(directory, change, interval_bytes)


def candidate_of(log: Log, now_ms: int = NOW_MS, stable_offset: int | None = None) -> Candidate:
    found = assess(log, log.next_offset if stable_offset is None else stable_offset, now_ms)
    assert found is not None
    return found


def begin(
    log: Log,
    now_ms: int = NOW_MS,
    stable_offset: int | None = None,
    allowance: Allowance = ALLOWANCE,
) -> Round:
    return Round(candidate_of(log, now_ms, stable_offset), allowance, InProcess(), now_ms)


def run(round_: Round) -> Outcome:
    outcome = round_.clean()
    assert round_.is_current()
    round_.prepare()
    assert round_.install()
    round_.finish()
    return outcome


def read_bytes(log: Log) -> bytes:
    """All that a consumer would be sent, from the log's start to its end."""
    offset = log.start_offset
    pieces: list[bytes] = []
    while True:
        found = log.read(offset, 300, upto_offset=log.next_offset)
        if not found.size_bytes:
            return b"".join(pieces)
        pieces += [piece.read() for piece in found.slices]
        offset = found.next_offset


def read_records(log: Log) -> list[Record]:
    return [
        record
        for header, batch in split_batches(memoryview(read_bytes(log)))
        if not header.is_control
        for record in decode_records(batch)
    ]


def read_offsets(log: Log) -> list[int]:
    return [record.offset for record in read_records(log)]


def extents(log: Log) -> list[tuple[int, int]]:
    return [(segment.base_offset, segment.next_offset) for segment in log.segments]
