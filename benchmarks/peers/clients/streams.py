"""Redis Streams by redis-py: XADD in pipelines, XREAD from the start."""

from collections.abc import Sequence
from typing import Any

from benchmarks.peers.registry import client_library

_AT_ONCE = 1_000
_PATIENCE_MS = 100


class RedisStream:
    def __init__(self, port: int, log: str) -> None:
        self._log = log
        self._redis: Any = client_library("redis", "redis").Redis(host="127.0.0.1", port=port)
        self._last: bytes = b"0"

    def create(self) -> None:
        self._redis.ping()  # the first message makes it

    def publish(self, values: Sequence[bytes]) -> None:
        if len(values) == 1:
            self._redis.xadd(self._log, {"v": values[0]})
            return
        pipeline = self._redis.pipeline(transaction=False)
        for value in values:
            pipeline.xadd(self._log, {"v": value})
        pipeline.execute()

    def receive(self) -> list[bytes]:
        answer = self._redis.xread({self._log: self._last}, count=_AT_ONCE, block=_PATIENCE_MS)
        if not answer:
            return []
        ((_, entries),) = answer.items() if isinstance(answer, dict) else answer
        self._last = entries[-1][0]
        return [fields[b"v"] for _, fields in entries]

    def close(self) -> None:
        self._redis.close()


def open_client(port: int, log: str) -> RedisStream:
    return RedisStream(port, log)
