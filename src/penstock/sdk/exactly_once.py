"""Transactions: what is sent, and the offsets of what was read, are seen together or not at all.

When a transaction fails in any way, its consumer goes back to where the transaction began. Only if the commit itself
was interrupted, the group decides: the consumer continues behind the transaction if that was committed.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from penstock.sdk.errors import (
    ConfigurationError,
    Fenced,
    PenstockError,
    TimedOut,
    TransactionAborted,
    TransactionTimedOut,
    from_kafka,
)
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer
    from penstock.sdk.producer import Producer
    from penstock.sdk.sending import Headers

_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_BATCH_SHARE: Final = 1 / 3  # of the transaction's timeout; the rest is for delivery and commit
_MAX_TIMEOUTS: Final = 3  # in a row: then the function is too slow for the timeout


class Reader(Protocol):
    """Whose offsets a transaction can carry: a Consumer, or what reads like one."""

    auto_commits: bool

    @property
    def client(self) -> Any:
        """confluent-kafka's own Consumer."""

    def handed_out(self) -> list[Any]: ...
    def committed_elsewhere(self) -> None: ...
    def rewind(self) -> None: ...


@runtime_checkable
class ReaderOfGroup(Protocol):
    """A reader that can ask its group whether a transaction was committed."""

    def rewind_in_doubt(self) -> None: ...


class Transaction:
    """Begins when entered; commits when left, or aborts when an exception leaves it.

    With a consumer, the offsets of what it handed out are committed with it; after an abort it goes back to them.
    Raises TransactionAborted (retriable: run it again), Fenced (another instance took over) or TransactionTimedOut
    (it was open for too long: run it again with a new Producer).
    """

    def __init__(self, producer: "Producer", consumer: Reader | None = None) -> None:
        if producer.transactional_id is None:
            raise ConfigurationError(
                "this producer has no transactional_id",
                remedy="give Producer(transactional_id='…')",
            )
        self._producer = producer
        self._consumer: Reader | None = None
        self._has_offsets = False
        self._begun_s = 0.0
        if consumer is not None:
            self._use(consumer)

    def __enter__(self) -> Self:
        self._producer.ensure_transactions(_TIMEOUT_S)
        self._producer.begin_transaction()
        self._begun_s = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort_after(error, is_in_doubt=False)
            return
        is_in_doubt = False
        try:
            if self._consumer is not None and not self._has_offsets:
                self.send_offsets(self._consumer)
            is_in_doubt = True  # if this fails, the coordinator may have committed
            self._call(lambda: self._producer.client.commit_transaction(_TIMEOUT_S))
        except BaseException as failure:
            self._abort_after(failure, is_in_doubt=is_in_doubt)
            raise
        if self._consumer is not None:
            self._consumer.committed_elsewhere()

    def send_offsets(self, consumer: Reader) -> None:
        """What `consumer` handed out so far counts as done when the transaction commits."""
        self._use(consumer)
        positions = consumer.handed_out()
        self._has_offsets = True
        if positions:
            metadata = consumer.client.consumer_group_metadata()
            self._call(
                lambda: self._producer.client.send_offsets_to_transaction(
                    positions, metadata, _TIMEOUT_S
                )
            )

    def _use(self, consumer: Reader) -> None:
        if consumer.auto_commits:
            raise ConfigurationError(
                "this consumer commits by itself, beside the transaction",
                remedy="give Consumer(enable_auto_commit=False)",
            )
        self._consumer = consumer

    def _abort_after(self, error: BaseException, *, is_in_doubt: bool) -> None:
        """Abort, and send the consumer back also if the abort fails. Raises what explains `error` better."""
        try:
            if isinstance(error, Fenced):
                self._refuse_if_overdue(error)
                return  # nothing is left to abort: the newer instance has done it
            self._producer.exclusively(
                lambda: self._producer.client.abort_transaction(_TIMEOUT_S), "abort"
            )
            is_in_doubt = False
        except Fenced as fenced:
            self._refuse_if_overdue(fenced)
            raise
        finally:
            if isinstance(self._consumer, ReaderOfGroup) and is_in_doubt:
                self._consumer.rewind_in_doubt()
            elif self._consumer is not None:
                self._consumer.rewind()

    def _refuse_if_overdue(self, fenced: Fenced) -> None:
        """The broker fences a producer also when its transaction is overdue: then no instance is newer."""
        open_s = time.monotonic() - self._begun_s
        if open_s >= self._producer.transaction_timeout_s:
            raise TransactionTimedOut(
                f"transactional_id {self._producer.transactional_id!r}: the transaction was open for {open_s:.1f} s; "
                f"transaction_timeout_ms is {self._producer.transaction_timeout_s * 1000:.0f}",
                code=fenced.code,
            ) from fenced

    def _call(self, call: Callable[[], object]) -> None:
        self._producer.exclusively(call, "transaction")


def transaction_error(error: Any, place: str, failure: PenstockError | None) -> PenstockError:
    """What a failed call means for the transaction it is in; `failure` is that of a message, if one failed."""
    ours = from_kafka(error, place)
    if isinstance(ours, Fenced) or error.fatal():
        return ours if isinstance(ours, Fenced) else Fenced(ours.fact, code=ours.code)
    if not error.txn_requires_abort():
        return ours
    if failure is None or error.name() != "_INCONSISTENT":  # "see individual delivery reports"
        return TransactionAborted(ours.fact, code=ours.code)
    if failure.retriable:
        return TransactionAborted(f"{place}: {failure.fact}", code=failure.code)
    return failure  # the same again would fail again


class Output(NamedTuple):
    """What a transform makes of a message, where value and key are not all of it."""

    value: Any
    key: Any = None
    topic: str | None = None
    headers: "Headers | None" = None


Transform = Callable[[Message], Any]


class TransformRun:
    """Reads, transforms, writes and commits in transactions of up to `batch` messages, and of bounded time.

    A transaction that was open for too long is repeated with a new producer: the broker accepts nothing more from the
    one that it has fenced.
    """

    def __init__(
        self,
        consumer: "Consumer",
        make_producer: Callable[[], "Producer"],
        fn: Transform,
        to: str,
    ) -> None:
        self._consumer = consumer
        self._make_producer = make_producer
        self._fn = fn
        self._to = to
        self._timeouts = 0  # in a row

    def run(self, batch: int) -> int:
        """Until the consumer is stopped; how many messages were transformed."""
        done = 0
        self._consumer.refuse_parts()
        while not self._consumer.is_stopped:
            done += self._run_with_producer(batch)
        return done

    def _run_with_producer(self, batch: int) -> int:
        done = 0
        producer = self._make_producer()
        try:
            producer.ensure_transactions(_TIMEOUT_S)  # before a message is taken
            while not self._consumer.is_stopped:
                done += self._step(producer, batch)
        except TransactionTimedOut as late:
            with suppress(TimedOut):
                producer.close(0.0)
            self._timeouts += 1
            if self._timeouts == _MAX_TIMEOUTS:
                raise
            LOGGER.warning("the transaction is repeated with a new producer: %s", late)
        finally:
            producer.close()
        return done

    def _step(self, producer: "Producer", batch: int) -> int:
        """One transaction. It ends early when a third of its time is over, or when no message is ready."""
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return 0
        count = 0
        try:
            with producer.transaction(self._consumer):
                end_s = time.monotonic() + producer.transaction_timeout_s * _BATCH_SHARE
                while message is not None:
                    self._send(producer, message)
                    count += 1
                    is_full = count >= batch or time.monotonic() >= end_s
                    goes_on = not (is_full or self._consumer.is_stopped)
                    message = self._consumer.take_more() if goes_on else None
        except TransactionAborted as aborted:
            LOGGER.warning("a transaction is run again: %s", aborted)
            return 0
        except BaseException:
            if count == 0:  # it may not have begun, and then it went nowhere
                self._consumer.rewind()
            raise
        self._timeouts = 0
        return count

    def _send(self, producer: "Producer", message: Message) -> None:
        made = self._fn(message)
        for one in made if isinstance(made, list) else [made]:
            if isinstance(one, Output):
                producer.send(one.topic or self._to, one.value, one.key, one.headers)
            elif one is not None:
                producer.send(self._to, one, message.raw_key)
