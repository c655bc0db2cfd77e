"""A dead-letter topic, read from its first letter to its last as of now, and sent back where they came from.

What was sent back is remembered as the offsets of a group of that topic, in one transaction with the sending.
"""

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
from penstock.sdk.shelf import Shelf

_TIMEOUT_S: Final = 30.0
_POLL_S: Final = 0.2
_AT_ONCE: Final = 500


class Letters:
    """Iterate for the letters that are there now, of one partition and up to one offset if these are given.

    `redriven` says up to where they were sent back before; `skipped`, how many offsets were left out for that.
    """

    auto_commits: bool = False

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        skip_redriven: bool = False,
        partition: int | None = None,
        offset: int | None = None,
        librdkafka: Mapping[str, Any] | None = None,
    ) -> None:
        from confluent_kafka import Consumer as Client
        from confluent_kafka import KafkaError

        self.topic: Final = topic
        self.group_id: Final = f"penstock-dlq.{topic}"
        self._shelf = Shelf((None, None), self._on_event)
        self._eof: int = KafkaError._PARTITION_EOF
        self._client = connect(
            Client,
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group_id,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **(librdkafka or {}),
            },
        )
        self.redriven: dict[Place, int] = {}
        self.skipped = 0
        self._ends: dict[Place, int] = {}
        self._last = (
            None if offset is None else offset + 1
        )  # a split letter begins before its offset
        with errors_of(f"topic {topic!r}"):
            self._assign(skip_redriven, partition)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    @property
    def client(self) -> Any:
        return self._client

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

    def handed_out(self) -> list[Any]:
        from confluent_kafka import TopicPartition

        return [TopicPartition(*place, end) for place, end in self._shelf.handed_out().items()]

    def committed_elsewhere(self) -> None:
        """The transaction holds them: nothing else is to be done."""

    def rewind(self) -> None:
        """Nothing is read again: the next run begins where the last transaction ended."""

    def is_redriven(self, message: Message) -> bool:
        return message.offset < self.redriven.get(message.place, 0)

    def _assign(self, skip_redriven: bool, partition: int | None) -> None:
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
        for one in self._client.committed(partitions, _TIMEOUT_S):
            self.redriven[(one.topic, one.partition)] = max(0, one.offset)
        for one in partitions:
            place = (one.topic, one.partition)
            low, high = self._client.get_watermark_offsets(one, _TIMEOUT_S)
            if self._last is not None:
                high = min(high, self._last)
            one.offset = max(low, self.redriven[place] if skip_redriven else 0)
            self.skipped += one.offset - low
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
    """How many letters went to each topic, and how many messages were passed over because they are no letters."""

    sent: Counter[str]
    passed_over: int


def redrive(
    letters: Letters, producer: Producer, *, to: str | None = None, limit: int | None = None
) -> Redriven:
    """Sends letters back to the topics they came from (or to `to`), each exactly once.

    What is no dead letter is passed over, unless `to` says where it belongs.
    """
    done = Redriven(Counter(), 0)
    source = iter(letters)
    while limit is None or done.sent.total() < limit:
        room = _AT_ONCE if limit is None else min(_AT_ONCE, limit - done.sent.total())
        batch = list(islice(source, room))
        if not batch:
            break
        for target in {target for _, target in targets(batch, to)}:
            producer.partition_count(target)  # raises at once where there is no such topic
        with producer.transaction() as transaction:
            for message, target in targets(batch, to):
                headers = dead_letters.redriven(message.headers)
                producer.send(target, message.raw_value, message.raw_key, headers)
            transaction.send_offsets(letters)
        done = counted(batch, to, done)
    return done


def targets(messages: Iterable[Message], to: str | None) -> Iterator[tuple[Message, str]]:
    """Each letter with the topic it goes to."""
    for message in messages:
        target = to or dead_letters.read(message.headers).topic
        if target is not None:
            yield message, target


def counted(messages: Iterable[Message], to: str | None, before: Redriven) -> Redriven:
    """What sending these amounts to."""
    batch = list(messages)
    sent = Counter(target for _, target in targets(batch, to))
    return Redriven(before.sent + sent, before.passed_over + len(batch) - sent.total())
