"""Members of groups with clients that we did not write, and one record of what all of them did together.

The record knows the law: nothing is lost, and nothing is worked on again after its commit was acknowledged.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka

from tests.support.failures import DataError, NotInTime

PATIENCE_S = 60.0  # ten times and more of what anything here needs
Place = tuple[str, int, int]  # topic, partition, offset


class Record:
    """What members did, in the order in which it happened. Any thread may add to it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.worked_on: list[tuple[str, Place]] = []  # member and place
        self.committed: dict[tuple[str, int], int] = {}
        self.owned: dict[str, frozenset[tuple[str, int]]] = {}  # by member, as last told
        self.assignments: list[tuple[str, frozenset[tuple[str, int]]]] = []
        self.wrongs: list[str] = []

    def work(self, member: str, topic: str, partition: int, offset: int) -> None:
        with self._changed:
            if offset < self.committed.get((topic, partition), 0):
                self.wrongs.append(f"{member} got {topic}-{partition}@{offset} after its commit")
            self.worked_on.append((member, (topic, partition, offset)))
            self._changed.notify_all()

    def commit(self, topic: str, partition: int, next_offset: int) -> None:
        with self._changed:
            known = self.committed.get((topic, partition), 0)
            self.committed[topic, partition] = max(known, next_offset)
            self._changed.notify_all()

    def own(self, member: str, partitions: frozenset[tuple[str, int]]) -> None:
        with self._changed:
            self.owned[member] = partitions
            self.assignments.append((member, partitions))
            self._changed.notify_all()

    def gone(self, member: str) -> None:
        with self._changed:
            self.owned.pop(member, None)
            self._changed.notify_all()

    def until(
        self, what: Callable[[], bool], why: str, error: type[AssertionError] = NotInTime
    ) -> None:
        """Wait until `what` is true; raise `error` with what is missing at the deadline."""
        with self._changed:
            if not self._changed.wait_for(what, PATIENCE_S):
                raise error(f"{why}: not within {PATIENCE_S} s; owned now: {self.owned}")

    def places(self) -> set[Place]:
        return {place for _, place in self.worked_on}

    def until_worked_on(self, places: set[Place]) -> None:
        self.until(lambda: places <= self.places(), "some messages did not arrive", DataError)

    def until_shared(self, members: int, partitions: int) -> None:
        """Each partition has one owner, and every member that can have one has one."""

        def shared() -> bool:
            held = [p for owned in self.owned.values() for p in owned]
            busy = sum(1 for owned in self.owned.values() if owned)
            return (
                len(self.owned) == members
                and len(held) == len(set(held)) == partitions
                and busy == min(members, partitions)
            )

        self.until(shared, f"{partitions} partitions over {members} members")


class Client(Protocol):
    """What a member needs of a client library."""

    def poll(self) -> list[Place]: ...
    def commit(self) -> dict[tuple[str, int], int]:
        """What was acknowledged: the next offset of each partition."""

    def close(self) -> None: ...


Connect = Callable[["Member"], Client]


class Member:
    """One member in a thread of its own: works, commits, and goes when told to."""

    def __init__(
        self, name: str, connect: Connect, record: Record, *, pause_s: float = 0.0
    ) -> None:
        self.name = name
        self.record = record
        self._connect = connect
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.error: BaseException | None = None
        # a member of a consumer group is not told that it has nothing
        record.own(name, frozenset())
        self._thread.start()

    def close(self) -> None:
        """Leave the group. Raises what went wrong in the thread."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self.name} did not stop"
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            client = self._connect(self)
            try:
                while not self._stop.is_set():
                    self._turn(client)
            finally:
                client.close()
                self.record.gone(self.name)
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever closes us
            self.error = error

    def _turn(self, client: Client) -> None:
        places = client.poll()
        for topic, partition, offset in places:
            self.record.work(self.name, topic, partition, offset)
        if self._pause_s:
            time.sleep(self._pause_s)
        if places:
            for (topic, partition), next_offset in client.commit().items():
                self.record.commit(topic, partition, next_offset)


# confluent-kafka ---------------------------------------------------------------------------------


def confluent(bootstrap: str, group: str, *topics: str, **settings: Any) -> Connect:
    """Settings with underscores for dots."""

    def connect(member: Member) -> Client:
        return _Confluent(member, bootstrap, group, topics, settings)

    return connect


class _Confluent:
    def __init__(
        self,
        member: Member,
        bootstrap: str,
        group: str,
        topics: tuple[str, ...],
        settings: Mapping[str, Any],
    ) -> None:
        self._member = member
        self._owned: set[tuple[str, int]] = set()
        self._next: dict[tuple[str, int], int] = {}
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._consumer.subscribe(
            list(topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_revoke,
        )

    def _on_assign(self, _: Any, partitions: list[Any]) -> None:
        self._owned |= {(p.topic, p.partition) for p in partitions}
        self._member.record.own(self._member.name, frozenset(self._owned))

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        gone = {(p.topic, p.partition) for p in partitions}
        self._owned -= gone
        for partition in gone:
            self._next.pop(partition, None)
        self._member.record.own(self._member.name, frozenset(self._owned))

    def poll(self) -> list[Place]:
        places = []
        for message in self._consumer.consume(50, timeout=0.1):
            error = message.error()
            if error is not None:
                if error.retriable() or error.code() in _PASSING:
                    continue
                raise confluent_kafka.KafkaException(error)
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            places.append((topic, partition, offset))
            self._next[topic, partition] = offset + 1
        return places

    def commit(self) -> dict[tuple[str, int], int]:
        offsets = [
            confluent_kafka.TopicPartition(topic, partition, offset)
            for (topic, partition), offset in self._next.items()
        ]
        if not offsets:
            return {}
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=False)
        except confluent_kafka.KafkaException:
            return {}  # a rebalance came first: someone else will work on it again
        self._next.clear()
        return {(p.topic, p.partition): p.offset for p in done if p.error is None}

    def close(self) -> None:
        self._consumer.close()


_PASSING = {
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
    confluent_kafka.KafkaError.NOT_COORDINATOR,
    confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    confluent_kafka.KafkaError.COORDINATOR_NOT_AVAILABLE,
}


# kafka-python ------------------------------------------------------------------------------------


def kafka_python(bootstrap: str, group: str, *topics: str, **settings: Any) -> Connect:
    def connect(member: Member) -> Client:
        return _KafkaPython(member, bootstrap, group, topics, settings)

    return connect


class _KafkaPython(kafka.ConsumerRebalanceListener):  # type: ignore[misc] # the library has no types
    def __init__(
        self,
        member: Member,
        bootstrap: str,
        group: str,
        topics: tuple[str, ...],
        settings: Mapping[str, Any],
    ) -> None:
        self._member = member
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **settings,
        )
        self._consumer.subscribe(list(topics), listener=self)

    def on_partitions_assigned(self, assigned: Any) -> None:
        owned = frozenset((p.topic, p.partition) for p in assigned)
        self._member.record.own(self._member.name, owned)

    def on_partitions_revoked(self, _: Any) -> None:
        self._member.record.own(self._member.name, frozenset())

    def poll(self) -> list[Place]:
        # long enough for a rebalance: what a poll that ends amid one leaves behind, it never mends
        try:
            polled = self._consumer.poll(timeout_ms=2000, max_records=50)
        except kafka.errors.KafkaError as error:
            if error.retriable:  # a broker that is away for a moment
                return []
            raise
        return [(m.topic, m.partition, m.offset) for part in polled.values() for m in part]

    def commit(self) -> dict[tuple[str, int], int]:
        try:
            positions = {
                (p.topic, p.partition): self._consumer.position(p)
                for p in self._consumer.assignment()
            }
            self._consumer.commit()
        except kafka.errors.KafkaError:
            return {}  # a rebalance came first, maybe before it knew where a new partition begins
        return {place: offset for place, offset in positions.items() if offset is not None}

    def close(self) -> None:
        self._consumer.close(autocommit=False)


# aiokafka ----------------------------------------------------------------------------------------


def aio(bootstrap: str, group: str, *topics: str, **settings: Any) -> Connect:
    def connect(member: Member) -> Client:
        return _Aio(member, bootstrap, group, topics, settings)

    return connect


class _Aio(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc] # the library has no types
    """Its loop runs only while one of the methods does, as in a program that awaits nothing else."""

    def __init__(
        self,
        member: Member,
        bootstrap: str,
        group: str,
        topics: tuple[str, ...],
        settings: Mapping[str, Any],
    ) -> None:
        self._member = member
        self._next: dict[aiokafka.TopicPartition, int] = {}  # of what it has, and nothing else
        self._owned: set[aiokafka.TopicPartition] = set()
        self._runner = asyncio.Runner()

        async def start() -> aiokafka.AIOKafkaConsumer:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap,
                group_id=group,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                **settings,
            )
            consumer.subscribe(list(topics), listener=self)
            await consumer.start()
            return consumer

        self._consumer = self._runner.run(start())

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._owned = set(assigned)
        owned = frozenset((p.topic, p.partition) for p in assigned)
        self._member.record.own(self._member.name, owned)

    async def on_partitions_revoked(self, _: Any) -> None:
        self._owned.clear()
        self._next.clear()
        self._member.record.own(self._member.name, frozenset())

    def poll(self) -> list[Place]:
        try:
            polled = self._runner.run(self._consumer.getmany(timeout_ms=100, max_records=50))
        except aiokafka.errors.KafkaError as error:
            if error.retriable:
                return []
            raise
        # a rebalance may have begun in the same turn of the loop: then others may have it by now
        kept = {place: part for place, part in polled.items() if place in self._owned}
        self._next.update({place: part[-1].offset + 1 for place, part in kept.items() if part})
        return [(m.topic, m.partition, m.offset) for part in kept.values() for m in part]

    def commit(self) -> dict[tuple[str, int], int]:
        async def commit() -> dict[tuple[str, int], int]:
            offsets = dict(self._next)
            if not offsets:
                return {}
            try:
                await self._consumer.commit(offsets)
            except aiokafka.errors.KafkaError:
                return {}  # see above
            return {(p.topic, p.partition): offset for p, offset in offsets.items()}

        return self._runner.run(commit())

    def close(self) -> None:
        self._runner.run(self._consumer.stop())
        self._runner.close()


CLIENTS: dict[str, Callable[..., Connect]] = {
    "confluent": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio,
}


class Company:
    """The members of a test; those that are still there at its end are closed."""

    def __init__(self) -> None:
        self.record = Record()
        self._members: list[Member | KillableMember] = []

    def member(self, name: str, connect: Connect) -> Member:
        member = Member(name, connect, self.record)
        self._members.append(member)
        return member

    def killable(
        self, name: str, client: str, *arguments: str, **settings: Any
    ) -> "KillableMember":
        member = KillableMember(name, client, list(arguments), settings, self.record)
        self._members.append(member)
        return member

    def close(self) -> None:
        members, self._members = self._members, []
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others
            for member in members:
                stack.callback(member.close)


# Members that can be killed ----------------------------------------------------------------------


class KillableMember:
    """A member in a process of its own; what it does arrives here line by line."""

    def __init__(
        self, name: str, client: str, arguments: list[str], settings: dict[str, Any], record: Record
    ) -> None:
        self.name, self.record = name, record
        record.own(name, frozenset())
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, name, client, json.dumps([arguments, settings])],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._thread.join(PATIENCE_S)
        self._process.wait(PATIENCE_S)
        self.record.gone(self.name)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.closing(self._process.stdout) as lines:
            for line in lines:
                kind, *rest = json.loads(line)
                if kind == "own":
                    self.record.own(self.name, frozenset((t, p) for t, p in rest[0]))
                elif kind == "work":
                    self.record.work(self.name, *rest)
                else:
                    self.record.commit(*rest)


class _Telling(Record):
    """The record of a member that tells another process."""

    def work(self, _: str, topic: str, partition: int, offset: int) -> None:
        _tell("work", topic, partition, offset)

    def commit(self, topic: str, partition: int, next_offset: int) -> None:
        _tell("commit", topic, partition, next_offset)

    def own(self, _: str, partitions: frozenset[tuple[str, int]]) -> None:
        _tell("own", sorted(partitions))


def _tell(*what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _name, _client, _rest = sys.argv[1:]
    _arguments, _settings = json.loads(_rest)
    _member = Member(_name, CLIENTS[_client](*_arguments, **_settings), _Telling())
    threading.Event().wait()
