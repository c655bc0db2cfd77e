"""The one place that keeps a consumer's positions, and the rule that it keeps.

**The rule.** What the application did not get is never committed past, and a call that fails or is
cancelled leaves the consumer as if the call had not been made.

A message passes through these states, and only the application moves it on:

    fetched -> handed out (in hand) -> finished -> committed

1. Waiting and handing out are separate steps. `Reading.fetch` may wait, fail or be cancelled, and
   hands out nothing. `Shelf.take` hands out, never waits, and is the last step of `poll`.
   So a message that a cancelled or failed `poll` fetched stays here, and the next call returns it.
2. A message is finished when the application asks for the next one, when `commit` succeeds, or when
   the consumer is closed without an exception. `finished` stays in front of every message in hand
   and of every message of which only some parts arrived.
3. A partition that is revoked or sought takes everything with it, also its messages in hand:
   nothing of it is handed out or committed afterwards.
4. `run`, `transform`, `run_in_database` and an aborted transaction return what they did not finish:
   `Seeks.go_to` notes where the partition continues. The note cannot fail. The seek itself is
   done before the next fetch, and again before the one after it until it succeeds.

tests/unit/sdk/test_positions.py proves the rule over random interleavings.

No network: testable with anything that looks like librdkafka's messages.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.large import PART_HEADER, Reassembler, decode_part
from penstock.sdk.librdkafka import LOGGER
from penstock.sdk.message import Message, Place, Readers, Reassembled


class Shelf:
    """`batch[:done]` is finished, `batch[done:index]` is in hand, `batch[index:]` waits."""

    def __init__(self, readers: Readers, on_event: Callable[[Any, Any], None]) -> None:
        self.readers = readers
        self.batch: list[Any] = []
        self.index = 0
        self.done = 0
        self.floors: dict[Place, int] = {}  # first offsets of messages in hand that came in parts
        self.finished: dict[Place, int] = {}
        self.origins: dict[Place, int] = {}  # the first offset fetched since the last commit
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
                if raw.error() is None:
                    self.origins.setdefault((raw.topic(), raw.partition()), raw.offset())

    def take(self) -> Message | None:
        """Hand out the next message. Return None for an event, and for a part of a message that is not complete.

        What raises stays: a part that is refused is refused again. An event is reported once.
        """
        raw = self.batch[self.index]
        error = raw.error()
        if error is not None:
            self.index += 1
            self._on_event(raw, error)
            return None
        message = Message(raw, self.readers) if raw.headers() is None else self._with_headers(raw)
        self.index += 1
        return message

    def take_more(self) -> Message | None:
        """Hand out the next message too. Return None if there is none, or if an error may come before it."""
        while not self.is_empty and not self._may_raise(self.batch[self.index]):
            message = self.take()
            if message is not None:
                return message
        return None

    def finish_in_hand(self) -> None:
        """The application asks for more: the messages in hand are finished."""
        self.done = self.index
        self.floors.clear()

    def settle(self) -> None:
        """Move what is finished from the batch to `finished`."""
        for place, offset in _ends(self.batch[: self.done]).items():
            self.finished[place] = min(self._floor(place, offset), self.floors.get(place, offset))
        self._drop(self.done)

    def finish(self) -> None:
        """The messages in hand are finished too."""
        self.finish_in_hand()
        self.settle()

    def handed_out(self) -> dict[Place, int]:
        """Return one past what was handed out, the messages in hand included."""
        ends = _ends(self.batch[: self.index])
        return self.finished | {place: self._floor(place, end) for place, end in ends.items()}

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
        """Drop everything about these partitions: what is finished, in hand and still to be handed out."""
        self.settle()
        self._set_aside(places)
        in_hand = self.batch[: self.index]
        kept = [raw for raw in in_hand if (raw.topic(), raw.partition()) not in places]
        self.batch[: self.index] = kept
        self._settled += len(in_hand) - len(kept)
        self.index = len(kept)
        for place in places:
            for known in (self.finished, self.origins, self.floors, self._held, self._parts):
                known.pop(place, None)

    def drop_waiting(self, places: Collection[Place]) -> None:
        """Drop what is still to be handed out of these partitions. What was handed out stays noted."""
        self._set_aside(places)
        for place in places:
            self._held.pop(place, None)

    def drop_all_waiting(self) -> None:
        """Hand out nothing more."""
        del self.batch[self.index :]
        self._held.clear()

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
        place = (raw.topic(), raw.partition())
        parts = self._parts.setdefault(place, Reassembler())
        whole = parts.add(part, raw.value() or b"", raw.offset())
        if parts.give_up_old(raw.offset()):
            LOGGER.warning("gave up a message whose parts did not all come topic=%s", raw.topic())
        if whole is None:
            return None
        first_offset = min(whole.offsets)
        self.floors[place] = min(first_offset, self.floors.get(place, first_offset))
        others = [header for header in raw.headers() if header[0] != PART_HEADER]
        return Message(Reassembled(raw, whole, others), self.readers)

    def _may_raise(self, raw: Any) -> bool:
        if raw.error() is not None:
            return True
        return self.refuses_parts and PART_HEADER in dict(raw.headers() or ())

    def _drop(self, count: int) -> None:
        """Forget the first messages of the batch: they are finished."""
        del self.batch[:count]
        self._settled += count
        self.index -= count
        self.done = 0

    def _floor(self, place: Place, offset: int) -> int:
        pending = self.first_pending(place)
        return offset if pending is None else min(offset, pending)


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
