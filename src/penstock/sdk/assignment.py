"""What the group gives and takes: where to begin, what to commit before it goes, how far behind it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.sdk import checks
from penstock.sdk.errors import ConfigurationError, NoOffset, from_kafka
from penstock.sdk.librdkafka import errors_of
from penstock.sdk.message import Place

if TYPE_CHECKING:
    from penstock.sdk.reading import Reading

Moved = Callable[[list[Place]], object]

_TIMEOUT_S: Final = 30.0
_LAG_TIMEOUT_S: Final = 5.0
_BEGINNING, _END = -2, -1  # times that stand for the first message, and for the one to come
_FIRST_MESSAGE: Final = -2  # librdkafka's offset for it


class Callbacks(NamedTuple):
    """The application's."""

    on_assign: Moved | None
    on_revoke: Moved | None
    on_lost: Moved | None

    def check(self) -> None:
        for name, call in self._asdict().items():
            checks.function(name, call)


class Assignment:
    """librdkafka's rebalance callbacks. They run inside the consumer's own poll, on its thread.

    What they raise would be lost inside librdkafka: it is kept, and raised when the poll has come back.
    """

    def __init__(self, consumer: "Reading", users: Callbacks, reset: str | int) -> None:
        users.check()
        self.start_from: Callable[[list[Place]], Mapping[Place, int]] | None = None
        self._consumer = consumer
        self._users = users
        self._reset = reset  # a policy, or milliseconds since 1970
        self._is_calling = False
        self._owed: list[Any] = []  # partitions whose begin could not be found out yet
        self._counts: dict[str, int] = {}  # partitions of each topic when the group first answered
        self._noted_all = False  # with a pattern: a topic without a count did not exist then
        self._error: BaseException | None = None

    def callbacks(self) -> dict[str, Any]:
        return {
            "on_assign": self._on_assign,
            "on_revoke": self._on_revoke,
            "on_lost": self._on_lost,
        }

    def raise_kept(self) -> None:
        """What a callback raised."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def refuse_if_calling(self) -> None:
        if self._is_calling:
            raise ConfigurationError(
                "a rebalance callback cannot wait for messages or partitions",
                remedy="note what came, and seek after the next poll",
            )

    def _on_assign(self, client: Any, partitions: list[Any]) -> None:
        self._consumer.metrics.rebalances += 1
        with self._keeping():
            try:
                self._assign(partitions, is_forced=False)
            except BaseException:
                self._owed = list(partitions)
                self._incremental_or_whole(client)([])  # rather than a wrong place: `assign_owed`
                raise
            _tell(self._users.on_assign, partitions)

    def assign_owed(self) -> None:
        """Assign the partitions whose begin could not be found out when the group gave them."""
        if self._owed:
            self._assign(self._owed, is_forced=True)
            self._owed = []

    def _assign(self, partitions: list[Any], *, is_forced: bool) -> None:
        """Begin with these partitions; without a begin of ours, librdkafka does it in its own way."""
        starts = self._starts(partitions)
        if starts is None and not is_forced:
            return
        chosen = partitions if starts is None else starts
        self._incremental_or_whole(self._consumer.client)(chosen)
        self._consumer.note_starts({(one.topic, one.partition): one.offset for one in chosen})

    def _incremental_or_whole(self, client: Any) -> Callable[[list[Any]], object]:
        assign: Callable[[list[Any]], object] = (
            client.incremental_assign if self._consumer.is_incremental else client.assign
        )
        return assign

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        self._on_loss(partitions, may_commit=True)
        with self._keeping():
            _tell(self._users.on_revoke, partitions)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self._on_loss(partitions, may_commit=False)
        with self._keeping():
            _tell(self._users.on_lost, partitions)

    def _on_loss(self, partitions: list[Any], *, may_commit: bool) -> None:
        gone = set(_places(partitions))
        self._owed = [one for one in self._owed if (one.topic, one.partition) not in gone]
        with self._keeping():
            self._consumer.before_loss(_places(partitions), may_commit)
        with self._keeping():
            self._consumer.forget(_places(partitions), commit=may_commit)

    @contextmanager
    def _keeping(self) -> Iterator[None]:
        self._is_calling = True
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # raised by `raise_kept`
            self._error = self._error or error
        finally:
            self._is_calling = False

    def _starts(self, partitions: list[Any]) -> list[Any] | None:
        """Where to begin in newly assigned partitions. `None` leaves it to librdkafka."""
        if self.start_from is not None:
            known = self.start_from(_places(partitions))
            for one in partitions:
                one.offset = known.get((one.topic, one.partition), one.offset)
            return partitions
        if isinstance(self._reset, int):
            return self.starts_at(partitions, self._reset, _TIMEOUT_S)
        if self._reset == "latest":
            return self._starts_at_latest(partitions)
        return None

    def _starts_at_latest(self, partitions: list[Any]) -> list[Any] | None:
        """'latest' means: from now on. A partition that is added later begins with its first message.

        The consumer could not see the partition at once. What was written into it until then came
        after the consumer started, so it must not be skipped. A committed offset goes first.
        """
        self._note_counts()
        added = [one for one in partitions if self._is_added(one.topic, one.partition)]
        if not added:
            return None
        with errors_of("committed offsets"):
            committed = self._consumer.client.committed(added, _TIMEOUT_S)
        begins = {
            (one.topic, one.partition): one.offset if one.offset >= 0 else _FIRST_MESSAGE
            for one in committed
        }
        for one in partitions:
            one.offset = begins.get((one.topic, one.partition), one.offset)
        return partitions

    def _is_added(self, topic: str, index: int) -> bool:
        count = self._counts.get(topic, 0 if self._noted_all else None)
        return count is not None and index >= count

    def _note_counts(self) -> None:
        """Note how many partitions each topic has when the group first answers; 0 if it does not exist yet."""
        names = [name for name in self._consumer.subscribed if name not in self._counts]
        patterns = [name for name in names if name.startswith("^")]
        if patterns:
            self._counts |= dict.fromkeys(patterns, 0)  # noted: there is no topic of that name
            self._noted_all = True
            self._counts = self._ask_counts() | self._counts
        for name in names:
            if name not in self._counts:
                self._counts |= self._ask_counts(name)

    def _ask_counts(self, *topic: str) -> dict[str, int]:
        """Of one topic, or of all. A topic that cannot be described now is left out."""
        with errors_of("partitions of the topics"):
            found = self._consumer.client.list_topics(*topic, timeout=_TIMEOUT_S).topics
        return {
            name: len(described.partitions)
            for name, described in found.items()
            if described.error is None or described.error.name() == "UNKNOWN_TOPIC_OR_PART"
        }

    def starts_at(self, partitions: list[Any], when_ms: int, timeout_s: float) -> list[Any]:
        """Committed offsets, and where there is none, the first message of that time."""
        with errors_of("committed offsets"):
            committed = self._consumer.client.committed(partitions, timeout_s)
        missing = [(one.topic, one.partition) for one in committed if one.offset < 0]
        offsets = self.offsets_at(missing, when_ms, timeout_s)
        for one in committed:
            one.offset = offsets.get((one.topic, one.partition), one.offset)
        return list(committed)

    def first_offsets(self, places: Sequence[Place]) -> dict[Place, int]:
        """Where auto_offset_reset begins in these partitions, whatever the group committed."""
        if self._reset == "none" and places:
            topic, index = places[0]
            raise NoOffset(f"{topic}-{index} has no offset, and auto_offset_reset is 'none'")
        times = {"earliest": _BEGINNING, "latest": _END}
        when_ms = self._reset if isinstance(self._reset, int) else times[self._reset]
        return self.offsets_at(places, when_ms, _TIMEOUT_S)

    def committed_of(self, place: Place) -> int:
        """The group's offset in a partition; negative if there is none."""
        from confluent_kafka import TopicPartition

        with errors_of("committed offsets"):
            (found,) = self._consumer.client.committed([TopicPartition(*place)], _TIMEOUT_S)
        if found.error is not None:
            raise from_kafka(found.error, f"topic {place[0]!r}")
        return int(found.offset)

    def start_of(self, place: Place, position: int) -> int:
        """Where librdkafka began in a partition of which it lost what it took before `position`."""
        committed = self.committed_of(place) if self._consumer.has_group else -1
        if committed >= 0:
            return committed
        return _FIRST_MESSAGE if self._reset == "earliest" else position - 1

    def offsets_at(
        self, places: Sequence[Place], when_ms: int, timeout_s: float
    ) -> dict[Place, int]:
        """The first message of that time or later in each partition; the end where there is none."""
        from confluent_kafka import TopicPartition

        if not places:
            return {}
        asked = [TopicPartition(*place, when_ms) for place in places]
        with errors_of("offsets of a time"):
            found = self._consumer.client.offsets_for_times(asked, timeout=timeout_s)
        for one in found:
            if one.error is not None:
                raise from_kafka(one.error, f"topic {one.topic!r}")
        return {(one.topic, one.partition): int(one.offset) for one in found}

    def lag(self, positions: Mapping[Place, int]) -> dict[Place, int]:
        """One question for all partitions: each has to wait for a fetch that waits at the broker."""
        client = self._consumer.client
        with errors_of("lag"):
            assigned = client.position(client.assignment())
            at = {(one.topic, one.partition): one.offset for one in assigned} | dict(positions)
            unread = [one for one in assigned if at[(one.topic, one.partition)] < 0]
            for one in client.committed(unread, _LAG_TIMEOUT_S) if unread else ():
                at[(one.topic, one.partition)] = one.offset
        places = _places(assigned)
        ends = self.offsets_at(places, _END, _LAG_TIMEOUT_S)
        fresh = [place for place in places if at[place] < 0]
        at |= self.offsets_at(fresh, _BEGINNING, _LAG_TIMEOUT_S)
        return {place: max(0, ends[place] - at[place]) for place in places}


def _places(partitions: list[Any]) -> list[Place]:
    return [(one.topic, one.partition) for one in partitions]


def _tell(call: Moved | None, partitions: list[Any]) -> None:
    if call is not None:
        call(_places(partitions))
