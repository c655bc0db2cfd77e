"""Reads the offsets of the consume-transform-produce group, and notes in the ledger what the coordinator returned."""

import asyncio
from typing import Final

from penstock.model.errors import BrokerError
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tests.simulation.checks.transactions import Ledger, OffsetSeen
from tests.simulation.clients.client import GROUP, TIMEOUT_MS, Client
from tests.simulation.clients.in_flight import now_ns
from tests.simulation.loop import SimLoop
from tests.support.checker import Partition

GROUP_ID: Final = "g"
_WATCH_S: Final = 0.5


async def committed_offset(client: Client, place: Partition, ledger: Ledger) -> int:
    """Where the group goes on: retry until no transaction is about to change it."""
    while True:
        seen = await fetch_offsets(client, [place], ledger, is_stable=True)
        if seen is not None:
            return max(seen[place], 0)
        await client.pause()


async def fetch_offsets(
    client: Client, places: list[Partition], ledger: Ledger, *, is_stable: bool
) -> dict[Partition, int] | None:
    """Ask the coordinator of the group once."""
    sent_ns = now_ns(client)
    topic = OffsetFetchRequestTopics(
        name=places[0][0], partition_indexes=[index for _, index in places]
    )
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=GROUP_ID, topics=[topic])],
        require_stable=is_stable,
    )
    try:
        connection = await client.coordinator(GROUP, GROUP_ID)
        response = await connection.request(
            request, OffsetFetchResponse, timeout_ms=TIMEOUT_MS, at_most=9
        )
    except BrokerError:
        client.forget_coordinator(GROUP, GROUP_ID)
        return None
    group = response.groups[0]
    if group.error_code:
        client.forget_coordinator(GROUP, GROUP_ID)
        return None
    rows = group.topics[0].partitions
    if any(row.error_code for row in rows):
        return None
    seen: dict[Partition, int] = {}
    for row in rows:
        place = places[0][0], row.partition_index
        seen[place] = row.committed_offset
        ledger.seen.append(
            OffsetSeen(
                GROUP_ID,
                place,
                row.committed_offset,
                row.metadata or "",
                sent_ns,
                now_ns(client),
                is_stable,
            )
        )
    return seen


class GroupWatcher(Client):
    """Reads the group's offsets again and again, stable and not."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], places: list[Partition], ledger: Ledger
    ) -> None:
        super().__init__(loop, brokers, "watcher")
        self.last: dict[Partition, int] = {}  # by the newest stable read
        self.is_done = False
        self._is_finishing = False
        self._places = places
        self._ledger = ledger

    def finish(self) -> None:
        """Nothing changes any more: the next stable read is the last."""
        self._is_finishing = True

    async def run(self) -> None:
        world = self.loop.world
        while not self.is_stopping:
            is_last = self._is_finishing
            is_stable = is_last or world.rng.random() < 0.5
            seen = await fetch_offsets(self, self._places, self._ledger, is_stable=is_stable)
            if is_stable and seen is not None:
                self.last = seen
                self.is_done = is_last
            await asyncio.sleep(world.pause_s(_WATCH_S))
