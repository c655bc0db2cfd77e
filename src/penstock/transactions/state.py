"""One transactional id: who may use it now (producer id and epoch), and where its transaction stands.

A producer id and epoch are given to one incarnation of a producer only, and an epoch never goes back.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.transactions.records import (
    PartitionsSchema,
    TransactionLogValue,
    UnknownRecord,
    encode_key,
    encode_value,
)

NO_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME_MS: Final = -1
LAST_EPOCH: Final = (1 << 15) - 1  # only ever used to fence: no client is given it
EPOCH_PER_TRANSACTION: Final = 2  # transactions version 2 (KIP-890): each end takes a new epoch


class Status(IntEnum):
    """Kafka's numbers, as they are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """As Kafka's tools show it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


PREPARED: Final = frozenset({Status.PREPARE_COMMIT, Status.PREPARE_ABORT})
AT_REST: Final = frozenset({Status.EMPTY, Status.COMPLETE_COMMIT, Status.COMPLETE_ABORT})
_NEVER_STORED: Final = frozenset({Status.DEAD, Status.PREPARE_EPOCH_FENCE})


class Now(NamedTuple):
    ms: int  # on the monotonic clock, by which time is measured
    wall_ms: int  # which is only written down and shown


NEVER: Final = Now(NO_TIME_MS, NO_TIME_MS)


class Producer(NamedTuple):
    id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.id} epoch {self.epoch}"


class Transaction:
    """The state of one transactional id. `step` is the only one who changes it."""

    __slots__ = (
        "epoch",
        "id",
        "last_epoch",
        "next_producer_id",
        "partitions",
        "previous_producer_id",
        "producer_id",
        "started",
        "status",
        "timeout_ms",
        "updated",
        "version",
    )

    def __init__(self, transactional_id: str, producer_id: int, now: Now) -> None:
        self.id = transactional_id
        self.producer_id = producer_id
        self.epoch = NO_EPOCH
        self.last_epoch = NO_EPOCH  # whose holder may ask again for what took its place
        self.previous_producer_id = NO_ID
        self.next_producer_id = NO_ID  # takes over when the transaction is over
        self.timeout_ms = 0
        self.status = Status.EMPTY
        self.partitions: set[TopicPartition] = set()
        self.started = NEVER
        self.updated = now
        self.version = 0  # of transactions, that the client knows

    def __str__(self) -> str:
        return f"'{self.id}' ({self.status.title}, {self.producer})"

    @property
    def producer(self) -> Producer:
        return Producer(self.producer_id, self.epoch)

    @property
    def successor(self) -> Producer:
        """Who may go on once this transaction is over."""
        if self.next_producer_id != NO_ID:
            return Producer(self.next_producer_id, 0)
        return self.producer

    @property
    def is_exhausted(self) -> bool:
        """The next epoch could not be fenced any more."""
        return self.epoch >= LAST_EPOCH - 1

    def take_new_id(self, producer_id: int) -> None:
        self.previous_producer_id, self.producer_id = self.producer_id, producer_id
        self.next_producer_id = NO_ID
        self.epoch = 0


def entry(transaction: Transaction) -> tuple[bytes, bytes]:
    """What the log keeps of it, as it is now."""
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.status,
        transaction_partitions=_by_topic(transaction),
        transaction_last_update_timestamp_ms=transaction.updated.wall_ms,
        transaction_start_timestamp_ms=transaction.started.wall_ms,
        client_transaction_version=transaction.version,
    )
    return encode_key(transaction.id), encode_value(value)


def _by_topic(transaction: Transaction) -> list[PartitionsSchema] | None:
    if transaction.status is Status.EMPTY:
        return None
    return [
        PartitionsSchema(topic=topic, partition_ids=numbers)
        for topic, numbers in group_by_topic(transaction.partitions).items()
    ]


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return found


def restored(transactional_id: str, value: TransactionLogValue, now: Now) -> Transaction:
    """The transaction that the log tells of. What has passed since is taken from the wall clock, once."""
    if value.transaction_status in _NEVER_STORED or value.transaction_status not in set(Status):
        raise UnknownRecord(
            f"transactional id '{transactional_id}' in status {value.transaction_status}"
        )
    transaction = Transaction(transactional_id, value.producer_id, now)
    transaction.epoch = value.producer_epoch
    transaction.previous_producer_id = value.previous_producer_id
    transaction.next_producer_id = value.next_producer_id
    transaction.timeout_ms = value.transaction_timeout_ms
    transaction.status = Status(value.transaction_status)
    transaction.partitions = {
        TopicPartition(topic.topic, number)
        for topic in value.transaction_partitions or ()
        for number in topic.partition_ids
    }
    transaction.started = _then(value.transaction_start_timestamp_ms, now)
    transaction.updated = _then(value.transaction_last_update_timestamp_ms, now)
    transaction.version = value.client_transaction_version
    transaction.last_epoch = _last_epoch(transaction)
    return transaction


def _then(wall_ms: int, now: Now) -> Now:
    return Now(now.ms - max(now.wall_ms - wall_ms, 0), wall_ms) if wall_ms >= 0 else NEVER


def _last_epoch(transaction: Transaction) -> int:
    """It is not stored, but follows where each end of a transaction takes an epoch."""
    ended = transaction.status in PREPARED or (
        transaction.status in AT_REST and transaction.status is not Status.EMPTY
    )
    if not ended or transaction.version < EPOCH_PER_TRANSACTION:
        return NO_EPOCH
    return LAST_EPOCH - 1 if transaction.epoch == 0 else transaction.epoch - 1
