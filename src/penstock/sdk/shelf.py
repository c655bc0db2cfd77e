"""Fetched messages on their way to the application, and the books of what it has finished. No network: testable with anything
that looks like librdkafka's messages.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.large import PART_HEADER, Reassembler, decode_part
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message, Place, Readers, Reassembled


class Shelf:
    """`batch[:index]` was handed out; of that, all but the message `in_hand` is finished.

    `finished` never passes the message in hand, nor one of which only some parts are here.
    """

    def __init__(self, readers: Readers, on_event: Callable[[Any, Any], None]) -> None:
        self.readers = readers
        self.batch: list[Any] = []
        self.index = 0
        self.in_hand: Message | None = None
        self.finished: dict[Place, int] = {}
        self.origins: dict[Place, int] = {}  # the first offset handed out since the last commit
        self.refuses_parts = False
        self._settled = 0
        self._on_event = on_event
        self._held: dict[Place, list[Any]] = {}  # fetched, but their partition is paused
        self._parts: dict[Place, Reassembler] = {}

    @property
    def is_empty(self) -> bool:
        return self.index >= len(self.batch)

    @property
    def received(self) -> int:
        """Messages and events taken so far."""
        return self._settled + self.index

    def put(self, fetched: Sequence[Any], *, note_origins: bool) -> None:
        self.batch += fetched
        if note_origins:
            for raw in fetched:
                self.origins.setdefault((raw.topic(), raw.partition()), raw.offset())

    def take(self) -> Message | None:
        """The next message, or None where it was an event, or a part whose rest is still to come."""
        raw = self.batch[self.index]
        self.index += 1
        error = raw.error()
        if error is not None:
            self._on_event(raw, error)
            return None
        message = Message(raw, self.readers) if raw.headers() is None else self._with_headers(raw)
        if message is not None:
            self.in_hand = message
        return message

    def settle(self) -> None:
        """Notes what is finished, and forgets it."""
        count = self.index - (self.in_hand is not None)
        self._settled += count
        for place, offset in _ends(self.batch[:count]).items():
            self.finished[place] = self._floor(place, offset, self.in_hand)
        del self.batch[:count]
        self.index -= count

    def finish(self) -> None:
        """The message in hand is finished too."""
        self.in_hand = None
        self.settle()

    def handed_out(self) -> dict[Place, int]:
        """One past what was handed out, the message in hand included."""
        ends = _ends(self.batch[: self.index])
        return self.finished | {
            place: self._floor(place, offset, None) for place, offset in ends.items()
        }

    def positions(self) -> dict[Place, int]:
        """The next message of each partition that was handed out of, or waits here."""
        first: dict[Place, int] = {}
        for raw in (
            *self.batch[self.index :],
            *(
                raw for held in list(self._held.values()) for raw in held
            ),  # metrics ask from any thread
        ):
            first.setdefault((raw.topic(), raw.partition()), raw.offset())
        return first | self.handed_out()

    def first_pending(self, place: Place) -> int | None:
        """Where the oldest message begins whose parts are not all here."""
        parts = self._parts.get(place)
        return None if parts is None else parts.first_pending

    def hold(self, places: Collection[Place]) -> None:
        """Hands out nothing of these until `release`."""
        for raw in self._set_aside(places):
            self._held.setdefault((raw.topic(), raw.partition()), []).append(raw)

    def release(self, places: Iterable[Place]) -> None:
        for place in places:
            self.batch += self._held.pop(place, [])

    def forget(self, places: Collection[Place]) -> None:
        """Nothing that is known of these partitions holds any more."""
        self._set_aside(places)
        for place in places:
            self.finished.pop(place, None)
            self.origins.pop(place, None)
            self._held.pop(place, None)
            self._parts.pop(place, None)

    def _set_aside(self, places: Collection[Place]) -> list[Any]:
        """Takes what is still to be handed out of these partitions."""
        waiting = self.batch[self.index :]
        self.batch[self.index :] = [
            raw for raw in waiting if (raw.topic(), raw.partition()) not in places
        ]
        return [raw for raw in waiting if (raw.topic(), raw.partition()) in places]

    def _with_headers(self, raw: Any) -> Message | None:
        part = decode_part(dict(raw.headers()).get(PART_HEADER))
        if part is None:
            return Message(raw, self.readers)
        if self.refuses_parts:
            raise ConfigurationError(
                f"{raw.topic()}-{raw.partition()}@{raw.offset()} is a part of a split message",
                remedy="exactly once takes whole messages: send them without split_large",
            )
        parts = self._parts.setdefault((raw.topic(), raw.partition()), Reassembler())
        whole = parts.add(part, raw.value() or b"", raw.offset())
        if parts.give_up_old(raw.offset()):
            LOGGER.warning("gave up a message whose parts did not all come topic=%s", raw.topic())
        if whole is None:
            return None
        others = [header for header in raw.headers() if header[0] != PART_HEADER]
        return Message(Reassembled(raw, whole, others), self.readers)

    def _floor(self, place: Place, offset: int, in_hand: Message | None) -> int:
        floors = [offset]
        pending = self.first_pending(place)
        if pending is not None:
            floors.append(pending)
        if in_hand is not None and in_hand.place == place:
            floors.append(in_hand.first_offset)
        return min(floors)


def _ends(batch: Sequence[Any]) -> dict[Place, int]:
    """One past the last offset of each partition. librdkafka hands out long runs of one partition: look at their ends."""
    ends: dict[Place, int] = {}
    last: Any = None
    topic, partition = None, None
    for raw in batch:
        if raw.partition() != partition or raw.topic() != topic:
            if last is not None:
                ends[(last.topic(), last.partition())] = last.offset() + 1
            topic, partition = raw.topic(), raw.partition()
        if raw.error() is None:
            last = raw
    if last is not None:
        ends[(last.topic(), last.partition())] = last.offset() + 1
    return ends
