"""A cluster of one topic and a librdkafka consumer of it, in memory: deterministic, and able to fail anywhere.

The fake keeps what the rule of `penstock.sdk.shelf` needs: who owns a partition, what was committed, and which messages
somebody finished. It checks each commit: nothing is committed past a message that nobody finished, and nothing is
committed or handed out of a partition that belongs to another member.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from penstock.sdk.message import Place

TOPIC: Final = "t"
NO_OFFSET: Final = -1001


class Raw:
    """As librdkafka's message, or an event if it has an error."""

    def __init__(self, place: Place, offset: int, error: KafkaError | None = None) -> None:
        self._place = place
        self._offset = offset
        self._error = error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def headers(self) -> None:
        return None

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return b"%d" % self._offset


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        self.now_s += 0.001  # so that every wait ends
        return self.now_s

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Cluster:
    """Logs, committed offsets, and what was finished by whom it may concern."""

    def __init__(self, partitions: int) -> None:
        self.places: list[Place] = [(TOPIC, n) for n in range(partitions)]
        self.ends: dict[Place, int] = dict.fromkeys(self.places, 0)
        self.committed: dict[Place, int] = {}
        self.finished: dict[Place, set[int]] = defaultdict(set)
        self.clock = Clock()

    def commit(self, place: Place, offset: int) -> None:
        missing = set(range(offset)) - self.finished[place]
        assert not missing, f"{place} is committed to {offset}, and nobody finished {missing}"
        self.committed[place] = offset

    def other_member_reads(self, place: Place) -> None:
        start = self.committed.get(place, 0)
        self.finished[place].update(range(start, self.ends[place]))
        self.commit(place, self.ends[place])


class FakeClient:
    """confluent_kafka.Consumer. `on_poll` and `on_consume` run inside of the next call, as rebalance callbacks do."""

    def __init__(self, cluster: Cluster, properties: dict[str, Any]) -> None:
        self.cluster = cluster
        self.properties = properties
        self.positions: dict[Place, int] = {}  # of the assigned partitions: what is fetched next
        self.app_positions: dict[Place, int] = {}
        self.paused: set[Place] = set()
        self.on_poll: deque[Callable[[], object]] = deque()
        self.on_consume: deque[Callable[[], object]] = deque()
        self.events: deque[KafkaError] = deque()
        self.events_behind = 0  # so many messages come before the event
        self.failures: dict[str, BaseException] = {}  # of the next call with this name
        self.reports: deque[tuple[Any, list[Any]]] = deque()
        self._is_giving = False
        self._chosen: dict[Place, int] | None = None  # by the application's callback
        self.refusal: KafkaError | None = None  # of the next asynchronous commit

    # Group ---------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str], **callbacks: Any) -> None:
        self.topics = topics
        self.callbacks = callbacks

    def give(self, places: Sequence[Place]) -> None:
        """The group assigns partitions."""
        self._is_giving = True
        self.callbacks["on_assign"](self, [TopicPartition(*place) for place in places])
        self._is_giving = False
        chosen, self._chosen = self._chosen, None
        for place, offset in (
            dict.fromkeys(places, NO_OFFSET) if chosen is None else chosen
        ).items():
            self._start(place, offset)

    def take_away(self, places: Sequence[Place], *, is_lost: bool) -> None:
        """The group revokes partitions. When they are lost, another member has read them already."""
        if is_lost:
            for place in places:
                self.cluster.other_member_reads(place)
        name = "on_lost" if is_lost else "on_revoke"
        self.callbacks[name](self, [TopicPartition(*place) for place in places])
        for place in places:
            self.positions.pop(place, None)
            self.paused.discard(place)

    def incremental_assign(self, partitions: list[Any]) -> None:
        chosen = {(one.topic, one.partition): one.offset for one in partitions}
        if self._is_giving:
            self._chosen = chosen
        else:
            for place, offset in chosen.items():
                self._start(place, offset)

    def assignment(self) -> list[Any]:
        return [TopicPartition(*place) for place in self.positions]

    def _start(self, place: Place, offset: int) -> None:
        if offset == NO_OFFSET:
            offset = self.cluster.committed.get(place, NO_OFFSET)
        if offset == NO_OFFSET and self.properties["auto.offset.reset"] == "latest":
            offset = self.cluster.ends[place]
        self.positions[place] = max(0, offset)
        self.app_positions[place] = NO_OFFSET

    # Fetching ------------------------------------------------------------------------------------

    def poll(self, timeout_s: float) -> Raw | None:
        while self.reports:
            self.properties["on_commit"](*self.reports.popleft())
        self._call_back(self.on_poll)
        found = next(self._messages(), None)
        if found is None:
            self.cluster.clock.now_s += timeout_s
        self._fail("poll")
        return found

    def consume(self, count: int, timeout_s: float) -> list[Raw]:
        assert timeout_s == 0, "it would wait for all of them"
        self._call_back(self.on_consume)
        found = list(islice(self._messages(), count))
        self._fail("consume")
        return found

    def _messages(self) -> Iterator[Raw]:
        while True:
            if self.events and self.events_behind == 0:
                yield Raw((TOPIC, 0), NO_OFFSET, self.events.popleft())
                continue
            place = next(iter(self._readable()), None)
            if place is None:
                return
            self.events_behind = max(0, self.events_behind - 1)
            offset = self.positions[place]
            self.positions[place] = self.app_positions[place] = offset + 1
            yield Raw(place, offset)

    def _readable(self) -> list[Place]:
        return [
            place
            for place, offset in self.positions.items()
            if offset < self.cluster.ends[place] and place not in self.paused
        ]

    def has_messages(self) -> bool:
        return bool(self._readable())

    def _call_back(self, calls: deque[Callable[[], object]]) -> None:
        if calls:
            calls.popleft()()

    def _fail(self, name: str) -> None:
        failure = self.failures.pop(name, None)
        if failure is not None:
            raise failure

    # Positions -----------------------------------------------------------------------------------

    def seek(self, to: Any) -> None:
        self._fail("seek")
        place = (to.topic, to.partition)
        assert place in self.positions, "librdkafka refuses that"
        self._start(place, to.offset)

    def position(self, partitions: list[Any]) -> list[Any]:
        return [
            TopicPartition(one.topic, one.partition, self.app_positions[(one.topic, one.partition)])
            for one in partitions
        ]

    def committed(self, partitions: list[Any], timeout_s: float) -> list[Any]:
        assert timeout_s > 0
        self._fail("committed")
        known = self.cluster.committed
        return [
            TopicPartition(
                one.topic, one.partition, known.get((one.topic, one.partition), NO_OFFSET)
            )
            for one in partitions
        ]

    def commit(self, offsets: list[Any], asynchronous: bool) -> list[Any] | None:
        if not asynchronous:
            self._fail("commit")
        refusal = self.refusal if asynchronous else None
        self.refusal = None
        for one in offsets:
            place = (one.topic, one.partition)
            assert place in self.positions, f"{place} is committed and belongs to another member"
            if refusal is None:
                self.cluster.commit(place, one.offset)
        if asynchronous:
            named = [
                SimpleNamespace(topic=o.topic, partition=o.partition, error=None) for o in offsets
            ]
            self.reports.append((refusal, named))
            return None
        return list(offsets)

    def pause(self, partitions: list[Any]) -> None:
        self.paused.update((one.topic, one.partition) for one in partitions)

    def resume(self, partitions: list[Any]) -> None:
        self.paused.difference_update((one.topic, one.partition) for one in partitions)

    def list_topics(self, topic: str, timeout: float) -> Any:
        assert timeout > 0
        count = len(self.cluster.places)
        described = SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None)
        return SimpleNamespace(topics={topic: described})

    def offsets_for_times(self, partitions: list[Any], timeout: float) -> list[Any]:
        assert timeout > 0
        return [
            TopicPartition(
                one.topic,
                one.partition,
                0 if one.offset == -2 else self.cluster.ends[(one.topic, one.partition)],
            )
            for one in partitions
        ]

    def close(self) -> None:
        self.on_poll.clear()
        self.on_consume.clear()
        if self.positions:
            self.take_away(list(self.positions), is_lost=False)


def kafka_exception(code: int = KafkaError._TIMED_OUT) -> KafkaException:
    return KafkaException(KafkaError(code))


RETRIABLE: Final = confluent_kafka.KafkaError(KafkaError._ALL_BROKERS_DOWN)
FINAL: Final = confluent_kafka.KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
