"""Makes the tails of logs durable from a thread, many in one go: the event loop never waits for a disk.

One round at a time. Whoever asks while a round runs is served by the next one, so that a single
fdatasync answers every append that arrived meanwhile (group commit). A failed sync is never retried:
the kernel may have dropped the pages, and a second call would report success over lost data.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from penstock.broker.partition import Partition
from penstock.model.errors import StorageFault
from penstock.storage.log import FlushTicket

_ROUND_PARTITIONS = 1000  # a round's size, so that an urgent request behind a big one is not stuck


class Flusher:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        on_fault: Callable[[StorageFault], None],
    ) -> None:
        self._loop = loop
        self._executor = executor
        self._on_fault = on_fault
        self._waiting: dict[Partition, None] = {}  # a set that keeps its order
        self._running = False
        self._stopped = False

    def stop(self) -> None:
        """Begin no further round; one that runs comes to its end."""
        self._stopped = True

    def request(self, partition: Partition) -> None:
        self._waiting[partition] = None
        if not self._running:
            self._running = True
            self._loop.call_soon(self._begin)  # at the end of this tick: gather what else it brings

    def _begin(self) -> None:
        if self._stopped:
            return
        batch = list(self._waiting)[:_ROUND_PARTITIONS]
        for partition in batch:
            del self._waiting[partition]
        tickets: list[tuple[Partition, FlushTicket]] = []
        for partition in batch:
            if partition.failure is None and partition.is_open:
                partition.unsynced = False
                tickets.append((partition, partition.log.flush_begin()))
        future = self._loop.run_in_executor(
            self._executor, _sync_all, [ticket for _, ticket in tickets]
        )
        future.add_done_callback(lambda done: self._end(tickets, done))

    def _end(
        self, tickets: list[tuple[Partition, FlushTicket]], done: asyncio.Future[None]
    ) -> None:
        error = None if done.cancelled() else done.exception()
        if isinstance(error, StorageFault):
            self._on_fault(error)
        elif error is not None:
            raise error
        elif not done.cancelled():
            for partition, ticket in tickets:
                if partition.failure is None:
                    partition.log.flush_end(ticket)
                    partition.synced(ticket.next_offset, ticket.size_bytes)
        self._running = bool(self._waiting)
        if self._running:
            self._loop.call_soon(self._begin)


def _sync_all(tickets: list[FlushTicket]) -> None:
    for ticket in tickets:
        ticket.sync()
