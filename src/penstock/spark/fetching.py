"""Reads a range of one partition as raw bytes: while one fetch is decoded, a thread receives the next.

A leader that moves and a broker that restarts are waited for; offsets that are gone are an error, or a warning and a
step over them. Two buffers are all the memory there is, however long the range.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator
from struct import Struct
from types import TracebackType
from typing import Final, NamedTuple, Self

from penstock.client.errors import ClientError
from penstock.model.errors import BrokerError, ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.batch import HEADER_SIZE, LENGTH_PREFIX, MAGIC, parse_header
from penstock.spark.cluster import Location
from penstock.spark.connection import Buffer
from penstock.spark.leader import MOVED, Gone, Leader, OutOfRange
from penstock.spark.offsets import DataLoss, OffsetRange
from penstock.spark.options import Fetching
from penstock.wire.messages.fetch import (
    PartitionData,
)

_log: Final = logging.getLogger("penstock.spark")

_BUFFERS: Final = 2
_MAX_FETCH_BYTES: Final = 1 << 28
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_LEAVE_S: Final = 5.0
_LENGTH: Final = Struct(">i")
_MAGIC_AT: Final = 16


class Fetched(NamedTuple):
    """Batches from the one that has `position` on; the last may be cut off. The bytes are the reader's only until it goes on."""

    records: memoryview
    position: int
    aborted: list[tuple[int, int]]  # producer id and first offset
    connection: int = (
        0  # number of the connection that they came by: another one may be to another leader
    )


class RangeReader:
    """Iterate over it within `with`, once."""

    def __init__(self, wanted: OffsetRange, location: Location, how: Fetching) -> None:
        self._wanted = wanted
        self._how = how
        self._leader = Leader(wanted.partition, location, how)
        self._free: queue.SimpleQueue[Buffer | None] = queue.SimpleQueue()
        self._filled: queue.SimpleQueue[tuple[Buffer, Fetched] | BaseException | None] = (
            queue.SimpleQueue()
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-fetch", daemon=True)

    def __enter__(self) -> Self:
        for _ in range(_BUFFERS):
            self._free.put(Buffer())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._free.put(None)
        self._leader.abort()
        self._thread.join(_LEAVE_S)  # it may be connecting, and is no one's care any more

    def __iter__(self) -> Iterator[Fetched]:
        while (item := self._filled.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            buffer, fetched = item
            yield fetched
            self._free.put(buffer)

    def _run(self) -> None:
        try:
            self._fetch_all()
        except BaseException as error:  # noqa: BLE001  # raised where the range is read
            self._filled.put(error)
        else:
            self._filled.put(None)
        finally:
            self._leader.close()

    def _fetch_all(self) -> None:
        position = self._wanted.start
        while position < self._wanted.end and (buffer := self._free.get()) is not None:
            found = self._fetch(position, buffer)
            if found is None:
                return
            fetched, position = found
            self._filled.put((buffer, fetched))

    def _fetch(self, position: int, buffer: Buffer) -> tuple[Fetched, int] | None:
        """The next batches and where to go on after them; None if there are none to be had."""
        patience = _Patience(self._wanted.partition, self._how.poll_timeout_ms, self._stopping)
        size_bytes = self._how.fetch_bytes
        while not self._stopping.is_set():
            try:
                data = self._leader.fetch(position, size_bytes, buffer)
            except OutOfRange:
                resumed = self._step_over(position)
                if resumed is None:
                    return None
                if resumed == position:
                    patience.wait(f"offset {position} is there again")
                position = resumed
                continue
            except Gone as gone:
                self._lost(position, self._wanted.end, str(gone))
                return None
            except ClientError as error:
                patience.wait_after(error)
                continue
            records = data.records or memoryview(b"")
            assert isinstance(records, memoryview), "decoded records are a view of the frame"
            if not records:
                patience.wait(_nothing(position, data), pause=False)
                continue
            after = _offset_after(records, self._wanted.partition)
            if after is None:
                size_bytes = _larger(size_bytes, position, self._wanted.partition)
                continue
            aborted = [(t.producer_id, t.first_offset) for t in data.aborted_transactions or ()]
            fetched = Fetched(records, position, aborted, self._leader.connections)
            return fetched, max(position, after)
        return None

    def _step_over(self, position: int) -> int | None:
        """Where to read on instead; None: nothing of the range is left."""
        wanted = self._wanted
        try:
            first, end = self._leader.bounds()
        except Gone as gone:
            self._lost(position, wanted.end, str(gone))
            return None
        if position >= end or first >= wanted.end:
            self._lost(position, wanted.end, f"the log has offsets {first} to {end - 1} now")
            return None
        if position < first:
            self._lost(position, first, f"the log starts at offset {first} now")
        return max(position, first)

    def _lost(self, start: int, end: int, why: str) -> None:
        message = (
            f"{self._wanted.partition}: offsets {start} to {end - 1} cannot be read any more, {why}"
        )
        if self._how.fail_on_data_loss:
            raise DataLoss(
                f"{message}; to go on without them, set the option failOnDataLoss to false"
            )
        _log.warning("offsets-skipped because=%s reason=%s", "failOnDataLoss=false", message)


class _Patience:
    """Bounds how long one fetch may go without data, whatever the reason."""

    def __init__(
        self, partition: TopicPartition, timeout_ms: int, stopping: threading.Event
    ) -> None:
        self._partition = partition
        self._timeout_ms = timeout_ms
        self._end_s = time.monotonic() + timeout_ms / 1000
        self._pause_s = _FIRST_PAUSE_S
        self._stopping = stopping

    def wait_after(self, error: ClientError) -> None:
        if error.code not in MOVED:
            raise error
        self.wait(str(error))

    def wait(self, reason: str, *, pause: bool = True) -> None:
        """A broker that has nothing yet has waited already: no `pause` then."""
        if time.monotonic() >= self._end_s:
            raise ClientError(
                f"{self._partition}: nothing came in {self._timeout_ms} ms: {reason}",
                ErrorCode.REQUEST_TIMED_OUT,
            )
        if pause:
            self._stopping.wait(self._pause_s)
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


def _nothing(position: int, data: PartitionData) -> str:
    return (
        f"there is no record at offset {position} (high watermark {data.high_watermark}, "
        f"last stable offset {data.last_stable_offset})"
    )


def _larger(size_bytes: int, position: int, partition: TopicPartition) -> int:
    if size_bytes >= _MAX_FETCH_BYTES:
        raise ClientError(
            f"{partition}: the batch at offset {position} has more than {size_bytes} bytes",
            ErrorCode.RECORD_LIST_TOO_LARGE,
        )
    return min(size_bytes * 2, _MAX_FETCH_BYTES)


def _offset_after(records: memoryview, partition: TopicPartition) -> int | None:
    """One past the last offset of the last whole batch; None if not one is whole.

    Goes from length to length only: the records, and the checksums, are for whoever decodes them.
    """
    at, last, size = 0, None, len(records)
    length_at, unpack = LENGTH_PREFIX - _LENGTH.size, _LENGTH.unpack_from
    if size > _MAGIC_AT and (magic := records[_MAGIC_AT]) != MAGIC:
        raise BrokerError(
            f"{partition} has records of message format {magic}; only format 2 is read",
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        )
    while size - at >= HEADER_SIZE:
        end = at + LENGTH_PREFIX + unpack(records, at + length_at)[0]
        if end > size:
            break
        if end - at < HEADER_SIZE:
            raise BrokerError(f"{partition}: no batch at byte {at} of what was fetched")
        last, at = at, end
    return None if last is None else parse_header(records, last).next_offset
