"""Log compaction as a function over batches: of each key the latest record stays, where it is.

Offsets never move: a batch keeps its first and last offset, whatever is taken out of it. What does not
decode is kept as it is. The rules, and the order of the questions, are those of Kafka's cleaner.
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.model.errors import CorruptBatch
from penstock.records.batch import (
    APPEND_TIME_BIT,
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    BatchHeader,
    Bytes,
    verify,
)
from penstock.records.builder import assemble, varint
from penstock.records.compression import DECOMPRESSED_LIMIT_BYTES, Codec, compress
from penstock.records.control import decode_marker
from penstock.records.record import VARLONG_BITS, Span, read_varint, records_bytes, scan

KEY_BYTES: Final = (
    200  # what one key takes in an OffsetMap: digest, offset and its share of the table
)
_DIGEST_BYTES: Final = 16  # two keys of one log do not meet in 128 bits


class AbortedRange(NamedTuple):
    """A transaction that was aborted, from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker


class ProducerTail(NamedTuple):
    """Where an active producer's last batch is: compaction keeps it, empty if need be.

    With it go the last sequence, or, if nothing but a marker is left, the epoch that fences.
    """

    epoch: int
    last_data_offset: int | None


class Rules(NamedTuple):
    now_ms: int
    delete_retention_ms: int
    upto_offset: int  # one past what this round may touch; all transactions below it have ended
    producers: Mapping[int, ProducerTail]
    # One past the last offset of each new segment, and of each leader epoch: they must still end there. Who copies
    # the log learns from its batches alone where an epoch ends, and tells others to cut their logs by that.
    ends: Container[int]
    decompressed_limit_bytes: int = DECOMPRESSED_LIMIT_BYTES


class Statistics:
    """What a round did. Unreadable batches were kept, and are for someone to look at."""

    __slots__ = ("keyless_records", "read_bytes", "unreadable_batches", "written_bytes")

    def __init__(self) -> None:
        self.read_bytes = 0
        self.written_bytes = 0
        self.unreadable_batches = 0
        self.keyless_records = 0


class OffsetMap:
    """The latest offset of every key from the first dirty offset up to `upto_offset`, by digest.

    It holds at most `max_keys`, save that one batch always fits, so that every round gets on.
    """

    __slots__ = ("_latest", "max_keys", "upto_offset")

    def __init__(self, max_keys: int) -> None:
        self._latest: dict[bytes, int] = {}
        self.max_keys = max_keys
        self.upto_offset = 0

    def __len__(self) -> int:
        return len(self._latest)

    def fill(
        self,
        batches: Iterable[tuple[BatchHeader, memoryview]],
        transactions: "Transactions",
        first_dirty_offset: int,
        rules: Rules,
    ) -> None:
        """Takes in the keys of the dirty batches, until there are no more or no room is left."""
        self.upto_offset = first_dirty_offset
        for header, batch in batches:
            if header.next_offset <= first_dirty_offset:
                continue
            if header.next_offset > rules.upto_offset:
                break
            keys = _keys(header, batch, transactions, rules)
            if self._latest and not self._has_room_for(keys):
                return
            self._latest.update(keys)
            self.upto_offset = header.next_offset
        self.upto_offset = max(self.upto_offset, rules.upto_offset)

    def _has_room_for(self, keys: Mapping[bytes, int]) -> bool:
        room = self.max_keys - len(self._latest)
        return len(keys) <= room or sum(key not in self._latest for key in keys) <= room

    def is_latest(self, key: Bytes, offset: int) -> bool:
        return offset >= self._latest.get(_digest(key), -1)


def _digest(key: Bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _keys(
    header: BatchHeader, batch: memoryview, transactions: "Transactions", rules: Rules
) -> dict[bytes, int]:
    """The keys of a batch and the last offset of each; none if it does not count or does not decode."""
    try:
        verify(batch, header)
        if header.is_control or transactions.saw_data(header):
            return {}
        data = records_bytes(batch, header, rules.decompressed_limit_bytes)
        return {
            _digest(data[span.key_start : span.key_end]): header.base_offset + span.offset_delta
            for span in scan(data, header)
            if span.key_end >= 0
        }
    except CorruptBatch:
        return {}


class Transactions:
    """Which batches were aborted, and which markers have nothing left before them.

    Fed with every batch of a log in order, from its start.
    """

    __slots__ = ("_aborted", "_next", "_open", "_seen", "kept")

    def __init__(self, aborted: Iterable[AbortedRange]) -> None:
        self._aborted = sorted(aborted, key=lambda one: one.first_offset)
        self._next = 0
        self._open: dict[int, AbortedRange] = {}  # by producer: the latest to have begun
        self._seen: set[int] = set()  # producers with data since their last marker
        self.kept: list[AbortedRange] = []  # those whose marker passed, with data before it

    def saw_data(self, header: BatchHeader) -> bool:
        """Whether the batch is of an aborted transaction."""
        if not header.is_transactional:
            return False
        self._advance(header.last_offset)
        self._seen.add(header.producer_id)
        aborted = self._open.get(header.producer_id)
        return aborted is not None and header.last_offset <= aborted.last_offset

    def saw_marker(self, header: BatchHeader) -> bool:
        """Whether the marker ends a transaction of which no batch is left."""
        self._advance(header.last_offset)
        has_data = header.producer_id in self._seen
        self._seen.discard(header.producer_id)
        aborted = self._open.get(header.producer_id)
        if has_data and aborted is not None and aborted.last_offset == header.last_offset:
            self.kept.append(aborted)
        return not has_data

    def _advance(self, offset: int) -> None:
        aborted = self._aborted
        while self._next < len(aborted) and aborted[self._next].first_offset <= offset:
            self._open[aborted[self._next].producer_id] = aborted[self._next]
            self._next += 1


def compact(
    batches: Iterable[tuple[BatchHeader, memoryview]],
    latest: OffsetMap,
    transactions: Transactions,
    rules: Rules,
    statistics: Statistics,
) -> Iterator[tuple[BatchHeader, Bytes]]:
    """What is left of the batches. The header yielded is the one before: offsets are the same."""
    cleaning = _Cleaning(latest, transactions, rules, statistics)
    for header, batch in batches:
        statistics.read_bytes += len(batch)
        left: Bytes | None
        try:
            verify(batch, header)
            left = (
                cleaning.control(header, batch)
                if header.is_control
                else cleaning.data(header, batch)
            )
        except CorruptBatch:
            statistics.unreadable_batches += 1
            left = batch
        if left is not None:
            statistics.written_bytes += len(left)
            yield header, left


class _Cleaning(NamedTuple):
    latest: OffsetMap
    transactions: Transactions
    rules: Rules
    statistics: Statistics

    def data(self, header: BatchHeader, batch: memoryview) -> Bytes | None:
        if self.transactions.saw_data(header):
            return self._without_records(header)
        data = records_bytes(batch, header, self.rules.decompressed_limit_bytes)
        spans = scan(data, header)
        survivors = [span for span in spans if self._survives(header, data, span)]
        if not survivors:
            return self._without_records(header)
        if header.delete_horizon_ms is None and any(span.value_end < 0 for span in survivors):
            return _rewrite(header, data, survivors, self._new_horizon_ms())
        if len(survivors) == len(spans):
            return batch
        return _rewrite(header, data, survivors, None)

    def control(self, header: BatchHeader, batch: memoryview) -> Bytes | None:
        """A marker goes once its transaction's data and then its delete horizon are behind.

        One that carries an active producer's epoch stays whole: readers of state skip empty ones.
        """
        if header.record_count == 0:
            return self._without_records(header)
        if decode_marker(batch, header) is None or not self.transactions.saw_marker(header):
            return batch
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            data = records_bytes(batch, header, self.rules.decompressed_limit_bytes)
            return _rewrite(header, data, scan(data, header), self._new_horizon_ms())
        if self.rules.now_ms < horizon_ms or self._is_tail(header):
            return batch
        return self._without_records(header)

    def _survives(self, header: BatchHeader, data: bytes, span: Span) -> bool:
        offset = header.base_offset + span.offset_delta
        if offset >= self.latest.upto_offset:
            return True
        if span.key_end < 0:
            self.statistics.keyless_records += 1
            return False
        if not self.latest.is_latest(data[span.key_start : span.key_end], offset):
            return False
        horizon_ms = header.delete_horizon_ms
        return span.value_end >= 0 or horizon_ms is None or self.rules.now_ms < horizon_ms

    def _new_horizon_ms(self) -> int:
        return self.rules.now_ms + self.rules.delete_retention_ms

    def _without_records(self, header: BatchHeader) -> Bytes | None:
        """Nothing, or an empty batch where something still hangs on its header."""
        if header.next_offset not in self.rules.ends and not self._is_tail(header):
            return None
        attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
        timestamps = (NO_TIMESTAMP, header.max_timestamp_ms)
        return _renew(header, (attributes, header.last_offset_delta, *timestamps), 0, b"")

    def _is_tail(self, header: BatchHeader) -> bool:
        tail = self.rules.producers.get(header.producer_id)
        if tail is None:
            return False
        if tail.last_data_offset is not None:
            return header.last_offset == tail.last_data_offset
        return header.is_control and header.producer_epoch == tail.epoch


def _rewrite(
    header: BatchHeader, data: bytes, survivors: list[Span], horizon_ms: int | None
) -> bytearray:
    """The batch with these records only, and a delete horizon if it gets one now (KIP-534)."""
    attributes, first_timestamp_ms = header.attributes, header.first_timestamp_ms
    if horizon_ms is None:
        pieces = [data[span.start : span.end] for span in survivors]
    else:
        attributes |= DELETE_HORIZON_BIT
        first_timestamp_ms = horizon_ms
        pieces = [
            _shifted(data, span, header.first_timestamp_ms - horizon_ms) for span in survivors
        ]
    max_timestamp_ms = header.max_timestamp_ms
    if not attributes & APPEND_TIME_BIT:
        max_delta_ms = max(span.timestamp_delta_ms for span in survivors)
        max_timestamp_ms = header.first_timestamp_ms + max_delta_ms
    packed = compress(Codec(header.codec), b"".join(pieces))
    extent = (attributes, header.last_offset_delta, first_timestamp_ms, max_timestamp_ms)
    return _renew(header, extent, len(survivors), packed)


def _shifted(data: bytes, span: Span, shift_ms: int) -> bytes:
    """A record whose timestamp delta is larger by `shift_ms`."""
    _, body = read_varint(data, span.start)
    _, rest = read_varint(data, body + 1, VARLONG_BITS)
    delta = varint(span.timestamp_delta_ms + shift_ms)
    shifted = data[body : body + 1] + delta + data[rest : span.end]
    return varint(len(shifted)) + shifted


def _renew(
    header: BatchHeader, extent: tuple[int, int, int, int], record_count: int, data: bytes
) -> bytearray:
    place = (header.base_offset, header.leader_epoch)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    return assemble(place, extent, producer, record_count, data)
