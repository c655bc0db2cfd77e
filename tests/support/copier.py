"""Copies a topic into another, each message once: what was read and what was written are one transaction."""

import time
from typing import Any, Final

import confluent_kafka

from tests.support.recorders import Worker
from tests.support.server import until

_rd: Any = confluent_kafka

COPIES: Final = "copies"
COPY_ID: Final = "copier"
COPY_GROUP: Final = "copiers"
_TRY_S: Final = 5.0
_STUCK_S: Final = 20.0  # librdkafka may lose what it is about to send to a group's coordinator
_QUIET: Final = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 4000,
}


class Copier(Worker):
    """After an error it begins anew, where its last committed transaction ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__("copier")
        self.committed = 0
        self.errors: list[Any] = []
        self._bootstrap = bootstrap
        self._topic = topic

    def work(self) -> None:
        while not self._ending.is_set():
            consumer, producer = self._consumer(), self._producer()
            try:
                producer.init_transactions(_STUCK_S)
                while not self._ending.is_set():
                    self._copy_some(consumer, producer)
            except _rd.KafkaException as error:
                self.errors.append(error.args[0])
            finally:
                producer.purge()
                consumer.close()

    def await_more(self, count: int) -> None:
        goal = self.committed + count
        until(lambda: self.committed >= goal or self._death, f"{count} more copied")
        assert self._death is None, self._death

    def _copy_some(self, consumer: Any, producer: Any) -> None:
        messages = [it for it in consumer.consume(200, timeout=0.1) if it.error() is None]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(COPIES, message.value(), partition=message.partition())
        places = [it for it in consumer.position(consumer.assignment()) if it.offset >= 0]
        member = consumer.consumer_group_metadata()
        _insist(lambda: producer.send_offsets_to_transaction(places, member, _TRY_S))
        _insist(lambda: producer.commit_transaction(_TRY_S))
        self.committed += 1

    def _consumer(self) -> Any:
        consumer = _rd.Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": COPY_GROUP,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 50,
                **_QUIET,
            }
        )
        consumer.subscribe([self._topic])
        return consumer

    def _producer(self) -> Any:
        return _rd.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": COPY_ID,
                "transaction.timeout.ms": 20_000,
                "linger.ms": 1,
                **_QUIET,
            }
        )


def _insist(work: Any) -> None:
    """Until it is done, or cannot be, or takes too long."""
    deadline_s = time.monotonic() + _STUCK_S
    while True:
        try:
            work()
        except _rd.KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline_s:
                raise
        else:
            return
