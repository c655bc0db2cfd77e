"""Transactional producers and readers of committed records, of libraries that we did not write, behind one face."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import aiokafka
import confluent_kafka
import kafka
import kafka.structs

from tests.support.clients import PATIENCE_S

COMMITTED = "read_committed"
UNCOMMITTED = "read_uncommitted"
Place = tuple[int, int]  # partition, offset


class Transactional(Protocol):
    """A producer with a transactional id. Each call returns when it is done, and raises when it fails."""

    def initialize(self) -> None: ...
    def begin(self) -> None: ...
    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Returns when it is acknowledged."""

    def send_offsets(self, reader: "Reader") -> None:
        """Where the reader is, as a part of the transaction."""

    def commit(self) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...


class Reader(Protocol):
    """A consumer in a group, which commits nothing by itself."""

    def read(self, count: int) -> list[bytes]: ...
    def committed(self, topic: str, partition: int) -> int | None: ...
    def close(self) -> None: ...


class Library(Protocol):
    name: str

    def producer(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000
    ) -> Transactional: ...

    def reader(self, bootstrap: str, topic: str, group: str) -> Reader: ...
    def read_all(
        self, bootstrap: str, topic: str, partitions: int, isolation: str
    ) -> list[list[bytes]]:
        """What each partition has, to what is its end for this isolation."""


# confluent-kafka (librdkafka) --------------------------------------------------------------------


class ConfluentProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int, **more: object):
        self._producer: Any = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 1,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 100,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )

    def initialize(self) -> None:
        self._producer.init_transactions(PATIENCE_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        failures: list[Any] = []
        self._producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: failures.append(error)
        )
        assert self._producer.flush(PATIENCE_S) == 0
        if failures[0] is not None:
            raise confluent_kafka.KafkaException(failures[0])

    def send_offsets(self, reader: Reader) -> None:
        assert isinstance(reader, ConfluentReader)
        self._producer.send_offsets_to_transaction(
            reader.positions(), reader.consumer.consumer_group_metadata(), PATIENCE_S
        )

    def commit(self) -> None:
        self._producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self._producer.abort_transaction(PATIENCE_S)

    def close(self) -> None:
        self._producer.purge()
        with suppress(confluent_kafka.KafkaException):  # one that failed says so again
            self._producer.flush(0)


class ConfluentReader:
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "group.id": group,
                "isolation.level": COMMITTED,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "session.timeout.ms": 45_000,  # a machine may stand still for a while
            }
        )
        self.consumer.subscribe([topic])

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline_s:
            message = self.consumer.poll(0.1)
            if message is not None and message.error() is None:
                found.append(message.value())
        return found

    def positions(self) -> Any:
        return [p for p in self.consumer.position(self.consumer.assignment()) if p.offset >= 0]

    def committed(self, topic: str, partition: int) -> int | None:
        asked = [confluent_kafka.TopicPartition(topic, partition)]
        found = int(self.consumer.committed(asked, PATIENCE_S)[0].offset)
        return found if found >= 0 else None

    def close(self) -> None:
        self.consumer.close()


class Confluent:
    name = "confluent-kafka"

    def producer(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000
    ) -> Transactional:
        return ConfluentProducer(bootstrap, transactional_id, timeout_ms)

    def reader(self, bootstrap: str, topic: str, group: str) -> Reader:
        return ConfluentReader(bootstrap, topic, group)

    def read_all(
        self, bootstrap: str, topic: str, partitions: int, isolation: str
    ) -> list[list[bytes]]:
        consumer: Any = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "group.id": "unused",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, n, 0) for n in range(partitions)])
        found: list[list[bytes]] = [[] for _ in range(partitions)]
        ended: set[int] = set()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline_s, "it comes to no end"
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is None:
                found[message.partition()].append(message.value())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(message.partition())
        consumer.close()
        return found


# kafka-python ------------------------------------------------------------------------------------


class PythonProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._producer: Any = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
        )

    def initialize(self) -> None:
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(PATIENCE_S)

    def send_offsets(self, reader: Reader) -> None:
        assert isinstance(reader, PythonReader)
        self._producer.send_offsets_to_transaction(
            reader.positions(), reader.consumer.group_metadata()
        )

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=0)


class PythonReader:
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.consumer: Any = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level=COMMITTED,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )

    def read(self, count: int) -> list[bytes]:
        found: list[bytes] = []
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline_s:
            # long enough for a rebalance: what a poll that ends amid one leaves behind, it never mends
            for records in self.consumer.poll(2000, max_records=count - len(found)).values():
                found += [record.value for record in records]
        return found

    def positions(self) -> dict[Any, Any]:
        return {
            partition: kafka.structs.OffsetAndMetadata(self.consumer.position(partition), "", -1)
            for partition in self.consumer.assignment()
        }

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self.consumer.committed(kafka.TopicPartition(topic, partition))
        return found

    def close(self) -> None:
        self.consumer.close()


class KafkaPython:
    name = "kafka-python"

    def producer(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000
    ) -> Transactional:
        return PythonProducer(bootstrap, transactional_id, timeout_ms)

    def reader(self, bootstrap: str, topic: str, group: str) -> Reader:
        return PythonReader(bootstrap, topic, group)

    def read_all(
        self, bootstrap: str, topic: str, partitions: int, isolation: str
    ) -> list[list[bytes]]:
        consumer: Any = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            isolation_level=isolation,
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )
        places = [kafka.TopicPartition(topic, number) for number in range(partitions)]
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(places)
        found: list[list[bytes]] = [[] for _ in places]
        deadline_s = time.monotonic() + PATIENCE_S
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline_s, "it comes to no end"
            for place, records in consumer.poll(100).items():
                found[place.partition] += [record.value for record in records]
        consumer.close()
        return found


# aiokafka ----------------------------------------------------------------------------------------


class Aside:
    """An event loop in a thread of its own: its clients are at work also between two calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_S)

    def make(self, kind: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """A client must be made where its loop runs."""

        async def made() -> Any:
            client = kind(*arguments, **options)
            try:
                await client.start()
            except BaseException:
                await client.stop()
                raise
            return client

        return self.run(made())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class AioProducer:
    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self._options = {
            "bootstrap_servers": bootstrap,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
        }
        self._aside = Aside()
        self._producer: Any = None

    def initialize(self) -> None:
        self._producer = self._aside.make(aiokafka.AIOKafkaProducer, **self._options)

    def begin(self) -> None:
        self._aside.run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._aside.run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_offsets(self, reader: Reader) -> None:
        assert isinstance(reader, AioReader)
        self._aside.run(
            self._producer.send_offsets_to_transaction(reader.positions(), reader.group)
        )

    def commit(self) -> None:
        self._aside.run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._aside.run(self._producer.abort_transaction())

    def close(self) -> None:
        if self._producer is not None:
            with suppress(Exception):  # one that failed says so again
                self._aside.run(self._producer.stop())
        self._aside.close()


class AioReader:
    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.group = group
        self._aside = Aside()
        self.consumer: Any = self._aside.make(
            aiokafka.AIOKafkaConsumer,
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            isolation_level=COMMITTED,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            fetch_max_wait_ms=50,
        )

    def read(self, count: int) -> list[bytes]:
        return [self._aside.run(self.consumer.getone()).value for _ in range(count)]

    def positions(self) -> dict[Any, int]:
        return {
            partition: self._aside.run(self.consumer.position(partition))
            for partition in self.consumer.assignment()
        }

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._aside.run(
            self.consumer.committed(aiokafka.TopicPartition(topic, partition))
        )
        return found

    def close(self) -> None:
        self._aside.run(self.consumer.stop())
        self._aside.close()


class Aiokafka:
    name = "aiokafka"

    def producer(
        self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000
    ) -> Transactional:
        return AioProducer(bootstrap, transactional_id, timeout_ms)

    def reader(self, bootstrap: str, topic: str, group: str) -> Reader:
        return AioReader(bootstrap, topic, group)

    def read_all(
        self, bootstrap: str, topic: str, partitions: int, isolation: str
    ) -> list[list[bytes]]:
        aside = Aside()
        consumer = aside.make(
            aiokafka.AIOKafkaConsumer,
            bootstrap_servers=bootstrap,
            isolation_level=isolation,
            fetch_max_wait_ms=50,
        )

        async def all_of_it() -> list[list[bytes]]:
            places = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
            consumer.assign(places)
            await consumer.seek_to_beginning(*places)
            ends = await consumer.end_offsets(places)
            found: list[list[bytes]] = [[] for _ in places]
            while any([await consumer.position(place) < ends[place] for place in places]):
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    found[place.partition] += [record.value for record in records]
            return found

        found: list[list[bytes]] = aside.run(all_of_it())
        aside.run(consumer.stop())
        aside.close()
        return found


LIBRARIES: tuple[Library, ...] = (Confluent(), KafkaPython(), Aiokafka())
CONFLUENT: Library = LIBRARIES[0]
