"""Copies a topic into another, each message once: what was read and what was written are one transaction.

A process of its own, since librdkafka may wait for ever for a coordinator of a group that is gone: one that
is stuck ends, and the next begins where its last committed transaction ended.
"""

import faulthandler
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import confluent_kafka

from tests.support.command import environment
from tests.support.server import until

_rd: Any = confluent_kafka

COPIES: Final = "copies"
COPY_ID: Final = "copier"
COPY_GROUP: Final = "copiers"
_TRY_S: Final = 5.0
_STUCK_S: Final = 12
_QUIET: Final = {
    "log_level": 0,
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 1000,
    "socket.timeout.ms": 4000,
}


class Copier:
    """At work from `with` to its end, or to `end`; who dies is replaced."""

    def __init__(self, bootstrap: str, topic: str, notes: Path) -> None:
        """`notes`: a file that gets a line for each commit, and each error."""
        self._words = [sys.executable, "-m", "tests.support.copier", bootstrap, topic]
        self._notes = notes
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._employ, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def committed(self) -> int:
        return self._notes.read_text().count("committed\n") if self._notes.exists() else 0

    def await_more(self, count: int) -> None:
        goal = self.committed + count
        until(lambda: self.committed >= goal, f"{count} more copied")

    def _employ(self) -> None:
        while not self._ending.is_set():
            with open(self._notes, "ab") as notes:
                process = subprocess.Popen(
                    self._words,
                    stdin=subprocess.DEVNULL,
                    stdout=notes,
                    stderr=notes,
                    env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
                )
            while process.poll() is None and not self._ending.wait(0.05):
                pass
            process.kill()
            process.wait()


def _copy_for_ever(bootstrap: str, topic: str) -> None:
    consumer, producer = _consumer(bootstrap, topic), _producer(bootstrap)
    _insist(lambda: producer.init_transactions(_TRY_S))
    while True:
        messages = [it for it in consumer.consume(200, timeout=0.1) if it.error() is None]
        if messages:
            faulthandler.dump_traceback_later(_STUCK_S, exit=True)
            _copy(messages, consumer, producer)
            faulthandler.cancel_dump_traceback_later()
            sys.stdout.write("committed\n")
            sys.stdout.flush()


def _copy(messages: list[Any], consumer: Any, producer: Any) -> None:
    producer.begin_transaction()
    for message in messages:
        producer.produce(COPIES, message.value(), partition=message.partition())
    places = [it for it in consumer.position(consumer.assignment()) if it.offset >= 0]
    member = consumer.consumer_group_metadata()
    _insist(lambda: producer.send_offsets_to_transaction(places, member, _TRY_S))
    _insist(lambda: producer.commit_transaction(_TRY_S))


def _insist(work: Any) -> None:
    """Until it is done, or cannot be."""
    while True:
        try:
            work()
        except _rd.KafkaException as error:
            if not error.args[0].retriable():
                raise
        else:
            return


def _consumer(bootstrap: str, topic: str) -> Any:
    consumer = _rd.Consumer(
        {
            "bootstrap.servers": bootstrap,
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
    consumer.subscribe([topic])
    return consumer


def _producer(bootstrap: str) -> Any:
    return _rd.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": COPY_ID,
            "transaction.timeout.ms": 20_000,
            "linger.ms": 1,
            **_QUIET,
        }
    )


if __name__ == "__main__":
    try:
        _copy_for_ever(*sys.argv[1:])
    except _rd.KafkaException as failure:
        sys.stdout.write(f"{failure}\n")
        sys.stdout.flush()
    os._exit(1)  # at once: librdkafka would wait until it is done with everything
