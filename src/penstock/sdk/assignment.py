"""What the group gives and takes: where to begin, what to commit before it goes, how far behind it is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.sdk import checks
from penstock.sdk.errors import ConfigurationError, from_kafka
from penstock.sdk.librdkafka import errors_of
from penstock.sdk.message import Place

if TYPE_CHECKING:
    from penstock.sdk.reading import Reading

Moved = Callable[[list[Place]], object]

_TIMEOUT_S: Final = 30.0
_LAG_TIMEOUT_S: Final = 5.0
_BEGINNING, _END = -2, -1  # times that stand for the first message, and for the one to come


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

    def __init__(self, consumer: "Reading", users: Callbacks, reset_ms: int | None) -> None:
        users.check()
        self.start_from: Callable[[list[Place]], Mapping[Place, int]] | None = None
        self._consumer = consumer
        self._users = users
        self._reset_ms = reset_ms
        self._is_calling = False
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
        assign = client.incremental_assign if self._consumer.is_incremental else client.assign
        with self._keeping():
            try:
                starts = self._starts(partitions)
            except BaseException:
                assign([])  # rather than a place that may be the wrong one
                raise
            if starts is not None:
                assign(starts)
            _tell(self._users.on_assign, partitions)

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        self._on_loss(partitions, may_commit=True)
        with self._keeping():
            _tell(self._users.on_revoke, partitions)

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        self._on_loss(partitions, may_commit=False)
        with self._keeping():
            _tell(self._users.on_lost, partitions)

    def _on_loss(self, partitions: list[Any], *, may_commit: bool) -> None:
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
        """Where to begin in newly assigned partitions, if librdkafka cannot know: kept elsewhere, or by a time."""
        if self.start_from is not None:
            known = self.start_from(_places(partitions))
            for one in partitions:
                one.offset = known.get((one.topic, one.partition), one.offset)
            return partitions
        if self._reset_ms is None:
            return None
        return self.starts_at(partitions, self._reset_ms, _TIMEOUT_S)

    def starts_at(self, partitions: list[Any], when_ms: int, timeout_s: float) -> list[Any]:
        """Committed offsets, and where there is none, the first message of that time."""
        with errors_of("committed offsets"):
            committed = self._consumer.client.committed(partitions, timeout_s)
        missing = [(one.topic, one.partition) for one in committed if one.offset < 0]
        offsets = self.offsets_at(missing, when_ms, timeout_s)
        for one in committed:
            one.offset = offsets.get((one.topic, one.partition), one.offset)
        return list(committed)

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
