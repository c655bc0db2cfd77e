"""Opens large batches of clients: decompresses them in a thread, then walks them in steps on the event loop.

The broker opens one large batch at a time, which bounds the memory for decompressed records.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

from penstock.broker.partitions.partition import Partition
from penstock.broker.partitions.turns import Turns
from penstock.model.errors import BrokerError, ErrorCode, StorageFault
from penstock.records.batch import Bytes, parse_header
from penstock.records.opening import SMALL_BYTES, open_batch
from penstock.records.validation import check_keys_of
from penstock.storage.files import is_resident
from penstock.storage.limits import Limits
from penstock.storage.timestamps import Closed, Search, TimestampOffset, records_of

T = TypeVar("T")


class RunInThread(Protocol):
    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class BatchOpener:
    """Belongs to one event loop."""

    def __init__(self, run_in_thread: RunInThread, turns: Turns) -> None:
        self._run_in_thread = run_in_thread
        self._one_at_a_time = asyncio.Lock()
        self._turns = turns

    async def open(self, records: memoryview, limits: Limits) -> memoryview:
        """Validate a large batch and return it with the topic's codec. The caller keeps `records` unchanged meanwhile."""
        header = parse_header(records)
        async with self._one_at_a_time:
            if limits.needs_keys:
                work: Callable[[], Any] = partial(
                    open_batch, records, header, limits.max_opened_bytes
                )
                await self._turns.run(check_keys_of(await self._run_in_thread(work), header))
            if limits.other_codec(header):
                return await self._run_in_thread(partial(limits.recompressed, records))
        return records

    async def find_time(self, partition: Partition, steps: Search) -> TimestampOffset | None:
        """Run a search in the partition's log. Raises BrokerError if the log changes under it."""
        async with AsyncExitStack() as held:
            log, opened, is_alone = partition.log, None, False
            while True:
                try:
                    wanted = steps.send(opened)
                except StopIteration as end:
                    found: TimestampOffset | None = end.value
                    return found
                opened = None
                if wanted is None:
                    await asyncio.sleep(0)
                else:
                    opened = _at_once(wanted)
                    if opened is None:
                        if not is_alone:
                            await held.enter_async_context(self._one_at_a_time)
                            is_alone = True
                        opened = await self._in_thread(wanted, partition)
                if partition.failure is not None:
                    raise partition.failure.again()
                if partition.log is not log:
                    raise _changed(partition)

    async def _in_thread(self, closed: Closed, partition: Partition) -> Bytes | None:
        limit_bytes = partition.log.limits.max_opened_bytes
        try:
            return await self._run_in_thread(partial(records_of, closed, limit_bytes))
        except StorageFault:
            if closed.piece.is_stale:
                raise _changed(partition) from None
            raise


def _at_once(closed: Closed) -> Bytes | None:
    """The records of a small batch whose file is in memory."""
    if closed.header.size_bytes > SMALL_BYTES or not is_resident(closed.piece):
        return None
    return records_of(closed, SMALL_BYTES)


def _changed(partition: Partition) -> BrokerError:
    return BrokerError(
        f"the log of {partition} was truncated during a search",
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
