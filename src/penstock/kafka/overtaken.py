"""Batches of idempotent producers that overtake one that was refused: they are refused as it was, and all are sent again in order.

A producer has several requests under way. If the first comes before this broker leads, or while too few replicas are in sync,
and the second after, the second seems to skip a sequence, or, of a producer that the log does not know, to be its first. Told of a gap, librdkafka
numbers anew whatever was not acknowledged yet, in all partitions, and what another leader had written is there twice. Told that
all is well, it takes what came before for acknowledged too, and that is lost.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import HEADER_SIZE, NO_SEQUENCE, Bytes, parse_header
from penstock.storage.producers import SEQUENCE_COUNT

_UNDER_WAY_MS: Final = (
    30_000  # as long as a client waits for an answer: what comes later was sent later
)
_LIMIT: Final = 10_000  # producers; the longest refused is forgotten first
_SENT_AGAIN: Final = frozenset(  # as it is, with the sequence that it has
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
)


class Overtaken(BrokerError):
    """A batch that one which was refused should have come before."""


class Sender(NamedTuple):
    """A producer and one partition, as its requests name it: the topic may not be known here."""

    topic: str | bytes
    partition: int
    producer_id: int
    producer_epoch: int


class Refused(NamedTuple):
    sequence: int  # the first that is still to come
    code: ErrorCode
    message: str
    at_ms: int


class Refusals:
    """What was refused lately and will be sent again."""

    def __init__(self) -> None:
        self._refused: OrderedDict[Sender, Refused] = OrderedDict()  # the longest ago first

    def __len__(self) -> int:
        return len(self._refused)

    def note(
        self, topic: str | bytes, index: int, records: Bytes | None, error: BrokerError, now_ms: int
    ) -> None:
        """A batch was refused."""
        if error.code not in _SENT_AGAIN or isinstance(error, Overtaken):
            return
        numbered = _numbered(topic, index, records)
        if numbered is None:
            return
        sender, sequence = numbered
        before = self._refused.pop(sender, None)
        if before is not None and _follows(sequence, before.sequence):
            sequence = before.sequence
        self._refused[sender] = Refused(sequence, error.code, str(error), now_ms)
        self._forget(now_ms)

    def overtaken_by(
        self, topic: str | bytes, index: int, records: Bytes | None, now_ms: int
    ) -> Overtaken | None:
        """For a batch that should have come after one that was refused: the same refusal."""
        self._forget(now_ms)
        numbered = _numbered(topic, index, records) if self._refused else None
        if numbered is None:
            return None
        sender, sequence = numbered
        refused = self._refused.get(sender)
        if refused is None or not _follows(sequence, refused.sequence):
            return None
        return Overtaken(
            f"sequence {sequence} of producer {sender.producer_id} comes after {refused.sequence}, "
            f"which was refused: {refused.message}",
            refused.code,
        )

    def settle(self, topic: str | bytes, index: int, records: Bytes) -> None:
        """A batch has been taken: nothing that this producer has sent before it is still to come."""
        numbered = _numbered(topic, index, records)
        if numbered is not None:
            self._refused.pop(numbered[0], None)

    def _forget(self, now_ms: int) -> None:
        refused = self._refused
        while refused:
            oldest = next(iter(refused.values()))
            if len(refused) <= _LIMIT and now_ms - oldest.at_ms < _UNDER_WAY_MS:
                return
            refused.popitem(last=False)


def _numbered(topic: str | bytes, index: int, records: Bytes | None) -> tuple[Sender, int] | None:
    """Who sent the batch, and its first sequence; None: it has none."""
    if records is None or len(records) < HEADER_SIZE:
        return None
    header = parse_header(records)
    if header.base_sequence <= NO_SEQUENCE:
        return None
    return Sender(topic, index, header.producer_id, header.producer_epoch), header.base_sequence


def _follows(sequence: int, earlier: int) -> bool:
    return 0 < (sequence - earlier) % SEQUENCE_COUNT < SEQUENCE_COUNT // 2
