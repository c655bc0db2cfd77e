"""RabbitMQ by pika: a stream as queue, publisher confirms counted as they come, a consumer that acknowledges in bulk."""

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.registry import client_library

_PREFETCH = 1_000
_AT_ONCE = 500
_PATIENCE_S = 0.1
_STREAM = {"x-queue-type": "stream"}


class Amqp:
    def __init__(self, port: int, log: str) -> None:
        self._pika = client_library("pika", "pika")
        self._parameters = self._pika.ConnectionParameters("127.0.0.1", port)
        self._log = log
        self._publisher: Publisher | None = None
        self._connection: Any = None
        self._messages: Any = None

    def create(self) -> None:
        with self._pika.BlockingConnection(self._parameters) as connection:
            connection.channel().queue_declare(self._log, durable=True, arguments=_STREAM)

    def publish(self, values: Sequence[bytes]) -> None:
        if self._publisher is None:
            self._publisher = Publisher(self._pika, self._parameters, self._log)
        self._publisher.publish(values)

    def receive(self) -> list[bytes]:
        if self._connection is None:
            self._connection = self._pika.BlockingConnection(self._parameters)
            self._channel = self._connection.channel()
            self._channel.basic_qos(prefetch_count=_PREFETCH)
            self._messages = self._channel.consume(
                self._log, arguments={"x-stream-offset": "first"}, inactivity_timeout=_PATIENCE_S
            )
        values: list[bytes] = []
        tag = None
        for method, _, body in self._messages:
            if method is None:
                break
            tag = method.delivery_tag
            values.append(body)
            if len(values) == _AT_ONCE or not self._channel.get_waiting_message_count():
                break
        if tag is not None:
            self._channel.basic_ack(tag, multiple=True)
        return values

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class Publisher:
    """pika's blocking channel waits for each confirm; this one has many on their way."""

    def __init__(self, pika: Any, parameters: Any, log: str) -> None:
        self._log = log
        self._sent = self._confirmed = 0
        self._is_ready = False
        self._channel: Any = None
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._connection: Any = pika.SelectConnection(parameters, on_open_callback=self._on_open)
        self._loop = self._connection.ioloop
        self._loop.activate_poller()
        while not self._is_ready:
            self._turn()

    def publish(self, values: Sequence[bytes]) -> None:
        for value in values:
            self._channel.basic_publish("", self._log, value, self._properties)
        self._sent += len(values)
        while self._confirmed < self._sent:
            self._turn()

    def _turn(self) -> None:
        if self._connection.is_closed or self._connection.is_closing:
            raise SystemExit("RabbitMQ closed the connection")
        self._loop.poll()
        self._loop.process_timeouts()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._on_confirm, callback=self._on_selected)

    def _on_selected(self, _: Any) -> None:
        self._is_ready = True

    def _on_confirm(self, frame: Any) -> None:
        if type(frame.method).__name__ != "Ack":
            raise SystemExit(f"RabbitMQ refused message {frame.method.delivery_tag}")
        if frame.method.multiple:
            self._confirmed = frame.method.delivery_tag
        else:
            self._confirmed += 1


def open_client(port: int, log: str) -> Amqp:
    return Amqp(port, log)
