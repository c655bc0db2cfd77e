"""Kafka's protocol by confluent-kafka: acks=all, no lingering, a topic of one partition."""

from collections.abc import Sequence
from typing import Any

import confluent_kafka
import confluent_kafka.admin

_admin: Any = confluent_kafka.admin
_PATIENCE_S = 60.0


class Confluent:
    def __init__(self, port: int, log: str) -> None:
        self._log = log
        self._address: dict[str, Any] = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self._producer: Any = None
        self._consumer: Any = None
        self._failures: list[Any] = []

    def create(self) -> None:
        admin = _admin.AdminClient(self._address)
        admin.create_topics([_admin.NewTopic(self._log, 1, 1)])[self._log].result()

    def publish(self, values: Sequence[bytes]) -> None:
        if self._producer is None:
            self._producer = confluent_kafka.Producer(
                {
                    **self._address,
                    "linger.ms": 0,
                    "acks": "all",
                    "delivery.report.only.error": True,
                    "on_delivery": lambda error, _: self._failures.append(error),
                }
            )
        for value in values:
            self._producer.produce(self._log, value, partition=0)
        if self._producer.flush(_PATIENCE_S) or self._failures:
            raise SystemExit(f"not confirmed: {self._failures[:1]}")

    def receive(self) -> list[bytes]:
        if self._consumer is None:
            self._consumer = confluent_kafka.Consumer(
                {**self._address, "group.id": "bench", "enable.auto.commit": False}
            )
            self._consumer.assign([confluent_kafka.TopicPartition(self._log, 0, 0)])
        first = self._consumer.consume(1, 0.1)  # at once when there is one
        messages = [*first, *(self._consumer.consume(1_000, 0) if first else ())]
        for message in messages:
            if message.error():
                raise SystemExit(f"consume failed: {message.error()}")
        return [message.value() or b"" for message in messages]

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def open_client(port: int, log: str) -> Confluent:
    return Confluent(port, log)
