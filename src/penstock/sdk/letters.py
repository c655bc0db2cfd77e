"""A dead-letter topic, read from its first letter to its last as of now, and sent back where they came from.

Which letters went back is written to a ledger, in the transactions that send them: see `redrive_ledger`.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from penstock.sdk import dead_letters
from penstock.sdk.errors import UnknownTopic
from penstock.sdk.librdkafka import connect, errors_of
from penstock.sdk.message import Message, Place
from penstock.sdk.producer import Producer
from penstock.sdk.redrive_ledger import Entries, entry_of, entry_value
from penstock.sdk.shelf import Shelf

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.2
_AT_ONCE: Final = 500


class Letters:
    """Iterate for the letters that are there now, of one partition and up to one offset if these are given."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        partition: int | None = None,
        offset: int | None = None,
        librdkafka: Mapping[str, Any] | None = None,
    ) -> None:
        from confluent_kafka import Consumer as Client
        from confluent_kafka import KafkaError

        self.topic: Final = topic
        self._shelf = Shelf((None, None), self._on_event)
        self._eof: int = KafkaError._PARTITION_EOF
        self._client = connect(
            Client,
            {
                "bootstrap.servers": bootstrap,
                "group.id": "penstock-dlq",  # librdkafka wants one; it is not used
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **(librdkafka or {}),
            },
        )
        self._ends: dict[Place, int] = {}
        self._last = (
            None if offset is None else offset + 1
        )  # a split letter begins before its offset
        with errors_of(f"topic {topic!r}"):
            self._assign(partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def __iter__(self) -> Iterator[Message]:
        while True:
            while not self._shelf.is_empty:
                message = self._shelf.take()
                if message is not None:
                    yield message
            if not self._ends:
                return
            self._shelf.finish()
            fetched = self._client.consume(_AT_ONCE, _POLL_S)
            self._shelf.put([raw for raw in fetched if self._is_in_time(raw)], note_origins=False)

    def _assign(self, partition: int | None) -> None:
        from confluent_kafka import TopicPartition

        found = self._client.list_topics(self.topic, _TIMEOUT_S).topics[self.topic]
        if found.error is not None:
            raise UnknownTopic(
                f"topic {self.topic!r} does not exist", remedy="see: penstock dlq list"
            )
        wanted = [index for index in sorted(found.partitions) if partition in (None, index)]
        if not wanted:
            raise UnknownTopic(
                f"topic {self.topic!r} has no partition {partition}",
                remedy=f"it has 0 to {len(found.partitions) - 1}",
            )
        partitions = [TopicPartition(self.topic, index) for index in wanted]
        for one in partitions:
            place = (one.topic, one.partition)
            low, high = self._client.get_watermark_offsets(one, _TIMEOUT_S)
            if self._last is not None:
                high = min(high, self._last)
            one.offset = low
            if one.offset < high:
                self._ends[place] = high
        self._client.assign([one for one in partitions if (one.topic, one.partition) in self._ends])

    def _is_in_time(self, raw: Any) -> bool:
        """Was there when we began. The last of a partition, or its end, closes that partition."""
        place = (raw.topic(), raw.partition())
        end = self._ends.get(place)
        error = raw.error()
        if error is not None and error.code() == self._eof:
            self._ends.pop(place, None)
            return False
        if end is None or error is not None:
            return error is not None
        if raw.offset() >= end - 1:
            del self._ends[place]
        return bool(raw.offset() < end)

    def _on_event(self, _: Any, error: Any) -> None:
        from penstock.sdk.errors import from_kafka

        ours = from_kafka(error, f"topic {self.topic!r}")
        if not ours.retriable:
            raise ours


class Redriven(NamedTuple):
    """How many letters went to each topic, and how many messages did not go."""

    sent: Counter[str]
    passed_over: int  # they are no letters
    sent_before: int


class Selection:
    """Iterate for the letters that are to be sent, with their targets and the keys of their entries; count the others.

    A record that was put aside several times is one letter. What is no dead letter is passed over, unless `to` says
    where it belongs.
    """

    def __init__(self, messages: Iterable[Message], known: Entries, to: str | None) -> None:
        self._messages = messages
        self._known = known
        self._to = to
        self.passed_over = 0
        self.sent_before = 0

    def __iter__(self) -> Iterator[tuple[Message, str, str]]:
        for message in self._messages:
            letter = dead_letters.read(message.headers)
            target = self._to or letter.topic
            if target is None:
                self.passed_over += 1
                continue
            key = entry_of(message, letter, target)
            if key in self._known:
                self.sent_before += 1
                continue
            self._known.add(key)
            yield message, target, key

    def told(self, sent: Counter[str]) -> Redriven:
        return Redriven(sent, self.passed_over, self.sent_before)


def redrive(
    letters: Iterable[Message],
    producer: Producer,
    ledger: str,
    known: Entries,
    *,
    to: str | None = None,
    limit: int | None = None,
) -> Redriven:
    """Send letters back to the topics they came from (or to `to`), each exactly once.

    `known`: what the ledger says, read after the transactions of `producer` were initialized. Empty to send all again.
    """
    selection, sent = Selection(letters, known, to), Counter[str]()
    chosen = islice(selection, limit)
    while batch := list(islice(chosen, _AT_ONCE)):
        for target in {target for _, target, _ in batch}:
            producer.partition_count(target)  # raises at once where there is no such topic
        now_ms = time.time_ns() // 1_000_000
        with producer.transaction():
            for message, target, key in batch:
                headers = dead_letters.redriven(message.headers)
                producer.send(target, message.raw_value, message.raw_key, headers)
                producer.send(ledger, entry_value(now_ms), key.encode())
        sent.update(target for _, target, _ in batch)
    return selection.told(sent)


def counted(
    letters: Iterable[Message], known: Entries, *, to: str | None, limit: int | None
) -> Redriven:
    """Return what `redrive` would do."""
    selection = Selection(letters, known, to)
    sent = Counter(target for _, target, _ in islice(selection, limit))
    return selection.told(sent)
