"""Messages out, and commits of what is finished: a crash while a message is handled repeats it, never skips it.

A message is finished when the next one is asked for, when `commit` is called, or when the consumer is closed while no
exception is on its way. The rule about positions is stated in `penstock.sdk.shelf`.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from penstock.sdk import checks
from penstock.sdk.assignment import Assignment, Callbacks, Moved
from penstock.sdk.committing import Commits
from penstock.sdk.errors import (
    Closed,
    ConfigurationError,
    TimedOut,
    TransactionAborted,
    from_kafka,
)
from penstock.sdk.librdkafka import LOGGER, ClosedClient, client_id, connect, errors_of
from penstock.sdk.message import Message, Place
from penstock.sdk.metrics import ConsumerMetrics, Statistics
from penstock.sdk.positions import Time, epoch_ms, partition, properties_of
from penstock.sdk.seeking import Seeks
from penstock.sdk.serializers import Deserializer, deserializer
from penstock.sdk.shelf import Shelf

MAX_POLL_RECORDS: Final = 500
AUTO_COMMIT_INTERVAL_MS: Final = 5_000
_SLICE_S: Final = 0.2  # Ctrl-C and stop() are heard between two of these
_TIMEOUT_S: Final = 30.0


class Reading:
    """All of a Consumer but its ways to run handlers: fetching, books, commits, seeking, and its end."""

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
        self.bootstrap: Final = checks.bootstrap(bootstrap)
        self.topics: Final = checks.topics(topics)
        self.subscribed: list[str] = self.topics
        self.group_id: Final = _group(group_id)
        self.auto_commits = (
            checks.flag("enable_auto_commit", enable_auto_commit) and group_id is not None
        )
        self.has_group: Final = group_id is not None
        self.is_incremental = False
        self.before_loss: Callable[[list[Place], bool], object] = _nothing  # (places, may commit)
        self.client_id: Final = client_id(settings)
        self.settings: Final = {**settings, "client_id": self.client_id}
        self.librdkafka: Final = dict(librdkafka or {})
        reset = auto_offset_reset
        if reset is None:
            reset = "latest" if group_id is None else "earliest"
        self._statistics = Statistics()
        self._shelf = Shelf(
            (deserializer(key_deserializer), deserializer(value_deserializer)), self._on_event
        )
        self.commit_interval_s = (
            checks.number("auto_commit_interval_ms", auto_commit_interval_ms, at_least=0) / 1000
        )
        self._commit_due_s = time.monotonic() + self.commit_interval_s
        self._batch_size = checks.whole("max_poll_records", max_poll_records, at_least=1)
        self._stopped = False
        self._interrupted = False
        self._closed = False
        self.paused: Final[set[Place]] = set()
        self._lost_in_hand: set[Place] = set()  # handed out, not committed, and then revoked
        self.assigned: Final = Assignment(
            self,
            Callbacks(on_assign, on_revoke, on_lost),
            reset if isinstance(reset, str) else epoch_ms(reset),
        )
        self.metrics: Final = ConsumerMetrics(
            self.client_id, self._statistics, self._shelf, self.lag
        )
        self._commits = Commits(self.group_id, self.metrics)
        self._seeks = Seeks(self._shelf, self._commits, self.assigned)
        self._start(
            {
                **properties_of(self.bootstrap, self.group_id, reset, self.settings),
                "stats_cb": self._statistics,
                "on_commit": self._commits.on_commit,
                **self.librdkafka,
            }
        )

    def _start(self, properties: dict[str, Any]) -> None:
        strategy = str(properties.get("partition.assignment.strategy", ""))
        self.is_incremental = "cooperative" in strategy or (
            properties.get("group.protocol") == "consumer"
        )
        from confluent_kafka import Consumer as Client
        from confluent_kafka import KafkaError

        self._eof: int = KafkaError._PARTITION_EOF
        self._client = self._commits.client = self._seeks.client = connect(Client, properties)
        self.subscribe(self.topics)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.client_id} of {', '.join(self.topics)} in group {self.group_id}>"

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
                if raw.error() is None and raw.headers() is None and not shelf.floors:
                    message = Message(raw, readers)
                    shelf.done = shelf.index
                    shelf.index += 1
                    yield message
                    continue
            polled = self.poll()
            if polled is None:
                return
            yield polled

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there is none in `timeout` seconds, or after `stop`. Finishes the one before."""
        self._shelf.finish_in_hand()
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while not self.is_stopped:
            self.fetch(_slice_s(deadline_s))
            message = self.take()
            if message is not None:
                return message
            if _is_over(deadline_s):
                return None
        return None

    def poll_many(self, limit: int, timeout: float) -> list[Message]:
        """Up to `limit` messages, as soon as there is one. Finishes those before.

        An error that librdkafka reports behind the first message is raised by the next call.
        """
        return self._with_more(self.poll(timeout), limit)

    def fetch(self, timeout_s: float) -> None:
        """Commit if it is time to, and wait for messages if there are none. Hands out nothing."""
        if time.monotonic() >= self._commit_due_s:
            self._auto_commit()
        if self._shelf.is_empty:
            self._refill(timeout_s)

    def take(self) -> Message | None:
        """Hand out the next message that was fetched. Never waits."""
        shelf = self._shelf
        while not shelf.is_empty:
            message = shelf.take()
            if message is not None:
                return message
        return None

    def take_more(self) -> Message | None:
        """Hand out one more message, if it was fetched and no error comes before it. Finishes nothing."""
        return self._shelf.take_more()

    def take_ready(self) -> Message | None:
        """The next message if it was fetched and no commit is due: never waits. Finishes the one before."""
        self._shelf.finish_in_hand()
        return self.take() if time.monotonic() < self._commit_due_s else None

    def take_ready_many(self, limit: int) -> list[Message]:
        """As `take_ready`, up to `limit` messages."""
        return self._with_more(self.take_ready(), limit)

    def take_many(self, limit: int) -> list[Message]:
        """As `take`, up to `limit` messages."""
        return self._with_more(self.take(), limit)

    def _with_more(self, first: Message | None, limit: int) -> list[Message]:
        messages: list[Message] = []
        message = first
        while message is not None:
            messages.append(message)
            message = self._shelf.take_more() if len(messages) < limit else None
        return messages

    @property
    def client(self) -> Any:
        """confluent-kafka's own Consumer, for what is not wrapped here."""
        return self._client

    def subscribe(self, topics: Sequence[str]) -> None:
        """Reads these from now on, instead of what was given before."""
        names = checks.topics(topics)
        with errors_of(f"topics {', '.join(names)}"):
            self._client.subscribe(names, **self.assigned.callbacks())
        self.subscribed = names

    def stop(self) -> None:
        """Ends the iteration, or `run`, after the message in hand. Any thread, or a signal handler, may call it."""
        self._stopped = True

    def stop_on_signals(self, *numbers: int) -> None:
        """SIGTERM, or the signals given, call `stop` from now on. For the main thread only, as Python wants it."""
        for number in numbers or (signal.SIGTERM,):
            signal.signal(number, lambda *_: self.stop())

    @property
    def is_stopped(self) -> bool:
        return self._stopped or self._interrupted

    def interrupt(self, on: bool) -> None:
        """End the call that runs now, as `stop` does; with False, the next call works again."""
        self._interrupted = on

    def close(self) -> None:
        """Commits what is finished, and leaves the group."""
        self._close(is_finished=sys.exc_info()[0] is None)

    def commit(self, *, asynchronous: bool = False) -> None:
        """Commits everything handed out so far, the message in hand included."""
        self._refuse_if_closed()
        self._commits.commit(self._shelf.handed_out(), asynchronous=asynchronous)
        self._shelf.finish()  # not if the commit failed
        self.committed_elsewhere()

    def commit_offsets(self, offsets: Mapping[Place, int]) -> None:
        """Commits these: each is the next message to be read."""
        self._commits.commit(offsets, asynchronous=False)

    def assignment(self) -> list[Place]:
        """The partitions that this consumer reads now."""
        return [(place.topic, place.partition) for place in self._client.assignment()]

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next message of that partition will be the one at `offset`. Waits for partitions if it has none."""
        if (topic, partition) not in self.await_assignment():
            raise ConfigurationError(
                f"{topic}-{partition} is not assigned to this consumer",
                remedy="seek in what assignment() says",
            )
        self._seeks.seek({(topic, partition): checks.whole("offset", offset, at_least=0)})

    def seek_to_time(self, when: Time, *, timeout: float = _TIMEOUT_S) -> None:
        """Goes on, in every partition, with the first message of that time or later. Waits for partitions if it has none."""
        self.await_assignment(timeout)
        self._seeks.seek(self.assigned.offsets_at(self.assignment(), epoch_ms(when), timeout))

    def pause(self, places: Sequence[Place] | None = None) -> None:
        """Hands out nothing of these partitions (all, if not given) until `resume`."""
        chosen = set(self._chosen(places))
        self._client.pause([partition(place) for place in chosen])
        self.paused.update(chosen)
        self._shelf.hold(chosen)

    def resume(self, places: Sequence[Place] | None = None) -> None:
        """Goes on with these partitions (all, if not given)."""
        chosen = self._chosen(places)
        self._client.resume([partition(place) for place in chosen])
        self.paused.difference_update(chosen)
        self._shelf.release(chosen)

    def lag(self) -> dict[Place, int]:
        """How many messages each partition has that were not handed out yet."""
        return self.assigned.lag(self._shelf.positions() | self._seeks.offsets())

    def handed_out(self) -> list[Any]:
        """For a transaction: one past what was handed out, as librdkafka takes offsets. Parts of a message do not count."""
        if self._lost_in_hand:
            names = ", ".join(f"{topic}-{index}" for topic, index in sorted(self._lost_in_hand))
            raise TransactionAborted(
                f"{names}: revoked while messages of it were handed out and not committed",
                remedy="run the transaction again, with what poll returns next",
            )
        offsets = self._seeks.in_transaction = self._shelf.handed_out()
        return [partition(place, offset) for place, offset in offsets.items()]

    def committed_elsewhere(self) -> None:
        """What was handed out is committed, by us or by a transaction."""
        self._shelf.origins.update(self._shelf.handed_out())
        self._lost_in_hand.clear()

    def rewind(self) -> None:
        """Hand out again what was handed out since the last commit, of the partitions that are still here."""
        self._lost_in_hand.clear()
        self._seeks.rewind()

    def rewind_in_doubt(self) -> None:
        """As `rewind`, unless the group says that the transaction was committed."""
        self._lost_in_hand.clear()
        self._seeks.rewind_in_doubt()

    def go_to(self, offsets: Mapping[Place, int]) -> None:
        """Continue at these offsets with the next fetch. Only notes it, so it cannot fail."""
        self._seeks.go_to(offsets)

    def end_run(self, offsets: Mapping[Place, int]) -> None:
        """What a run took is finished up to these offsets; the rest is handed out again."""
        handed_out = self._shelf.handed_out()
        self._lost_in_hand.clear()
        self.go_to(
            {place: end for place, end in offsets.items() if end < handed_out.get(place, end)}
        )
        self._shelf.finish()

    def await_assignment(self, timeout: float = _TIMEOUT_S) -> list[Place]:
        """Waits until the group has given this consumer partitions."""
        deadline_s = time.monotonic() + timeout
        while not (places := self.assignment()):
            self._refill(min(_SLICE_S, max(0.0, deadline_s - time.monotonic())))
            if time.monotonic() > deadline_s:
                raise TimedOut(f"group {self.group_id!r} gave no partition in {timeout} s")
        return places

    def refuse_parts(self) -> None:
        """For exactly once: a message that is here in part would hold the offsets of whole ones behind it back."""
        self._shelf.refuses_parts = True

    def first_pending(self, place: Place) -> int | None:
        """Where the oldest message begins whose parts are not all here."""
        return self._shelf.first_pending(place)

    def _refill(self, timeout_s: float) -> None:
        """Fetch the next batch. Nothing that was fetched is lost if this fails."""
        self._refuse_if_closed()
        self.assigned.refuse_if_calling()
        self._shelf.settle()
        self._seeks.apply()
        self.assigned.assign_owed()
        try:
            self._fetch(timeout_s)
        except BaseException:
            self._seeks.doubt()
            raise
        self.assigned.raise_kept()

    def _fetch(self, timeout_s: float) -> None:
        note_origins = not self.auto_commits
        first = self._client.poll(timeout_s)
        if first is None:
            return
        # before `consume`: its callbacks may revoke the partition of `first`, and then `forget` drops it
        self._shelf.put([first], note_origins=note_origins)
        if self._batch_size > 1:
            more = self._client.consume(self._batch_size - 1, 0)
            self._shelf.put(more, note_origins=note_origins)

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise Closed("this consumer is closed")

    def _chosen(self, places: Sequence[Place] | None) -> list[Place]:
        if places is None:
            return self.assignment()
        if not all(type(place) is tuple for place in places):
            raise ConfigurationError(
                f"partitions={places!r}", remedy="give a list of (topic, partition)"
            )
        return list(places)

    def note_starts(self, offsets: Mapping[Place, int]) -> None:
        """The partitions begin here."""
        self._shelf.origins.update(
            {place: offset for place, offset in offsets.items() if offset >= 0}
        )

    def forget(self, places: Sequence[Place], *, commit: bool) -> None:
        """These partitions are no longer ours: commit what is finished of them if that is still possible."""
        try:
            self._shelf.settle()
            finished = self._shelf.finished
            if commit and self.auto_commits:
                self._commits.commit_quietly(
                    {place: finished[place] for place in places if place in finished}
                )
        finally:
            self._note_lost(places)
            self._shelf.forget(set(places))
            for place in places:
                self._commits.forget(place)
                self._seeks.forget(place)
                self.paused.discard(place)

    def _note_lost(self, places: Sequence[Place]) -> None:
        """Without commits of our own, what was handed out of these may be in a transaction."""
        if self.auto_commits:
            return
        handed_out, origins = self._shelf.handed_out(), self._shelf.origins
        self._lost_in_hand.update(
            place
            for place in places
            if place in origins and handed_out.get(place, -1) > origins[place]
        )

    def _auto_commit(self) -> None:
        self._commit_due_s = time.monotonic() + self.commit_interval_s
        if self.auto_commits:
            self._shelf.settle()
            self._commits.commit_quietly(self._shelf.finished, asynchronous=True)

    def commit_finished(self, offsets: Mapping[Place, int], *, wait: bool) -> None:
        """By `run`: commits these, unless this is a broadcast; a refusal is logged, and repeats messages later."""
        if self.has_group:
            self._commits.commit_quietly(offsets, asynchronous=not wait)

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
            self._shelf.finish_in_hand()
        self._shelf.settle()
        self._shelf.drop_all_waiting()
        if self.auto_commits:
            self._commits.commit_quietly(self._shelf.finished)
        self._client.close()
        self._client = self._commits.client = self._seeks.client = ClosedClient("consumer")
        self.assigned.raise_kept()


def _nothing(places: list[Place], may_commit: bool) -> None:
    """Nobody works on the partitions but the caller's own loop."""


def _group(group_id: str | None) -> str:
    if group_id is None:
        return f"broadcast-{uuid4().hex}"
    return checks.text(
        "group_id", group_id, remedy="give a name, or leave it out to get all messages (broadcast)"
    )


def _slice_s(deadline_s: float | None) -> float:
    left_s = _SLICE_S if deadline_s is None else deadline_s - time.monotonic()
    return max(0.0, min(_SLICE_S, left_s))


def _is_over(deadline_s: float | None) -> bool:
    return deadline_s is not None and time.monotonic() >= deadline_s
