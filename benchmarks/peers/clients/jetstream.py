"""NATS JetStream by nats-py: a stream in files, a pull consumer that acknowledges nothing."""

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.peers.registry import client_library

_AT_ONCE = 500
_PATIENCE_S = 0.1
_PUBLISH_TIMEOUT_S = 60.0


class JetStream:
    def __init__(self, port: int, log: str) -> None:
        self._log = log
        self._library = client_library("nats", "nats-py")
        self._api = client_library("nats.js.api", "nats-py")
        self._timeout = client_library("nats.errors", "nats-py").TimeoutError
        self._loop = asyncio.new_event_loop()
        address = f"nats://127.0.0.1:{port}"
        self._connection: Any = self._loop.run_until_complete(self._library.connect(address))
        self._stream: Any = self._connection.jetstream(timeout=_PUBLISH_TIMEOUT_S)
        self._consumer: Any = None

    def create(self) -> None:
        config = self._api.StreamConfig(
            name=self._log, subjects=[self._log], storage=self._api.StorageType.FILE
        )
        self._loop.run_until_complete(self._stream.add_stream(config))

    def publish(self, values: Sequence[bytes]) -> None:
        self._loop.run_until_complete(self._publish(values))

    async def _publish(self, values: Sequence[bytes]) -> None:
        futures = [await self._stream.publish_async(self._log, value) for value in values]
        await asyncio.gather(*futures)

    def receive(self) -> list[bytes]:
        return self._loop.run_until_complete(self._receive())

    async def _receive(self) -> list[bytes]:
        if self._consumer is None:
            config = self._api.ConsumerConfig(ack_policy=self._api.AckPolicy.NONE)
            self._consumer = await self._stream.pull_subscribe(
                self._log, stream=self._log, config=config
            )
        try:
            messages = await self._consumer.fetch(_AT_ONCE, timeout=_PATIENCE_S)
        except (TimeoutError, self._timeout):
            return []
        return [message.data for message in messages]

    def close(self) -> None:
        self._loop.run_until_complete(self._connection.close())
        self._loop.close()


def open_client(port: int, log: str) -> JetStream:
    return JetStream(port, log)
