"""Makes the tails of logs durable from a thread, many in one go: the event loop never waits for a disk.

One round at a time. Whoever asks while a round runs is served by the next one, so that a single
fdatasync answers every append that arrived meanwhile (group commit). A failed sync is never retried:
the kernel may have dropped the pages, and a second call would report success over lost data. A flush
for which there was no descriptor has not failed: it is put off, and counts for nothing until then. What a
round made durable counts only for the log that it began with, and only if that was not cut since.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from penstock.broker.partitions.partition import Partition
from penstock.model.errors import BrokerError, OutOfResources, StorageFault
from penstock.storage.log import FlushTicket, Log
from penstock.storage.syncs import Syncs

_log = logging.getLogger(__name__)

_ROUND_PARTITIONS: Final = 1000  # so that an urgent request behind a big round is not stuck

Tickets = list[tuple[Partition, Log, FlushTicket]]


class Flusher:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        *,
        on_fault: Callable[[StorageFault], None],
        on_sync: Callable[[float], None],
        syncs: Syncs,
        on_shortage: Callable[[], object] = lambda: None,
        partitions_max: int = _ROUND_PARTITIONS,
    ) -> None:
        """`on_sync` hears how many seconds the sync of a log took. A round that no thread begins is in `syncs`.

        `on_shortage` is called when a flush lacked descriptors. Each of `partitions_max` holds a few in a round.
        """
        self._loop = loop
        self._executor = executor
        self._on_fault = on_fault
        self._on_sync = on_sync
        self._syncs = syncs
        self._on_shortage = on_shortage
        self._partitions_max = partitions_max
        self._waiting: dict[Partition, None] = {}  # a set that keeps its order
        self._running = False
        self._stopped = False
        self._round: asyncio.Future[list[float | OutOfResources]] | None = None

    def request(self, partition: Partition) -> None:
        self._waiting[partition] = None
        if not (self._running or self._stopped):
            self._running = True
            self._loop.call_soon(self._begin)  # at the end of this tick: gather what else it brings

    async def ended(self) -> None:
        """The round that was under way has said what it had to: a fault of it makes the stop an unclean one."""
        if self._round is not None:
            await asyncio.wait([self._round])

    def stop(self) -> None:
        """Begin no further round; see `ended` for one that still runs."""
        self._stopped = True
        self._waiting.clear()

    def _begin(self) -> None:
        if self._stopped:
            return
        batch = list(self._waiting)[: min(self._partitions_max, _ROUND_PARTITIONS)]
        tickets: Tickets = []
        put_off: list[tuple[Partition, BrokerError]] = []
        for partition in batch:
            del self._waiting[partition]
            try:
                ticket = self._ticket_for(partition)
            except (
                BrokerError
            ) as error:  # no room for an index, no descriptor left: nothing was tried
                put_off.append((partition, error))
                continue
            if ticket is not None:
                tickets.append((partition, partition.log, ticket))
        self._put_off(put_off)
        if not tickets:
            self._go_on()
            return
        work = [ticket for _, _, ticket in tickets]
        begun = self._syncs.waiting(f"a flush of {len(work)} logs")
        try:
            future = self._loop.run_in_executor(
                self._executor, _sync_all, begun, work, self._loop.time
            )
        except BaseException:
            begun()
            raise
        self._round = future
        future.add_done_callback(lambda done: self._end(tickets, done))

    def _ticket_for(self, partition: Partition) -> FlushTicket | None:
        if partition.failure is not None or not partition.is_open:
            return None
        try:
            ticket = partition.log.flush_begin()
        except BrokerError:
            raise
        except StorageFault as fault:
            self._on_fault(fault)
            return None
        except Exception as error:  # noqa: BLE001 - as below: and no round would ever begin again
            _log.error("flush-failed partition=%s", partition, exc_info=error)
            self._on_fault(StorageFault(f"a flush failed: {error!r}"))
            return None
        partition.unsynced = False
        return ticket

    def _put_off(self, put_off: list[tuple[Partition, BrokerError]]) -> None:
        """Try again with the next look at what is not synced. One line for all of them: there may be many."""
        if not put_off or self._stopped:
            return
        partition, error = put_off[0]
        _log.warning(
            "flush-put-off partition=%s partitions=%d error=%s", partition, len(put_off), error
        )
        for partition, _ in put_off:
            partition.flush_put_off()
        if any(isinstance(error, OutOfResources) for _, error in put_off):
            self._on_shortage()

    def _end(self, tickets: Tickets, done: asyncio.Future[list[float | OutOfResources]]) -> None:
        if done.cancelled():
            return
        put_off: list[tuple[Partition, BrokerError]] = []
        try:
            for (partition, log, ticket), outcome in zip(tickets, done.result(), strict=True):
                if isinstance(outcome, OutOfResources):
                    log.flush_put_off(ticket)
                    if partition.failure is None:
                        put_off.append((partition, outcome))
                    continue
                if self._stopped:  # the close syncs it again, and says so
                    continue
                self._on_sync(outcome)
                if partition.failure is None:
                    self._count(partition, log, ticket)
            self._put_off(put_off)
        except StorageFault as fault:
            self._on_fault(fault)
        except Exception as error:  # noqa: BLE001 - whatever it was, nobody knows what is durable
            _log.error("flush-failed", exc_info=error)
            self._on_fault(StorageFault(f"a flush failed: {error!r}"))
        self._go_on()

    def _count(self, partition: Partition, log: Log, ticket: FlushTicket) -> None:
        """What was synced is what the partition has, or else it is synced again."""
        if partition.has(log):
            log.flush_end(ticket)
            if ticket.truncations == log.truncations:
                partition.synced(ticket.next_offset, ticket.size_bytes)
                if not ticket.is_complete:
                    partition.flush_put_off()
                return
        self._waiting[partition] = None

    def _go_on(self) -> None:
        self._running = bool(self._waiting) and not self._stopped
        if self._running:
            self._loop.call_soon(self._begin)


def _sync_all(
    begun: Callable[[], None], tickets: list[FlushTicket], time_s: Callable[[], float]
) -> list[float | OutOfResources]:
    """In a thread. How long each took, or why it could not be completed."""
    begun()
    outcomes: list[float | OutOfResources] = []
    for ticket in tickets:
        begun_s = time_s()
        try:
            ticket.sync()
        except OutOfResources as shortage:
            outcomes.append(shortage)
        else:
            outcomes.append(time_s() - begun_s)
    return outcomes
