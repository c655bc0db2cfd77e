"""Clients of groups without members: an operator that commits and deletes offsets, and watchers that read them."""

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tests.simulation.checks.groups import NOTHING, GroupHistory, Outcome, Place, Write
from tests.simulation.clients.admin import create_topic, delete_topic
from tests.simulation.clients.group_client import BUSY, GroupClient
from tests.simulation.loop import Broken, SimLoop

_COMMITS: Final = 0.6  # of all operations
_PAUSE_S: Final = 0.25
_IMPATIENT_MS: Final = 400
_READS: Final = 8  # of a group's offsets after a commit without a response
_READ_S: Final = 0.4
_LOOKS: Final = 3  # for the new topic
_VERSIONS: Final = (5, 7, 9, 10)


class Operator(GroupClient):
    """Commits and deletes the offsets of groups that have no members, and deletes a topic now and then."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        groups: Sequence[str],
        places: Sequence[Place],
        volatile: str,
        history: GroupHistory,
    ) -> None:
        super().__init__(loop, brokers, "operator", history)
        self._groups = groups
        self._places = [*places, (volatile, 0)]
        self._volatile = volatile
        self._former_ids: set[bytes] = set()
        self.done = 0

    def label(self, topic: str) -> str:
        """The volatile topic's incarnations are topics of their own."""
        if topic != self._volatile:
            return topic
        return f"{topic}@{self.topic_ids[topic].hex()}"

    async def run(self) -> None:
        for topic in dict(self._places):
            while topic not in self.topic_ids:
                await self.recover(topic)
        while not self.is_stopping:
            await self._operate()
            self.done += 1
            await asyncio.sleep(self.loop.world.pause_s(_PAUSE_S))

    async def _operate(self) -> None:
        rng = self.loop.world.rng
        group, chosen = rng.choice(self._groups), rng.random()
        if chosen < _COMMITS:
            await self._commit(group)
        elif chosen < 0.75:
            await self._delete_offset(group, rng.choice(self._places))
        elif chosen < 0.8:
            await self._delete_group(group)
        elif chosen < 0.88:
            await self._make_topic_again()
        await self._read(group)

    async def _commit(self, group: str) -> None:
        rng = self.loop.world.rng
        places = rng.sample(self._places, rng.randint(1, len(self._places)))
        try:
            await self.commit(
                group, {it: rng.randrange(1000) for it in places}, timeout_ms=_IMPATIENT_MS
            )
        except BrokerError:
            await self._look_for_a_while(group)

    async def _look_for_a_while(self, group: str) -> None:
        """After a commit without a response: once it was read, it must stay."""
        for _ in range(_READS):
            await self._read(group)
            await asyncio.sleep(_READ_S)

    async def _read(self, group: str) -> None:
        """By topic id: a name may still mean the topic before to a broker that lags behind."""
        try:
            await self.fetch_offsets(group, self._places)
        except BrokerError:
            await self.pause()

    # Deletion ----------------------------------------------------------------------------------

    def _deletions(self, group: str, places: Sequence[Place]) -> list[Write]:
        start_s = self.loop.time()
        writes = [
            Write(group, (self.label(topic), index), NOTHING, "", start_s)
            for topic, index in places
        ]
        self.history.writes += writes
        return writes

    def _deleted(self, writes: Sequence[Write]) -> None:
        for write in writes:
            write.outcome, write.end_s = Outcome.DONE, self.loop.time()

    async def _delete_offset(self, group: str, place: Place) -> None:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=place[0],
                    partitions=[OffsetDeleteRequestPartition(partition_index=place[1])],
                )
            ],
        )
        writes = self._deletions(group, [place])
        try:
            response = await self.ask(group, request, OffsetDeleteResponse)
        except BrokerError:
            return
        code = self.note_code(group, response.error_code)
        if not code:
            code = self.note_code(group, response.topics[0].partitions[0].error_code)
        self._ended(writes, code)

    async def _delete_group(self, group: str) -> None:
        writes = self._deletions(group, self._places)
        try:
            response = await self.ask(
                group, DeleteGroupsRequest(groups_names=[group]), DeleteGroupsResponse
            )
        except BrokerError:
            return
        self._ended(writes, self.note_code(group, response.results[0].error_code))

    def _ended(self, writes: Sequence[Write], code: ErrorCode) -> None:
        if code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            self._deleted(writes)
        elif code not in (*BUSY, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):  # metadata may lag
            raise Broken(f"the operator received {code.name}")

    async def _make_topic_again(self) -> None:
        self.loop.world.note(f"{self._volatile} is made again")
        self._former_ids.add(self.topic_ids[self._volatile])
        while self.topic_ids[self._volatile] in self._former_ids:
            # more than once: a broker whose metadata lags may take the topic for gone, or for still there
            await delete_topic(self, self._volatile)
            await create_topic(self, self._volatile, 1, {})
            for _ in range(_LOOKS):
                await self.recover(self._volatile)


class Watcher(GroupClient):
    """Reads offsets of all groups. It stays with a coordinator until that sends an error."""

    def __init__(
        self,
        loop: SimLoop,
        brokers: list[int],
        name: str,
        groups: Sequence[str],
        places: Sequence[Place],
        history: GroupHistory,
    ) -> None:
        super().__init__(loop, brokers, name, history)
        self._groups = groups
        self._places = places
        self.pause_mean_s = 0.25

    async def run(self) -> None:
        while not self.is_stopping and self._places[0][0] not in self.topic_ids:
            await self.recover(self._places[0][0])
        rng = self.loop.world.rng
        while not self.is_stopping:
            try:
                await self.fetch_offsets(
                    rng.choice(self._groups),
                    self._places,
                    require_stable=rng.random() < 0.5,
                    at_most=rng.choice(_VERSIONS),
                )
            except BrokerError:
                await self.pause()
            await asyncio.sleep(self.loop.world.pause_s(self.pause_mean_s))
