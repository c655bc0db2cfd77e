"""The log under a coordinator's shard: what one tick writes goes in together, and is read back in slices.

Reading lets the loop go on in between, however long the log is.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.replica_manager import ReplicaManager
from penstock.records.batch import BatchHeader, split_batches
from penstock.records.builder import build_batch
from penstock.records.control import ControlType, decode_marker
from penstock.records.record import Record, decode_records
from penstock.storage.files import FileSlice
from penstock.storage.log import Origin

MAX_BATCH_BYTES: Final = 128 << 10  # a batch is decoded without a pause, so it must not be long
_READ_BYTES: Final = 1 << 20
_RECORD_OVERHEAD_BYTES: Final = 24
_SLICE_RECORDS: Final = 1000  # applied between two chances for others

Pair = tuple[bytes, bytes | None]


class Replay(Protocol):
    """Becomes what the records say, one after the other. Raises UnknownRecord for what it cannot read."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record outside of any transaction."""

    def apply_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """One record of a transaction that is not over yet."""

    def end_transaction(self, producer_id: int, *, committed: bool) -> None: ...

    def finish(self) -> None:
        """There are no more records."""


def append(partition: Partition, records: Sequence[Pair], wall_ms: int) -> int:
    """Put the records at the end of the log; the offset after the last of them.

    Whether enough replicas are in sync was asked before memory changed, and is not asked again: what was
    taken then is in the log, and is committed once there are enough of them.
    """
    next_offset = -1
    for batch in batches(records, wall_ms):
        view = memoryview(batch)
        appended = partition.append(view, now_ms=wall_ms, origin=Origin.COORDINATOR)
        next_offset = appended.last_offset + 1
    return next_offset


def batches(
    records: Sequence[Pair], wall_ms: int, producer: tuple[int, int] | None = None
) -> list[bytearray]:
    """The records as batches; in a transaction of that producer (id and epoch), if there is one."""
    build: Callable[[list[Record]], bytearray] = build_batch
    if producer is not None:
        build = partial(
            build_batch, producer_id=producer[0], producer_epoch=producer[1], transactional=True
        )
    built: list[bytearray] = []
    run: list[Record] = []
    size = 0
    for key, value in records:
        record_bytes = len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES
        if run and size + record_bytes > MAX_BATCH_BYTES:
            built.append(build(run))
            run, size = [], 0
        run.append(Record(len(run), wall_ms, key, value))
        size += record_bytes
    if run:
        built.append(build(run))
    return built


async def read_all(
    partition: Partition, replicas: ReplicaManager, replay: Replay, *, is_wanted: Callable[[], bool]
) -> int:
    """Feed every record to `replay`, up to the end of the log at the moment of the return; how many there were.

    Also what is not committed yet: this broker leads, so it will be, and nothing may contradict it.
    Stop early, and leave `replay` unfinished, when it is no longer wanted.
    """
    count = 0
    offset = partition.log.start_offset
    while offset < partition.log.next_offset:
        found = partition.read_all(offset, _READ_BYTES)
        if not found.slices:
            break
        for piece in found.slices:
            data = await _bytes_of(piece, replicas)
            for header, batch in split_batches(memoryview(data)):
                if header.next_offset > offset:
                    count += await _apply(header, batch, replay)
                    offset = header.next_offset
        if not is_wanted():
            return count
    replay.finish()
    return count


async def _bytes_of(piece: FileSlice, replicas: ReplicaManager) -> bytes:
    """Read in a thread: it may have to come from the disk."""
    data: list[bytes] = []
    try:
        await replicas.run_in_thread(lambda: data.append(piece.read()))
    finally:
        piece.release()
    return data[0]


async def _apply(header: BatchHeader, batch: memoryview, replay: Replay) -> int:
    if header.is_control:
        marker = decode_marker(batch, header)
        if marker is not None:
            committed = marker.type is ControlType.COMMIT
            replay.end_transaction(header.producer_id, committed=committed)
        return 0
    records = decode_records(batch, header)
    for start in range(0, len(records), _SLICE_RECORDS):
        for _, _, key, value, _ in records[start : start + _SLICE_RECORDS]:
            if header.is_transactional:
                replay.apply_pending(header.producer_id, key or b"", value)
            else:
                replay.apply(key or b"", value)
        await asyncio.sleep(0)
    return len(records)
