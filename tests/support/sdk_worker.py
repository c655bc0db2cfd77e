"""Producers and consumers as processes that can be killed: each mode keeps one delivery guarantee, or shows its limit.

`python -m tests.support.sdk_worker '{"mode": …}'`. `die_at` names a point and a message: the process kills itself there.
"""

import json
import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import Consumer, Producer
from penstock.sdk.message import Message

END = -1  # after the last message


class Worker:
    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.bootstrap: str = options["bootstrap"]
        self.topic: str = options["topic"]
        self.file = Path(options["file"])

    def point(self, name: str, number: int) -> None:
        """Here a process may be killed on purpose, once; and takes its time, so that it can be killed at random."""
        threading.Event().wait(self.options.get("pace_s", 0.0))
        marker = self.file.with_suffix(".died")
        if self.options.get("die_at") == [name, number] and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, number: int) -> None:
        """One line, in one write: it is there or not."""
        with self.file.open("ab", buffering=0) as file:
            file.write(b"%d\n" % number)

    def noted(self) -> list[int]:
        return [int(line) for line in self.file.read_text().split()] if self.file.exists() else []

    def consumer(self, **more: Any) -> Consumer:
        return Consumer(
            self.bootstrap,
            self.topic,
            group_id="work",
            group_instance_id="worker",  # a restart takes over at once
            max_poll_records=10,
            auto_commit_interval_ms=50,
            **more,
        )

    def numbers(self) -> Iterator[int]:
        noted = self.noted()
        yield from range(max(noted, default=-1) + 1, self.options["count"])

    # producers: the file says how far they are

    def produce_at_most_once(self) -> None:
        """Noted, then sent, and never sent again."""
        with Producer(self.bootstrap, acks=0, retries=0, linger_ms=0) as producer:
            for number in self.numbers():
                self.note(number)
                self.point("noted", number)
                producer.send(self.topic, str(number))
                producer.flush(10)

    def produce_at_least_once(self) -> None:
        """Sent and acknowledged, then noted."""
        with Producer(self.bootstrap, linger_ms=0) as producer:
            for number in self.numbers():
                producer.send(self.topic, str(number)).result()
                self.point("sent", number)
                self.note(number)

    # consumers: the file says what was done

    def consume_at_most_once(self) -> None:
        """Committed, then done."""
        with self.consumer(enable_auto_commit=False) as consumer:
            for message in consumer:
                consumer.commit()
                self.point("committed", int(message.value))
                self.note(int(message.value))
                if int(message.value) == END:
                    return

    def consume_at_least_once(self) -> None:
        """Done, then committed by the loop."""
        with self.consumer() as consumer:
            for message in consumer:
                self.note(int(message.value))
                self.point("done", int(message.value))
                if int(message.value) == END:
                    return

    # exactly once

    def transform(self) -> None:
        with self.consumer(enable_auto_commit=False) as consumer:

            def double(message: Message) -> bytes:
                self.point("transformed", int(message.value))
                if int(message.value) == END:
                    consumer.stop()
                return bytes(message.value)

            consumer.transform(double, to=self.options["to"], transactional_id="transform", batch=7)

    def database(self) -> None:
        connection = self._connect()
        with self.consumer(enable_auto_commit=False) as consumer:

            def insert(cursor: Any, message: Message) -> None:
                cursor.execute(f"INSERT INTO results VALUES ({int(message.value)})")
                self.point("inserted", int(message.value))
                if int(message.value) == END:
                    consumer.stop()

            consumer.run_in_database(connection, insert, batch=7)

    def _connect(self) -> Any:
        if "postgres" in self.options:
            import psycopg

            return psycopg.connect(self.options["postgres"])
        return sqlite3.connect(self.file.with_suffix(".sqlite"), timeout=30)


def main() -> None:
    options = json.loads(sys.argv[1])
    getattr(Worker(options), options["mode"])()


if __name__ == "__main__":
    main()
