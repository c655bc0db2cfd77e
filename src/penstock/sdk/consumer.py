"""Consumer: messages out, and commits of what is finished: a crash while a message is handled repeats it, never skips it.

A message is finished when the next one is asked for, when `commit` is called, or when the consumer is closed while no
exception is on its way.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import uuid4

from penstock.sdk.assignment import Assignment
from penstock.sdk.committing import Commits
from penstock.sdk.errors import Closed, ConfigurationError, TimedOut, from_kafka
from penstock.sdk.librdkafka import LOGGER, STATISTICS_INTERVAL_MS, client_id, connect, errors_of
from penstock.sdk.message import Message, Place
from penstock.sdk.metrics import ConsumerMetrics, Statistics
from penstock.sdk.positions import Time, epoch_ms, partition, reset_policy
from penstock.sdk.serializers import Deserializer, deserializer
from penstock.sdk.settings import Role, translate
from penstock.sdk.shelf import Shelf

if TYPE_CHECKING:
    from penstock.sdk.database import DatabaseHandler
    from penstock.sdk.exactly_once import Transform
    from penstock.sdk.processing import Handler, Summary
    from penstock.sdk.retrying import Backoff, RetryTopics
    from penstock.sdk.workers import Order

Moved = Callable[[list[Place]], object]

MAX_POLL_RECORDS: Final = 500
AUTO_COMMIT_INTERVAL_MS: Final = 5_000
_SLICE_S: Final = 0.2  # Ctrl-C and stop() are heard between two of these
_TIMEOUT_S: Final = 30.0
_FETCH_BACKOFF_MS: Final = (
    20  # librdkafka's 1000 lets a quick reader wait a second whenever its queue was full
)
_ARGUMENTS: Final = frozenset(
    {
        "auto_offset_reset",
        "key_deserializer",
        "max_poll_records",
        "on_assign",
        "on_lost",
        "on_revoke",
        "value_deserializer",
    }
)


class Consumer:
    """Reads topics, alone or as a member of a group. Not thread-safe, but for `stop`.

    >>> with Consumer(bootstrap, "greetings", group_id="readers", value_deserializer="str") as consumer:
    ...     for message in consumer:
    ...         print(message.value)
    ...         consumer.stop()
    hello

    With the same `group_id`, instances share the messages (a work queue); with different ones, each group gets them
    all (publish and subscribe); without one, every instance gets them all from now on (broadcast), and commits nothing.

    `auto_offset_reset` says where to begin without a committed offset: 'earliest' (the default in a group), 'latest',
    'none' (raises NoOffset), or a time (a datetime, or milliseconds since 1970).
    """

    def __init__(
        self,
        bootstrap: str,
        topics: str | Sequence[str],
        *,
        group_id: str | None = None,
        key_deserializer: str | Deserializer | None = None,
        value_deserializer: str | Deserializer | None = None,
        auto_offset_reset: str | Time | None = None,
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: int = AUTO_COMMIT_INTERVAL_MS,
        max_poll_records: int = MAX_POLL_RECORDS,
        on_assign: Moved | None = None,
        on_revoke: Moved | None = None,
        on_lost: Moved | None = None,
        librdkafka: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.bootstrap: Final = bootstrap
        self.topics: Final = [topics] if isinstance(topics, str) else list(topics)
        self.group_id: Final = group_id or f"broadcast-{uuid4().hex}"
        self.auto_commits = enable_auto_commit and group_id is not None
        self.has_group: Final = group_id is not None
        self.is_incremental = False
        self.start_from: Callable[[list[Place]], Mapping[Place, int]] | None = None
        self.before_loss: Callable[[list[Place], bool], object] = _nothing  # (places, may commit)
        self.client_id: Final = client_id(settings)
        self.settings: Final = {**settings, "client_id": self.client_id}
        self.librdkafka: Final = dict(librdkafka or {})
        reset = auto_offset_reset or ("latest" if group_id is None else "earliest")
        self._reset_ms = None if isinstance(reset, str) else epoch_ms(reset)
        self._statistics = Statistics()
        self._shelf = Shelf(
            (deserializer(key_deserializer), deserializer(value_deserializer)), self._on_event
        )
        self.commit_interval_s = auto_commit_interval_ms / 1000
        self._commit_due_s = time.monotonic() + self.commit_interval_s
        self._batch_size = max(1, max_poll_records)
        self._users = (on_assign, on_revoke, on_lost)
        self._stopped = False
        self._closed = False
        self.assigned: Final = Assignment(self)
        self.metrics: Final = ConsumerMetrics(
            self.client_id, self._statistics, self._shelf, self.lag
        )
        self._commits = Commits(self.group_id, self.metrics)
        self._start(self._properties(reset_policy(reset)))

    def _start(self, properties: dict[str, Any]) -> None:
        strategy = str(properties.get("partition.assignment.strategy", ""))
        self.is_incremental = "cooperative" in strategy or (
            properties.get("group.protocol") == "consumer"
        )
        from confluent_kafka import Consumer as Client
        from confluent_kafka import KafkaError

        self._eof: int = KafkaError._PARTITION_EOF
        self._client = self._commits.client = connect(Client, properties)
        self.subscribe(self.topics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(is_finished=error is None)

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until `stop`."""
        clock, shelf, readers = time.monotonic, self._shelf, self._shelf.readers
        while True:
            if (
                shelf.index < len(shelf.batch)
                and not self._stopped
                and clock() < self._commit_due_s
            ):
                raw = shelf.batch[shelf.index]  # the plain case of `poll`: benchmarks/sdk.py
                if raw.error() is None and raw.headers() is None:
                    shelf.index += 1
                    shelf.in_hand = message = Message(raw, readers)
                    yield message
                    continue
            polled = self.poll()
            if polled is None:
                return
            yield polled

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there is none in `timeout` seconds, or after `stop`. Finishes the one before."""
        shelf = self._shelf
        shelf.in_hand = None
        if time.monotonic() >= self._commit_due_s:
            self._auto_commit()
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self._stopped:
            while not shelf.is_empty:
                message = shelf.take()
                if message is not None:
                    return message
            if not self._refill(_slice_s(deadline_s)) and _is_over(deadline_s):
                return None
        return None

    def take_ready(self) -> Message | None:
        """The next message if it is here already and nothing else is due: never waits. Finishes the one before."""
        shelf = self._shelf
        shelf.in_hand = None
        while not shelf.is_empty and time.monotonic() < self._commit_due_s:
            message = shelf.take()
            if message is not None:
                return message
        return None

    def poll_many(self, limit: int, timeout: float) -> list[Message]:
        """Up to `limit` messages, as soon as there is one. Finishes those before."""
        first = self.poll(timeout)
        messages = [] if first is None else [first]
        while messages and len(messages) < limit and not self._shelf.is_empty:
            message = self._shelf.take()
            if message is not None:
                messages.append(message)
        return messages

    @property
    def client(self) -> Any:
        """confluent-kafka's own Consumer, for what is not wrapped here."""
        return self._client

    def subscribe(self, topics: Sequence[str]) -> None:
        """Reads these from now on, instead of what was given before."""
        with errors_of(f"topics {', '.join(topics)}"):
            self._client.subscribe(list(topics), **self.assigned.callbacks())

    def stop(self) -> None:
        """Ends the iteration, or `run`, after the message in hand. Any thread, or a signal handler, may call it."""
        self._stopped = True

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def close(self) -> None:
        """Commits what is finished, and leaves the group."""
        self._close(is_finished=sys.exc_info()[0] is None)

    def commit(self, *, asynchronous: bool = False) -> None:
        """Commits everything handed out so far, the message in hand included."""
        self._shelf.finish()
        self._commits.commit(self._shelf.finished, asynchronous=asynchronous)
        self._shelf.origins.update(self._shelf.finished)

    def commit_offsets(self, offsets: Mapping[Place, int]) -> None:
        """Commits these: each is the next message to be read."""
        self._commits.commit(offsets, asynchronous=False)

    def assignment(self) -> list[Place]:
        """The partitions that this consumer reads now."""
        return [(place.topic, place.partition) for place in self._client.assignment()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next message of that partition will be the one at `offset`."""
        self._seek({(topic, partition): offset})

    def seek_to_time(self, when: Time, *, timeout: float = _TIMEOUT_S) -> None:
        """Goes on, in every partition, with the first message of that time or later. Waits for partitions if it has none."""
        self.await_assignment(timeout)
        self._seek(self.assigned.offsets_at(self.assignment(), epoch_ms(when), timeout))

    def pause(self, places: Sequence[Place] | None = None) -> None:
        """Hands out nothing of these partitions (all, if not given) until `resume`."""
        chosen = set(self.assignment() if places is None else places)
        self._client.pause([partition(place) for place in chosen])
        self._shelf.hold(chosen)

    def resume(self, places: Sequence[Place] | None = None) -> None:
        chosen = list(self.assignment() if places is None else places)
        self._shelf.release(chosen)
        self._client.resume([partition(place) for place in chosen])

    def lag(self) -> dict[Place, int]:
        """How many messages each partition has that were not handed out yet."""
        return self.assigned.lag(self._shelf.positions())

    def handed_out(self) -> list[Any]:
        """One past what was handed out, as librdkafka takes offsets; what is not whole yet does not count."""
        return [partition(place, offset) for place, offset in self._shelf.handed_out().items()]

    def committed_elsewhere(self) -> None:
        """A transaction has committed what was handed out."""
        self._shelf.origins.update(self._shelf.handed_out())

    def rewind(self) -> None:
        """Hands out again what was handed out since the last commit, of the partitions that are still here."""
        self.seek_all(self._shelf.origins)

    def seek_all(self, offsets: Mapping[Place, int]) -> None:
        """Goes to these offsets in the partitions that are assigned now."""
        assigned = set(self.assignment())
        self._seek({place: offset for place, offset in offsets.items() if place in assigned})

    def await_assignment(self, timeout: float = _TIMEOUT_S) -> list[Place]:
        """Waits until the group has given this consumer partitions."""
        deadline_s = time.monotonic() + timeout
        while not (places := self.assignment()):
            self._refill(min(_SLICE_S, max(0.0, deadline_s - time.monotonic())))
            if time.monotonic() > deadline_s:
                raise TimedOut(f"group {self.group_id!r} gave no partition in {timeout} s")
        return places

    def run(
        self,
        handler: "Handler",
        *,
        workers: int = 8,
        order: "Order" = "key",
        retries: int = 5,
        backoff: "Backoff" = 0.1,
        dead_letter: str | None = None,
        retry_topics: "RetryTopics | None" = None,
        max_in_flight: int = 1000,
        drain_timeout: float = 30.0,
    ) -> "Summary":
        """Handles messages on `workers` threads until `stop`. See `penstock.sdk.processing`."""
        from penstock.sdk.processing import Options, run_on_threads

        options = Options(
            workers,
            order,
            retries,
            backoff,
            dead_letter,
            retry_topics,
            max_in_flight,
            drain_timeout,
        )
        return run_on_threads(self, handler, options)

    def transform(
        self,
        fn: "Transform",
        *,
        to: str,
        transactional_id: str | None = None,
        batch: int = 500,
        transaction_timeout_ms: int = 10_000,
        **settings: Any,
    ) -> int:
        """Exactly once: reads, calls `fn(message)`, sends what it returns to topic `to`, and commits, all in one transaction.

        `fn` returns a value (sent with the message's key), an `Output`, a list of them, or None for nothing. Runs until
        `stop`; needs enable_auto_commit=False. `settings` are those of the producer, such as value_serializer. Give each
        instance a `transactional_id` that stays when it restarts: its open transaction then ends at once.
        """
        from penstock.sdk.exactly_once import TransformRun
        from penstock.sdk.outlet import helper_producer

        own = {
            "transactional_id": transactional_id or f"{self.group_id}-{self.client_id}",
            "transaction_timeout_ms": transaction_timeout_ms,
        }
        with helper_producer(self, **own, **settings) as producer:
            return TransformRun(self, producer, fn, to).run(batch)

    def run_in_database(
        self,
        connection: Any,
        handler: "DatabaseHandler",
        *,
        batch: int = 100,
        table: str = "penstock_offsets",
        paramstyle: str | None = None,
    ) -> int:
        """Exactly once into a database: calls `handler(cursor, message)`, and keeps the offsets in the same transaction.

        Runs until `stop`. `connection` is any DB-API connection that commits by `commit()`. See `penstock.sdk.database`.
        """
        from penstock.sdk.database import DatabaseRun, OffsetTable

        if self.auto_commits:
            raise ConfigurationError(
                "this consumer commits by itself, beside the database",
                remedy="give Consumer(enable_auto_commit=False)",
            )
        books = OffsetTable(connection, table, paramstyle)
        return DatabaseRun(self, connection, handler, books).run(batch)

    def refuse_parts(self) -> None:
        """For exactly once: a message that is here in part would hold the offsets of whole ones behind it back."""
        self._shelf.refuses_parts = True

    def first_pending(self, place: Place) -> int | None:
        """Where the oldest message begins whose parts are not all here."""
        return self._shelf.first_pending(place)

    def _refill(self, timeout_s: float) -> bool:
        """Fetches the next batch; everything in the one before is finished."""
        if self._closed:
            raise Closed("this consumer is closed")
        self._shelf.finish()
        first = self._client.poll(timeout_s)
        if first is None:
            return False
        more = self._client.consume(self._batch_size - 1, 0) if self._batch_size > 1 else ()
        self._shelf.put([first, *more], note_origins=not self.auto_commits)
        return True

    def _seek(self, offsets: Mapping[Place, int]) -> None:
        self._shelf.finish()
        self._shelf.forget(set(offsets))
        for place, offset in offsets.items():
            self._commits.forget(place)
            with errors_of(f"seek to {offset} in {place[0]}-{place[1]}"):
                self._client.seek(partition(place, offset))

    def forget(self, places: Sequence[Place], *, commit: bool) -> None:
        """These partitions are no longer ours: commits what is finished of them if that is still possible."""
        self._shelf.settle()
        finished = self._shelf.finished
        if commit and self.auto_commits:
            self._commits.commit_quietly(
                {place: finished[place] for place in places if place in finished}
            )
        self._shelf.forget(set(places))
        for place in places:
            self._commits.forget(place)

    def _auto_commit(self) -> None:
        self._commit_due_s = time.monotonic() + self.commit_interval_s
        if self.auto_commits:
            self._shelf.settle()
            self._commits.commit_quietly(self._shelf.finished, asynchronous=True)

    def commit_finished(self, offsets: Mapping[Place, int], *, wait: bool) -> None:
        """By `run`: commits these, unless this is a broadcast; a refusal is logged, and repeats messages later."""
        if self.has_group:
            self._commits.commit_quietly(offsets, asynchronous=not wait)

    def reset_books(self) -> None:
        """After `run`, which keeps its own: what was handed out there is no business of the iteration's."""
        self._shelf.finish()
        self._shelf.finished.clear()

    def _on_event(self, raw: Any, error: Any) -> None:
        if error.code() == self._eof:
            return
        ours = from_kafka(error, f"topic {raw.topic()!r}" if raw.topic() else "consume")
        if not ours.retriable:
            raise ours
        LOGGER.info("consume goes on after: %s", ours)

    def _close(self, *, is_finished: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if is_finished:
            self._shelf.in_hand = None
        self._shelf.settle()
        if self.auto_commits:
            self._commits.commit_quietly(self._shelf.finished)
        self._client.close()

    def starts(self, partitions: list[Any]) -> list[Any] | None:
        """Where to begin in newly assigned partitions, if librdkafka cannot know: kept elsewhere, or by a time."""
        if self.start_from is not None:
            known = self.start_from([(one.topic, one.partition) for one in partitions])
            for one in partitions:
                one.offset = known.get((one.topic, one.partition), one.offset)
            return partitions
        if self._reset_ms is None:
            return None
        return self.assigned.starts_at(partitions, self._reset_ms, _TIMEOUT_S)

    def tell(self, which: int, places: list[Place]) -> None:
        """Calls the application's on_assign (0), on_revoke (1) or on_lost (2)."""
        call = self._users[which]
        if call is not None:
            call(places)

    def _properties(self, reset: str) -> dict[str, Any]:
        given = translate(Role.CONSUMER, self.settings, arguments=_ARGUMENTS)
        if "group.id" in given:
            raise ConfigurationError("group_id is an argument of Consumer")
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group_id,
            "statistics.interval.ms": STATISTICS_INTERVAL_MS,
            "fetch.queue.backoff.ms": _FETCH_BACKOFF_MS,
            **given,
            "enable.auto.commit": False,  # we know what is finished; librdkafka does not
            "enable.auto.offset.store": False,
            "auto.offset.reset": reset,
            "stats_cb": self._statistics,
            "on_commit": self._commits.on_commit,
            **self.librdkafka,
        }


def _nothing(places: list[Place], may_commit: bool) -> None:
    """Nobody works on the partitions but the caller's own loop."""


def _slice_s(deadline_s: float | None) -> float:
    left_s = _SLICE_S if deadline_s is None else deadline_s - time.monotonic()
    return max(0.0, min(_SLICE_S, left_s))


def _is_over(deadline_s: float | None) -> bool:
    return deadline_s is not None and time.monotonic() >= deadline_s
