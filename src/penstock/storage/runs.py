"""Batches that arrive together for one log: whether they may be written as one."""

from collections.abc import Sequence
from typing import NamedTuple

from penstock.model.errors import BrokerError
from penstock.records.batch import NO_TIMESTAMP, BatchHeader
from penstock.storage.limits import Limits
from penstock.storage.producers import SEQUENCE_COUNT, Producers


class Run(NamedTuple):
    """Batches that may all enter a log, in this order and as they are."""

    batches: Sequence[memoryview]
    headers: Sequence[BatchHeader]
    size_bytes: int
    max_timestamp_ms: int


def check_run(
    batches: Sequence[memoryview], limits: Limits, producers: Producers, now_ms: int, *, zstd: bool
) -> Run | None:
    """Whether they may be a run; None: not as they are.

    None of them is known to the log already. Who is refused, and why, shows when each is tried by itself.
    """
    if limits.opens_batches:
        return None
    headers: list[BatchHeader] = []
    latest: dict[int, BatchHeader] = {}  # of each producer
    size_bytes = 0
    max_timestamp_ms = NO_TIMESTAMP
    try:
        for records in batches:
            header = limits.check(records, now_ms, transactional=False, zstd=zstd)
            producer_id = header.producer_id
            if producer_id >= 0:
                before = latest.get(producer_id)
                if before is None:
                    if producers.check(header) is not None:
                        return None
                elif not _follows(header, before):
                    return None
                latest[producer_id] = header
            headers.append(header)
            size_bytes += len(records)
            if header.max_timestamp_ms > max_timestamp_ms:
                max_timestamp_ms = header.max_timestamp_ms
    except BrokerError:
        return None
    return Run(batches, headers, size_bytes, max_timestamp_ms)


def _follows(header: BatchHeader, before: BatchHeader) -> bool:
    """Whether a batch is its producer's next after that one, in the same epoch."""
    return (
        header.producer_epoch == before.producer_epoch
        and header.base_sequence == (before.last_sequence + 1) % SEQUENCE_COUNT
    )
