"""Producer: messages in, futures out. The hot path is one function; everything optional leaves it alone."""

import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from penstock.sdk import checks, large, partitioners
from penstock.sdk.delivery import Delivery, Pump, Trouble, joined
from penstock.sdk.errors import (
    BufferExhausted,
    Closed,
    ConfigurationError,
    TimedOut,
    from_kafka,
)
from penstock.sdk.librdkafka import client_id, connect, errors_of
from penstock.sdk.metrics import ProducerMetrics, Statistics
from penstock.sdk.partitioners import Partitioner
from penstock.sdk.positions import Time, epoch_ms
from penstock.sdk.rate_limit import TokenBucket
from penstock.sdk.sending import (
    Headers,
    Outgoing,
    chosen_partitioner,
    connection_of,
    header_list,
    max_request_size,
    properties_of,
    refusal,
    split_size,
    with_trace,
)
from penstock.sdk.serializers import Serializer, serialize, serializer
from penstock.sdk.tracing import Tracer, installed_tracer

if TYPE_CHECKING:
    from penstock.sdk.exactly_once import Reader, Transaction

MAX_BLOCK_MS: Final = 60_000
_SERVE_EVERY: Final = 64  # sends between two looks at librdkafka's reports: benchmarks/sdk.py
_ANY_PARTITION: Final = -1
_FULL_WAIT_S: Final = 0.05
_EXIT_FLUSH_S: Final = 30.0
_PARTITIONS_AGE_S: Final = 60.0
_TRANSACTION_ATTEMPTS: Final = 5
_TRANSACTION_TIMEOUT_MS: Final = 60_000  # librdkafka's default


class Producer:
    """Sends messages to topics. Thread-safe. Idempotent with acks='all' unless told otherwise.

    >>> with Producer(bootstrap, value_serializer="json") as producer:
    ...     delivered = producer.send("orders", {"id": 17}, key="customer-3").result(timeout=30)
    >>> delivered.topic, delivered.offset
    ('orders', 0)

    `settings` are Kafka's, with Python's underscores: `acks`, `batch_size`, `linger_ms`, `buffer_memory`,
    `compression_type`, `retries`, `delivery_timeout_ms`, `transactional_id`, … See `penstock.sdk.settings`.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        key_serializer: str | Serializer | None = None,
        value_serializer: str | Serializer | None = None,
        partitioner: partitioners.BuiltIn | Partitioner = "murmur2",
        max_block_ms: int = MAX_BLOCK_MS,
        on_full: Literal["block", "drop"] = "block",
        split_large: bool = False,
        rate_limit: float | None = None,
        librdkafka: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if on_full not in ("block", "drop"):
            raise ConfigurationError(f"on_full={on_full!r}", remedy="give 'block' or 'drop'")
        self._max_block_s = checks.number("max_block_ms", max_block_ms, at_least=0) / 1000
        self._drops = on_full == "drop"
        self._key_serializer = serializer(key_serializer)
        self._value_serializer = serializer(value_serializer)
        self._partitioner, built_in = chosen_partitioner(partitioner)
        self._statistics = Statistics()
        self._tracer: Tracer | None = installed_tracer()
        self._is_traced = None if self._tracer is None else self._tracer.is_active
        self._limit = None if rate_limit is None else TokenBucket(rate_limit)
        self._limit_lock = threading.Lock()
        self.client_id: Final = client_id(settings)
        self.transactional_id: Final[str | None] = settings.get("transactional_id") or None
        properties = properties_of(
            checks.bootstrap(bootstrap), self.client_id, built_in, settings, librdkafka or {}
        )
        properties["stats_cb"] = self._statistics
        properties["error_cb"] = self._trouble = Trouble()
        self.max_request_size: Final = max_request_size(properties)
        self._built_in: Final = str(properties["partitioner"])
        self.transaction_timeout_s: Final = (
            int(properties.get("transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS)) / 1000
        )
        self._split_at = split_size(self.max_request_size) if split_large else None
        self._partition_counts: dict[str, tuple[float, int]] = {}
        self._transactions_ready = False
        self._start(properties)

    def _start(self, properties: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka import Producer as Client

        self._kafka_exception: type[Exception] = KafkaException
        self._client = connect(Client, properties)
        self.connection = connection_of(properties)
        self._produce = self._client.produce
        self._pump = Pump(self._client, self._trouble)
        self._is_plain = not (
            self._key_serializer
            or self._value_serializer
            or self._partitioner
            or self._limit
            or self._split_at
        )
        self.metrics = ProducerMetrics(
            self.client_id,
            self._statistics,
            self._pump,
            self._client.__len__,
            int(properties["queue.buffering.max.kbytes"]) * 1024,
        )
        self._finalizer = weakref.finalize(self, _finish, self._client, self._pump)

    def __repr__(self) -> str:
        return f"<Producer {self.client_id} at {self.connection['bootstrap.servers']}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        timestamp: Time = 0,
        partition: int | None = None,
    ) -> Delivery:
        """Hands a message over, and returns its future at once; blocks only while the buffer is full.

        A value of None is a tombstone. `timestamp` is a datetime, or milliseconds since 1970; 0 means now. An error of
        a message whose future nobody waits for is counted in `metrics.errors`, and logged.

        >>> with Producer(bootstrap) as producer:
        ...     delivery = producer.send("letters", "hello", key="k", headers={"from": "me"})
        ...     first = delivery.add_callback(lambda delivered: None).add_errback(print).result(30)
        >>> first.topic, first.partition, first.offset
        ('letters', 0, 0)
        """
        pump = self._pump
        if not topic:
            raise ConfigurationError(f"topic={topic!r}", remedy="give the name of a topic")
        if not self._is_plain or (self._is_traced is not None and self._is_traced()):
            return self._send_with_options(topic, value, key, headers, timestamp, partition)
        delivery = Delivery(pump)
        place = _ANY_PARTITION if partition is None else partition
        try:
            if headers is None and not timestamp:  # keywords cost: benchmarks/sdk.py
                self._produce(topic, value, key, place, delivery)
            else:
                self._produce(
                    topic, value, key, place, delivery, timestamp=timestamp, headers=headers
                )
        except (BufferError, TypeError, ValueError, self._kafka_exception) as error:
            message = (topic, value, key, headers, timestamp, partition)
            return self._send_despite(error, message, delivery)
        pump.sends = sends = pump.sends + 1
        if not sends % _SERVE_EVERY:
            pump.serve()
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every message so far is acknowledged or given up; raises TimedOut if some are neither."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            left_s = 1.0 if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            waiting = self._pump.flush(min(1.0, left_s))
            if not waiting:
                return
            if deadline_s is not None and time.monotonic() >= deadline_s:
                noun = "message is" if waiting == 1 else "messages are"
                raise self._pump.explained(
                    TimedOut(f"{waiting} {noun} not acknowledged after {timeout} s")
                )

    def close(self, timeout: float | None = None) -> None:
        """Flushes, and lets go of the connections. What is not acknowledged after `timeout` seconds is given up."""
        if not self._finalizer.detach():
            return
        try:
            self.flush(timeout)
        finally:
            self._produce = _refuse
            _finish(self._client, self._pump, flush_s=0.0)

    def transaction(self, consumer: "Reader | None" = None) -> "Transaction":
        """`with producer.transaction(): …`: all of it is seen, or nothing. See `penstock.sdk.exactly_once`.

        >>> with Producer(bootstrap, transactional_id="till-1") as producer:
        ...     with producer.transaction():
        ...         paid = producer.send("payments", "42.50", key="customer-3")
        ...         booked = producer.send("ledger", "-42.50", key="customer-3")
        >>> paid.result().topic, booked.result().topic
        ('payments', 'ledger')
        """
        from penstock.sdk.exactly_once import Transaction

        return Transaction(self, consumer)

    def ensure_transactions(self, timeout_s: float) -> None:
        """Once: tells the coordinator that older instances with this transactional_id are over."""
        if not self._transactions_ready:
            self.exclusively(lambda: self._client.init_transactions(timeout_s), "init_transactions")
            self._transactions_ready = True

    def begin_transaction(self) -> None:
        self._pump.newest_failure = None
        self.exclusively(self._client.begin_transaction, "transaction")

    def exclusively(self, call: Callable[[], object], what: str) -> None:
        """A call of librdkafka about transactions, with its errors as ours; retriable ones are tried again."""
        from penstock.sdk.exactly_once import transaction_error

        place = f"transactional_id {self.transactional_id!r}: {what}"
        for attempt in range(_TRANSACTION_ATTEMPTS):
            try:
                self._pump.exclusively(call)
                return
            except self._kafka_exception as error:
                said = error.args[0]
                if not said.retriable() or attempt == _TRANSACTION_ATTEMPTS - 1:
                    raise transaction_error(said, place, self._pump.newest_failure) from None

    @property
    def client(self) -> Any:
        """confluent-kafka's own Producer, for what is not wrapped here."""
        return self._client

    def partition_count(self, topic: str) -> int:
        """How many partitions a topic has, as known for at most a minute."""
        now_s = time.monotonic()
        known = self._partition_counts.get(topic)
        if known is None or now_s - known[0] > _PARTITIONS_AGE_S:
            known = (now_s, self._ask_partition_count(topic))
            self._partition_counts[topic] = known
        return known[1]

    def _ask_partition_count(self, topic: str) -> int:
        with errors_of(f"topic {topic!r}"):
            found = self._client.list_topics(topic, max(1.0, self._max_block_s)).topics[topic]
        if found.error is not None:
            raise from_kafka(found.error, f"topic {topic!r}")
        return len(found.partitions)

    def _send_with_options(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        timestamp: Time,
        partition: int | None,
    ) -> Delivery:
        if self._key_serializer is not None:
            key = serialize(self._key_serializer, key, "key")
        if self._value_serializer is not None:
            value = serialize(self._value_serializer, value, "value")
        if self._limit is not None:
            self._pause(self._limit)
        if self._tracer is not None and self._tracer.is_active():
            headers = with_trace(headers, self._tracer.headers())
        if partition is None and self._partitioner is not None:
            partition = self._choose(self._partitioner, topic, key)
        message = (topic, value, key, headers, timestamp, partition)
        if self._split_at is not None and value is not None and len(value) > self._split_at:
            return self._send_parts(message)
        return self._enqueue(message)

    def _choose(self, partitioner: Partitioner, topic: str, key: Any) -> int:
        count = self.partition_count(topic)
        chosen: Any = partitioner(key.encode() if isinstance(key, str) else key, count)
        if not isinstance(chosen, int) or not 0 <= chosen < count:
            raise ConfigurationError(
                f"the partitioner chose partition {chosen} of topic {topic!r}, which has 0 to {count - 1}"
            )
        return chosen

    def _partition_of(self, topic: str, key: Any) -> int:
        """The partition that librdkafka's partitioner chooses too."""
        data = key.encode() if isinstance(key, str) else key
        chosen = partitioners.builtin_hash(self._built_in, data)
        if chosen is None:
            chosen = int.from_bytes(os.urandom(4))
        return chosen % self.partition_count(topic)

    def _send_parts(self, message: Outgoing) -> Delivery:
        topic, value, key, headers, timestamp, partition = message
        assert self._split_at is not None
        if partition is None:  # chosen once: partitions may be added between two parts
            partition = self._partition_of(topic, key)
        data = value.encode() if isinstance(value, str) else bytes(value)
        pieces = large.split(data, self._split_at, os.urandom(16))
        before = header_list(headers)
        parts = [
            self._enqueue(
                (
                    topic,
                    piece,
                    key,
                    [*before, (large.PART_HEADER, part.encode())],
                    timestamp,
                    partition,
                )
            )
            for part, piece in pieces
        ]
        return joined(self._pump, parts)

    def _enqueue(self, message: Outgoing) -> Delivery:
        delivery = Delivery(self._pump)
        try:
            self._hand_over(message, delivery)
        except (BufferError, TypeError, ValueError, self._kafka_exception) as error:
            return self._send_despite(error, message, delivery)
        self._pump.sends = sends = self._pump.sends + 1
        if not sends % _SERVE_EVERY:
            self._pump.serve()
        return delivery

    def _hand_over(self, message: Outgoing, delivery: Delivery) -> None:
        topic, value, key, headers, timestamp, partition = message
        place = _ANY_PARTITION if partition is None else partition
        self._produce(topic, value, key, place, delivery, timestamp=timestamp, headers=headers)

    def _send_despite(self, error: Exception, message: Outgoing, delivery: Delivery) -> Delivery:
        """The buffer is full: waits for room, or drops. Anything else is the caller's error."""
        topic, value, key, headers, timestamp, partition = message
        if isinstance(timestamp, datetime):
            return self._enqueue((topic, value, key, headers, epoch_ms(timestamp), partition))
        if not isinstance(error, BufferError):
            raise self._pump.fatal or refusal(error, message, self.max_request_size) from None
        if self._drops:
            self._pump.dropped += 1
            return delivery.fail(BufferExhausted(f"topic {topic!r}: dropped, the buffer is full"))
        deadline_s = time.monotonic() + self._max_block_s
        while time.monotonic() < deadline_s:
            self._pump.flush(min(_FULL_WAIT_S, self._max_block_s))
            try:
                self._hand_over(message, delivery)
            except BufferError:
                continue
            return delivery
        raise self._pump.explained(
            BufferExhausted(f"topic {topic!r}: the buffer was full for {self._max_block_s:g} s")
        )

    def _pause(self, limit: TokenBucket) -> None:
        with self._limit_lock:  # senders of all threads share the rate
            wait_s = limit.take(time.monotonic())
        if wait_s > 0:
            time.sleep(wait_s)


def _refuse(*_: Any, **__: Any) -> None:
    raise Closed("this producer is closed")


def _finish(client: Any, pump: Pump, flush_s: float = _EXIT_FLUSH_S) -> None:
    """Also when the interpreter ends and nobody closed: what was sent still leaves."""
    pump.flush(flush_s)
    pump.close()
    client.purge()
    pump.serve()
