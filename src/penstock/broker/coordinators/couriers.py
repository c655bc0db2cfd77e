"""Takes what is meant for another broker there: while one load is on its way, the next one gathers."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from penstock.broker.controller.cluster import Spawn

T = TypeVar("T")

MAX_LOAD: Final = 500


class Courier(Generic[T]):
    """`deliver` takes a load to a broker and must not fail: whatever becomes of it, the senders are told."""

    def __init__(
        self, spawn: Spawn, name: str, deliver: Callable[[int, list[T]], Awaitable[None]]
    ) -> None:
        self._spawn = spawn
        self._name = name
        self._deliver = deliver
        self._queues: dict[int, deque[T]] = {}  # of brokers to which somebody is on the way

    def send(self, broker_id: int, parcel: T) -> None:
        """It leaves at the end of this tick, or when who left before is back."""
        queue = self._queues.get(broker_id)
        if queue is not None:
            queue.append(parcel)
            return
        self._queues[broker_id] = deque([parcel])
        self._spawn(self._go(broker_id), f"{self._name}-{broker_id}")

    async def _go(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        try:
            while queue:
                load = [queue.popleft() for _ in range(min(MAX_LOAD, len(queue)))]
                await self._deliver(broker_id, load)
        finally:
            del self._queues[broker_id]
