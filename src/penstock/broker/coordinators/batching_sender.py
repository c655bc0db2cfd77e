"""Send items to other brokers in batches: while one is in flight, the next one collects."""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

from penstock.broker.controller.cluster import Spawn

T = TypeVar("T")

MAX_BATCH: Final = 500


class BatchingSender(Generic[T]):
    """`deliver` sends a batch to a broker. It must not raise: it reports every outcome itself."""

    def __init__(
        self, spawn: Spawn, name: str, deliver: Callable[[int, list[T]], Awaitable[None]]
    ) -> None:
        self._spawn = spawn
        self._name = name
        self._deliver = deliver
        self._queues: dict[int, deque[T]] = {}  # of brokers with a request in flight

    def send(self, broker_id: int, item: T) -> None:
        """Send the item at the end of this tick, or when the request in flight has completed."""
        queue = self._queues.get(broker_id)
        if queue is not None:
            queue.append(item)
            return
        self._queues[broker_id] = deque([item])
        self._spawn(self._go(broker_id), f"{self._name}-{broker_id}")

    async def _go(self, broker_id: int) -> None:
        queue = self._queues[broker_id]
        try:
            while queue:
                batch = [queue.popleft() for _ in range(min(MAX_BATCH, len(queue)))]
                await self._deliver(broker_id, batch)
        finally:
            del self._queues[broker_id]
