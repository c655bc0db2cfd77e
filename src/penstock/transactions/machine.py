"""The transaction protocol as one function: step(transaction, event, now). `step` chooses, helpers compute.

A commit or an abort is decided when its prepare record is in the log, and from then on only one end is
possible. Whoever is fenced can no longer add, end or begin anything.
"""

from typing import Final, assert_never

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Event,
    Initialize,
    Loaded,
    Markers,
    MarkersWritten,
    NeedProducerId,
    Outcome,
    Overdue,
    Reply,
    ReplyTo,
    SendMarkers,
    Write,
)
from penstock.transactions.state import (
    AT_REST,
    EPOCH_PER_TRANSACTION,
    LAST_EPOCH,
    NEVER,
    NO_EPOCH,
    NO_ID,
    PREPARED,
    Now,
    Producer,
    Status,
    Transaction,
    entry,
)

_PREPARE: Final = {True: Status.PREPARE_COMMIT, False: Status.PREPARE_ABORT}
_COMPLETE: Final = {
    Status.PREPARE_COMMIT: Status.COMPLETE_COMMIT,
    Status.PREPARE_ABORT: Status.COMPLETE_ABORT,
}
_ENDED: Final = {True: Status.COMPLETE_COMMIT, False: Status.COMPLETE_ABORT}


def step(transaction: Transaction, event: Event, now: Now) -> list[Effect]:
    """What must be done about `event`, in order; the transaction becomes what it is after it."""
    match event:
        case Initialize():
            return _initialize(transaction, event, now)
        case Add():
            return _add(transaction, event, now)
        case End():
            return _end(transaction, event, now)
        case MarkersWritten():
            return _markers_written(transaction, event, now)
        case Overdue():
            return _overdue(transaction, now)
        case Loaded():
            return _loaded(transaction)
        case unreachable:
            assert_never(unreachable)


def verify(
    transaction: Transaction | None, producer: Producer, partition: TopicPartition
) -> ErrorCode:
    """Whether what the producer writes there will be ended with its transaction (KIP-890)."""
    if transaction is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    code = _refusal(transaction, producer)
    if not code and (
        transaction.status is not Status.ONGOING or partition not in transaction.partitions
    ):
        code = ErrorCode.TRANSACTION_ABORTABLE
    return code


def _refusal(transaction: Transaction, producer: Producer) -> ErrorCode:
    """Why this producer may not write in the transaction now."""
    if transaction.status in PREPARED and producer == transaction.successor:
        return ErrorCode.CONCURRENT_TRANSACTIONS  # the partitions do not know of the last end yet
    if producer.id != transaction.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if producer.epoch != transaction.epoch or producer.epoch == LAST_EPOCH:
        return ErrorCode.PRODUCER_FENCED  # the last epoch only fences: no client was ever given it
    return ErrorCode.NONE


def _refuse(reply_to: ReplyTo, code: ErrorCode) -> list[Effect]:
    return [Reply(reply_to, Outcome(code))]


def _write(transaction: Transaction, now: Now) -> Write:
    transaction.updated = now
    return Write(*entry(transaction))


# Beginning ---------------------------------------------------------------------------------------


def _initialize(transaction: Transaction, event: Initialize, now: Now) -> list[Effect]:
    expected = event.expected
    if expected is not None and not _may_be(transaction, expected):
        return _refuse(event.reply_to, ErrorCode.PRODUCER_FENCED)
    if transaction.status in PREPARED:
        return _refuse(event.reply_to, ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.status is Status.ONGOING:
        return _fence(transaction, event, now)
    asks_again = expected is not None and expected.epoch == transaction.last_epoch
    if asks_again and transaction.epoch != LAST_EPOCH:
        pass  # it is told again what it did not hear
    elif asks_again or transaction.epoch == NO_EPOCH or expected in (None, transaction.producer):
        if transaction.is_exhausted and event.fresh_id == NO_ID:
            return [NeedProducerId(event)]
        _take_epoch(transaction, event)
    else:
        return _refuse(event.reply_to, ErrorCode.PRODUCER_FENCED)
    transaction.status = Status.EMPTY
    transaction.timeout_ms = event.timeout_ms
    transaction.started = NEVER
    outcome = Outcome(ErrorCode.NONE, transaction.producer)
    return [_write(transaction, now), Reply(event.reply_to, outcome)]


def _may_be(transaction: Transaction, expected: Producer) -> bool:
    """It has the id of now; or the one before, and used up its epochs."""
    return (
        transaction.epoch == NO_EPOCH
        or expected.id == transaction.producer_id
        or (expected.id == transaction.previous_producer_id and expected.epoch >= LAST_EPOCH - 1)
    )


def _take_epoch(transaction: Transaction, event: Initialize) -> None:
    transaction.last_epoch = NO_EPOCH if event.expected is None else transaction.epoch
    if transaction.is_exhausted:
        transaction.take_new_id(event.fresh_id)
    else:
        transaction.epoch += 1


def _fence(transaction: Transaction, event: Initialize, now: Now) -> list[Effect]:
    """The one before has left a transaction open: end it first. The newcomer is to ask again."""
    expected = event.expected
    if expected is not None and expected != transaction.producer:
        return _refuse(event.reply_to, ErrorCode.PRODUCER_FENCED)
    transaction.version = 0  # the epoch is not for who had the last one, but for who asks now
    last_epoch = NO_EPOCH if expected is None else expected.epoch
    effects = _abort_with_new_epoch(transaction, last_epoch, now)
    return effects + _refuse(event.reply_to, ErrorCode.CONCURRENT_TRANSACTIONS)


def _abort_with_new_epoch(transaction: Transaction, last_epoch: int, now: Now) -> list[Effect]:
    """The client did not end it: from now on whatever it still sends is refused.

    One that is in the last epoch, which no client has from here, is ended in it: there is none after it, and in the
    last one everybody is refused.
    """
    ends_epoch = transaction.epoch < LAST_EPOCH
    transaction.last_epoch = last_epoch
    if ends_epoch:
        transaction.epoch += 1
    else:
        transaction.version = 0  # its markers, also when sent again, are those of its own epoch
    transaction.status = Status.PREPARE_ABORT
    return [_write(transaction, now), SendMarkers(_markers(transaction, ends_epoch=ends_epoch))]


# In a transaction --------------------------------------------------------------------------------


def _add(transaction: Transaction, event: Add, now: Now) -> list[Effect]:
    code = _refusal(transaction, event.producer)
    if not code and transaction.status in PREPARED:
        code = ErrorCode.CONCURRENT_TRANSACTIONS
    ongoing = transaction.status is Status.ONGOING
    if code or (ongoing and event.partitions <= transaction.partitions):
        return _refuse(event.reply_to, code)
    if not ongoing:
        transaction.status = Status.ONGOING
        transaction.started = now
    transaction.version = event.version
    transaction.partitions |= event.partitions
    return [
        _write(transaction, now),
        Reply(event.reply_to, Outcome(ErrorCode.NONE, transaction.producer)),
    ]


# Ending ------------------------------------------------------------------------------------------


def _end(transaction: Transaction, event: End, now: Now) -> list[Effect]:
    takes_epoch = event.version >= EPOCH_PER_TRANSACTION
    if takes_epoch and _asks_again(transaction, event.producer):
        return _end_again(transaction, event)
    if not takes_epoch and event.producer == transaction.producer:
        if transaction.status is not Status.ONGOING:
            return _end_again(transaction, event)  # or the next one: with one epoch nobody can tell
    elif code := _refusal(transaction, event.producer):
        return _refuse(event.reply_to, code)
    if transaction.status is Status.ONGOING:
        return _prepare(transaction, event, now)
    if transaction.status in AT_REST and not event.committed:
        return _abort_nothing(transaction, event, now)
    return _refuse(event.reply_to, ErrorCode.INVALID_TXN_STATE)


def _asks_again(transaction: Transaction, producer: Producer) -> bool:
    """It has the epoch that the last end took, and did not hear of the new one."""
    if producer.epoch != transaction.last_epoch or producer.epoch == NO_EPOCH:
        return False
    if transaction.status in (Status.EMPTY, Status.ONGOING):
        return False
    if transaction.epoch == 0:
        return producer.id == transaction.previous_producer_id
    usable = transaction.epoch < LAST_EPOCH or transaction.next_producer_id != NO_ID
    return producer.id == transaction.producer_id and usable


def _end_again(transaction: Transaction, event: End) -> list[Effect]:
    if transaction.status is _PREPARE[event.committed]:
        return _refuse(event.reply_to, ErrorCode.CONCURRENT_TRANSACTIONS)
    if transaction.status is _ENDED[event.committed]:
        return [Reply(event.reply_to, Outcome(ErrorCode.NONE, transaction.producer))]
    overtaken = event.committed and event.version >= EPOCH_PER_TRANSACTION  # it took too long
    code = ErrorCode.TRANSACTION_ABORTABLE if overtaken else ErrorCode.INVALID_TXN_STATE
    return _refuse(event.reply_to, code)


def _prepare(transaction: Transaction, event: End, now: Now) -> list[Effect]:
    """From here on the transaction has only one end."""
    takes_epoch = event.version >= EPOCH_PER_TRANSACTION
    if takes_epoch:
        if transaction.is_exhausted:
            if event.fresh_id == NO_ID:
                return [NeedProducerId(event)]
            transaction.next_producer_id = event.fresh_id
        transaction.last_epoch = transaction.epoch
        transaction.epoch += 1
    transaction.version = event.version
    transaction.status = _PREPARE[event.committed]
    return [
        _write(transaction, now),
        SendMarkers(_markers(transaction, ends_epoch=takes_epoch)),
        Reply(event.reply_to, Outcome(ErrorCode.NONE, transaction.successor)),
    ]


def _abort_nothing(transaction: Transaction, event: End, now: Now) -> list[Effect]:
    """The client cannot know whether anything of its transaction has arrived: it gets its epoch."""
    if transaction.is_exhausted and event.fresh_id == NO_ID:
        return [NeedProducerId(event)]
    transaction.last_epoch = transaction.epoch
    if transaction.is_exhausted:
        transaction.take_new_id(event.fresh_id)
    else:
        transaction.epoch += 1
    transaction.version = event.version
    transaction.status = Status.COMPLETE_ABORT
    transaction.started = now
    return [
        _write(transaction, now),
        Reply(event.reply_to, Outcome(ErrorCode.NONE, transaction.producer)),
    ]


def _markers(transaction: Transaction, *, ends_epoch: bool) -> Markers:
    return Markers(
        transaction.id,
        transaction.producer,
        transaction.status is Status.PREPARE_COMMIT,
        tuple(sorted(transaction.partitions)),
        ends_epoch,
    )


def _markers_written(transaction: Transaction, event: MarkersWritten, now: Now) -> list[Effect]:
    if transaction.status not in PREPARED or event.producer != transaction.producer:
        return []
    transaction.status = _COMPLETE[transaction.status]
    transaction.partitions = set()
    if transaction.next_producer_id != NO_ID:
        transaction.take_new_id(transaction.next_producer_id)
    return [_write(transaction, now)]


# Time --------------------------------------------------------------------------------------------


def _overdue(transaction: Transaction, now: Now) -> list[Effect]:
    if transaction.status is not Status.ONGOING:
        return []
    if now.ms - transaction.started.ms < transaction.timeout_ms:
        return []
    survives = transaction.version >= EPOCH_PER_TRANSACTION  # aborting, it learns the new epoch
    return _abort_with_new_epoch(transaction, transaction.epoch if survives else NO_EPOCH, now)


def _loaded(transaction: Transaction) -> list[Effect]:
    if transaction.status not in PREPARED:
        return []
    ends_epoch = transaction.version >= EPOCH_PER_TRANSACTION
    return [SendMarkers(_markers(transaction, ends_epoch=ends_epoch))]
