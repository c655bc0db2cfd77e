"""Transactions: what is sent, and the offsets of what was read, are seen together or not at all."""

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from penstock.sdk.errors import (
    ConfigurationError,
    Fenced,
    PenstockError,
    TransactionAborted,
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


class Reader(Protocol):
    """Whose offsets a transaction can carry: a Consumer, or what reads like one."""

    auto_commits: bool

    @property
    def client(self) -> Any:
        """confluent-kafka's own Consumer."""

    def handed_out(self) -> list[Any]: ...
    def committed_elsewhere(self) -> None: ...
    def rewind(self) -> None: ...


class Transaction:
    """Begins when entered; commits when left, or aborts when an exception leaves it.

    With a consumer, the offsets of what it handed out are committed with it; after an abort it goes back to them.
    Raises TransactionAborted (retriable: run it again) or Fenced (another instance took over).
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
        if consumer is not None:
            self._use(consumer)

    def __enter__(self) -> Self:
        self._producer.ensure_transactions(_TIMEOUT_S)
        self._producer.begin_transaction()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort_after(error)
            return
        try:
            if self._consumer is not None and not self._has_offsets:
                self.send_offsets(self._consumer)
            self._call(lambda: self._producer.client.commit_transaction(_TIMEOUT_S))
            if self._consumer is not None:
                self._consumer.committed_elsewhere()
        except PenstockError as failure:
            self._abort_after(failure)
            raise

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

    def _abort_after(self, error: BaseException) -> None:
        if isinstance(error, Fenced):
            return  # nothing is left to abort: the newer instance has done it
        self._producer.exclusively(
            lambda: self._producer.client.abort_transaction(_TIMEOUT_S), "abort"
        )
        if self._consumer is not None:
            self._consumer.rewind()

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
    """Reads, transforms, writes and commits in transactions of up to `batch` messages."""

    def __init__(self, consumer: "Consumer", producer: "Producer", fn: Transform, to: str) -> None:
        self._consumer = consumer
        self._producer = producer
        self._fn = fn
        self._to = to

    def run(self, batch: int) -> int:
        """Until the consumer is stopped; how many messages were transformed."""
        done = 0
        self._consumer.refuse_parts()
        while not self._consumer.is_stopped:
            messages = self._consumer.poll_many(batch, _POLL_S)
            if not messages:
                continue
            try:
                with self._producer.transaction(self._consumer):
                    for message in messages:
                        self._send(message)
            except TransactionAborted as aborted:
                LOGGER.warning("a transaction is run again: %s", aborted)
            else:
                done += len(messages)
        return done

    def _send(self, message: Message) -> None:
        made = self._fn(message)
        for one in made if isinstance(made, list) else [made]:
            if isinstance(one, Output):
                self._producer.send(one.topic or self._to, one.value, one.key, one.headers)
            elif one is not None:
                self._producer.send(self._to, one, message.raw_key)
