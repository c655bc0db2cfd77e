"""What a log knows of its producers: no batch enters twice, out of order, or from a fenced epoch.

The state at an offset is a function of the batches below it: a snapshot and a replay give it back. Only how long a
producer has been idle is not. It is counted, not read off a clock: clocks jump, records may be of any time, and who
is forgotten too early may be taken twice.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode, InvalidProducerEpoch, OutOfOrderSequence
from penstock.records.batch import NO_SEQUENCE, TRANSACTIONAL_BIT, BatchHeader
from penstock.records.control import ControlType, EndMarker, Promotion
from penstock.storage.txn_index import AbortedEntry

KEPT_BATCHES: Final = 5  # a producer has at most 5 requests in flight
PRODUCERS_LIMIT: Final = 100_000  # in one partition; the longest idle go first
NO_TRANSACTION: Final = -1
_AT_WORK: Final = -1  # it wrote since
_ENDED_LIMIT: Final = 10_000  # transactions whose markers may not be replicated yet
SEQUENCE_COUNT: Final = 1 << 31  # sequences go from 0 to 2^31 - 1, and start again

_new_tuple = tuple.__new__


class KnownBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int  # the largest of its records


class ProducerInfo(NamedTuple):
    """One line of DescribeProducers."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    txn_first_offset: int


class Producer:
    """One producer's latest batches, of its current epoch."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "ends",
        "epoch",
        "idle_ms",
        "last_offset",
        "last_timestamp_ms",
        "next_sequence",
        "txn_first_offset",
    )

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches: list[KnownBatch] = []
        self.last_timestamp_ms = -1  # of what it last wrote; to be shown, nothing hangs on it
        self.last_offset = -1  # where that begins, if it was seen; not kept
        self.idle_ms = _AT_WORK  # for how long it had written nothing when that was last looked at
        self.coordinator_epoch = -1
        self.ends = 0  # markers since it is known here; not kept
        self.txn_first_offset = NO_TRANSACTION

    def enter_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_sequence = 0
        self.batches = []


class Producers:
    """Every producer of one log. The Log that owns it is its only caller."""

    __slots__ = ("_ended", "_known", "_open", "promotion")

    def __init__(self) -> None:
        self._known: dict[int, Producer] = {}
        self._open: dict[int, int] = {}  # first offsets of open transactions, in order
        self._ended: list[tuple[int, int]] = []  # first offset, marker: maybe not yet replicated
        self.promotion: Promotion | None = None  # the last time that the log ceased to be a mirror

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._known

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._known.items())

    def restore(
        self, known: Iterable[tuple[int, Producer]], promotion: Promotion | None = None
    ) -> None:
        """Become exactly this."""
        self._known = dict(known)
        self.promotion = promotion
        self._ended = []
        in_order = sorted(
            (producer.txn_first_offset, producer_id)
            for producer_id, producer in self._known.items()
            if producer.txn_first_offset != NO_TRANSACTION
        )
        self._open = {producer_id: first for first, producer_id in in_order}

    # Before an append ------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> KnownBatch | None:
        """May a client's batch follow what is known? The same batch from before, if it is a duplicate."""
        producer = self._known.get(header.producer_id)
        if producer is None:
            return None  # first seen, or expired: any sequence may be its next (KIP-360)
        if producer.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL_BIT:
            raise BrokerError(
                f"producer {header.producer_id} has a transaction open since offset "
                f"{producer.txn_first_offset}; the batch is not of it",
                ErrorCode.INVALID_TXN_STATE,
            )
        if header.producer_epoch != producer.epoch:
            self.check_epoch(header)
            if header.base_sequence == 0:
                return None
            raise OutOfOrderSequence(
                f"producer {header.producer_id} begins epoch {header.producer_epoch} with sequence "
                f"{header.base_sequence}, not 0"
            )
        if header.base_sequence == producer.next_sequence:
            return None
        last_sequence = header.last_sequence
        for batch in producer.batches:
            if batch[0] == header.base_sequence and batch[1] == last_sequence:
                return batch
        raise OutOfOrderSequence(
            f"producer {header.producer_id} epoch {producer.epoch} sent sequence "
            f"{header.base_sequence}; {producer.next_sequence} is next"
        )

    def check_epoch(self, header: BatchHeader) -> None:
        producer = self._known.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} is at epoch {producer.epoch}, "
                f"the batch at {header.producer_epoch}"
            )

    def check_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        self.check_epoch(header)
        producer = self._known.get(header.producer_id)
        if producer is not None and marker.coordinator_epoch < producer.coordinator_epoch:
            raise BrokerError(
                f"producer {header.producer_id}: a marker of coordinator epoch "
                f"{marker.coordinator_epoch} after one of {producer.coordinator_epoch}",
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )

    def has_entered(self, producer_id: int, epoch: int) -> bool:
        """Whether a marker that ends all older epochs is here already. Raises when it comes too late."""
        producer = self._known.get(producer_id)
        if producer is None or producer.epoch != epoch:
            return False
        if producer.txn_first_offset != NO_TRANSACTION:
            raise InvalidProducerEpoch(
                f"producer {producer_id} has begun a transaction in epoch {epoch}: a marker that ends"
                " older ones is late"
            )
        return True

    # After an append -------------------------------------------------------------------------

    def record(self, header: BatchHeader, base_offset: int, timestamp_ms: int, now_ms: int) -> None:
        """A data batch of a producer is in the log at `base_offset`."""
        producer = self._known.get(header.producer_id) or self._admit(header)
        if header.producer_epoch != producer.epoch:
            producer.enter_epoch(header.producer_epoch)
        producer.last_timestamp_ms = now_ms
        producer.last_offset = base_offset
        producer.idle_ms = _AT_WORK
        sequence = header.base_sequence
        if sequence != NO_SEQUENCE:
            delta = header.last_offset_delta
            last = (sequence + delta) % SEQUENCE_COUNT
            batches = producer.batches
            fields = (sequence, last, base_offset, base_offset + delta, timestamp_ms)
            batches.append(_new_tuple(KnownBatch, fields))
            if len(batches) > KEPT_BATCHES:
                del batches[0]
            producer.next_sequence = (last + 1) % SEQUENCE_COUNT
        if header.attributes & TRANSACTIONAL_BIT and producer.txn_first_offset == NO_TRANSACTION:
            producer.txn_first_offset = self._open[header.producer_id] = base_offset

    def end_transaction(
        self, header: BatchHeader, marker: EndMarker, offset: int, now_ms: int
    ) -> AbortedEntry | None:
        """The marker is in the log at `offset`; what the index of aborted transactions must keep."""
        producer_id = header.producer_id
        producer = self._known.get(producer_id) or self._admit(header)
        if header.producer_epoch != producer.epoch:
            producer.enter_epoch(header.producer_epoch)
        producer.last_timestamp_ms = now_ms
        producer.last_offset = offset
        producer.idle_ms = _AT_WORK
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.ends += 1
        first_offset = producer.txn_first_offset
        if first_offset == NO_TRANSACTION:
            return None
        producer.txn_first_offset = NO_TRANSACTION
        del self._open[producer_id]
        self._ended.append((first_offset, offset))
        del self._ended[:-_ENDED_LIMIT]
        if marker.type is not ControlType.ABORT:
            return None
        stable = self.first_open_offset
        return AbortedEntry(
            producer_id, first_offset, offset, offset + 1 if stable is None else stable
        )

    def promote(self, promotion: Promotion) -> None:
        """A mirror ends here: no producer of the cluster that it came from is known any more."""
        self._known, self._open = {}, {}
        self.promotion = promotion

    def _admit(self, header: BatchHeader) -> Producer:
        if len(self._known) >= PRODUCERS_LIMIT:
            self._forget_oldest(PRODUCERS_LIMIT // 10)
        producer = self._known[header.producer_id] = Producer(header.producer_epoch)
        return producer

    def _forget_oldest(self, count: int) -> None:
        """Of those that are idle for equally long, who wrote first."""
        idle = sorted(
            (-producer.idle_ms, producer.last_offset, producer_id)
            for producer_id, producer in self._known.items()
            if producer.txn_first_offset == NO_TRANSACTION
        )
        for _, _, producer_id in idle[:count]:
            del self._known[producer_id]

    # Questions -------------------------------------------------------------------------------

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest transaction without a marker begins."""
        return next(iter(self._open.values())) if self._open else None

    def open_transactions(self) -> list[tuple[int, Producer]]:
        """Who has one without a marker, the oldest first."""
        return [(producer_id, self._known[producer_id]) for producer_id in self._open]

    def first_undecided_offset(self, high_watermark: int) -> int | None:
        """The same, but a transaction also counts as long as its marker is not below the high watermark."""
        if not (self._ended or self._open):
            return None
        if self._ended:
            self._ended = [ended for ended in self._ended if ended[1] >= high_watermark]
        firsts = [first for first, _ in self._ended]
        open_first = self.first_open_offset
        if open_first is not None:
            firsts.append(open_first)
        return min(firsts, default=None)

    def has_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of that epoch has records here."""
        producer = self._known.get(producer_id)
        return (
            producer is not None
            and producer.txn_first_offset != NO_TRANSACTION
            and producer.epoch == epoch
        )

    def standing(self, producer_id: int) -> object:
        """Equal to what it was before if no marker and no other epoch came in between (KIP-890)."""
        producer = self._known.get(producer_id)
        return None if producer is None else (producer, producer.epoch, producer.ends)

    def coordinator_epoch(self, producer_id: int) -> int:
        """Of the newest coordinator that has ended a transaction of the producer here."""
        producer = self._known.get(producer_id)
        return -1 if producer is None else producer.coordinator_epoch

    def active(self) -> list[ProducerInfo]:
        return [
            ProducerInfo(
                producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer_id, producer in self._known.items()
        ]

    def expire(self, elapsed_ms: int, limit_ms: int) -> int:
        """At least `elapsed_ms` have passed since it was last called. Forget producers that have been idle for so long
        and have no open transaction; how many."""
        expired = []
        for producer_id, producer in self._known.items():
            idle_ms = producer.idle_ms
            producer.idle_ms = idle_ms = 0 if idle_ms == _AT_WORK else idle_ms + elapsed_ms
            if idle_ms >= limit_ms and producer.txn_first_offset == NO_TRANSACTION:
                expired.append(producer_id)
        for producer_id in expired:
            del self._known[producer_id]
        return len(expired)
