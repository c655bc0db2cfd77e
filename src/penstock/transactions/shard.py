"""One shard of transactional ids, as one partition of __transaction_state holds it.

No I/O: what must be done comes back as effects, in order, exactly as from a single transaction.
"""

from collections.abc import Iterator

from penstock.model.errors import ErrorCode
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Event,
    Initialize,
    Loaded,
    NeedProducerId,
    Outcome,
    Reply,
    Write,
)
from penstock.transactions.machine import step
from penstock.transactions.records import decode_key, decode_value, encode_key
from penstock.transactions.state import AT_REST, NO_ID, Now, Status, Transaction, restored


class Shard:
    """The transactional ids of one shard. Its log is their only other copy."""

    __slots__ = ("_ongoing", "transactions")

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self._ongoing: dict[str, Transaction] = {}  # few of many: these are looked at often

    # Reading back ------------------------------------------------------------------------------

    def apply(self, key: bytes, value: bytes | None, now: Now) -> None:
        """One record of the log, in order."""
        transactional_id = decode_key(key)
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._ongoing.pop(transactional_id, None)
        else:
            found = restored(transactional_id, decode_value(value), now)
            self.transactions[transactional_id] = found
            self._note(found)

    def load(self, now: Now) -> list[tuple[str, list[Effect]]]:
        """After a replay: what was left unfinished."""
        loaded = Loaded()
        found = [(id_, step(txn, loaded, now)) for id_, txn in self.transactions.items()]
        return [(id_, effects) for id_, effects in found if effects]

    # At work -----------------------------------------------------------------------------------

    def step(self, transactional_id: str, event: Event, now: Now) -> list[Effect]:
        transaction = self.transactions.get(transactional_id)
        if transaction is not None:
            effects = step(transaction, event, now)
            self._note(transaction)
            return effects
        match event:
            case Initialize():
                return self._begin(transactional_id, event, now)
            case Add() | End():
                return [Reply(event.reply_to, Outcome(ErrorCode.INVALID_PRODUCER_ID_MAPPING))]
            case _:
                return []

    def _note(self, transaction: Transaction) -> None:
        if transaction.status is Status.ONGOING:
            self._ongoing[transaction.id] = transaction
        else:
            self._ongoing.pop(transaction.id, None)

    def _begin(self, transactional_id: str, event: Initialize, now: Now) -> list[Effect]:
        if event.fresh_id == NO_ID:
            return [NeedProducerId(event)]
        transaction = Transaction(transactional_id, event.fresh_id, now)
        self.transactions[transactional_id] = transaction
        return step(transaction, event, now)

    # Time --------------------------------------------------------------------------------------

    def overdue(self, now: Now) -> Iterator[str]:
        """Those whose transactions have lasted too long."""
        for transaction in list(self._ongoing.values()):
            if now.ms - transaction.started.ms >= transaction.timeout_ms:
                yield transaction.id

    def expired(self, now: Now, silence_ms: int) -> Iterator[str]:
        """Ids that nobody has used for long."""
        for transaction in list(self.transactions.values()):
            if _is_expired(transaction, now, silence_ms):
                yield transaction.id

    def forget(self, transactional_id: str, now: Now, silence_ms: int) -> list[Effect]:
        """If nobody used the id meanwhile: who comes back with it begins anew."""
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not _is_expired(transaction, now, silence_ms):
            return []
        del self.transactions[transactional_id]
        return [Write(encode_key(transactional_id), None)]


def _is_expired(transaction: Transaction, now: Now, silence_ms: int) -> bool:
    """By both clocks: what passed before the shard was read back is known from the wall clock of then, and it may have
    been set right meanwhile."""
    updated = transaction.updated
    return (
        transaction.status in AT_REST
        and now.ms - updated.ms >= silence_ms
        and now.wall_ms - updated.wall_ms >= silence_ms
    )
