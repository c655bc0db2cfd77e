"""Incremental fetch sessions (KIP-227) as consumers keep them: one for each broker that leads partitions."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.record import Record, decode_records
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tests.simulation.checks.groups import Place
from tests.simulation.clients.group_client import GroupClient
from tests.simulation.loop import Broken

_MAX_WAIT_MS: Final = 400
_TIMEOUT_MS: Final = 1_000
_MAX_BYTES: Final = 2048
Wanted = tuple[bytes, int, int]  # topic id, offset, leader epoch


def named(place: Place) -> Place:
    """The place with the name that the topic has in metadata, without its id."""
    return place[0].partition("@")[0], place[1]


@dataclass(slots=True)
class Session:
    id: int = 0
    epoch: int = 0
    partitions: dict[Place, Wanted] = field(default_factory=dict)

    def begin_anew(self, *, keep_id: bool = False) -> None:
        """The next request is a full one; it ends the session if it names its id."""
        self.id, self.epoch = self.id if keep_id else 0, 0
        self.partitions.clear()


class Fetcher:
    """Fetches for one member. `take` gets the records of a partition, in order, and the leader epoch of the last."""

    def __init__(
        self, client: GroupClient, take: Callable[[Place, list[Record], int], None]
    ) -> None:
        self._client = client
        self._take = take
        self._sessions: dict[int, Session] = {}
        self.needs_metadata = False

    async def poll(self, positions: Mapping[Place, int], ids: Mapping[Place, bytes]) -> None:
        """One request to each broker that leads some of the partitions, or has them in its session.

        Not to one that led before the last record was written (KIP-320): it may lack that record.
        """
        by_broker: dict[int, dict[Place, Wanted]] = {}
        for place, offset in positions.items():
            broker_id, epoch = self._client._leaders.get(named(place), (-1, -1))
            if broker_id < 0 or epoch < self._client.read_epochs.get(place, -1):
                self.needs_metadata = True
            else:
                by_broker.setdefault(broker_id, {})[place] = ids[place], offset, epoch
        for broker_id, session in self._sessions.items():
            if session.partitions:
                by_broker.setdefault(broker_id, {})
        if not by_broker:
            await asyncio.sleep(_MAX_WAIT_MS / 1000)
        elif len(by_broker) == 1:
            ((broker_id, wanted),) = by_broker.items()
            await self._fetch(broker_id, wanted)
        else:
            await asyncio.gather(*(self._fetch(*it) for it in by_broker.items()))

    async def _fetch(self, broker_id: int, wanted: dict[Place, Wanted]) -> None:
        session = self._sessions.setdefault(broker_id, Session())
        changed = {it: has for it, has in wanted.items() if session.partitions.get(it) != has}
        gone = {it: has for it, has in session.partitions.items() if it not in wanted}
        for place, has in list(changed.items()):
            before = session.partitions.get(place)
            if before is not None and before[0] != has[0]:
                gone[place] = before  # another topic of the same name
        request = FetchRequest(
            max_wait_ms=_MAX_WAIT_MS if wanted else 0,
            min_bytes=1,
            session_id=session.id,
            session_epoch=session.epoch,
            topics=_topics(wanted if session.epoch == 0 else changed),
            forgotten_topics_data=_forgotten(gone) if session.epoch else [],
        )
        try:
            connection = await self._client.connection(broker_id)
            response = await connection.request(request, FetchResponse, timeout_ms=_TIMEOUT_MS)
        except BrokerError:
            session.begin_anew(keep_id=True)
            self.needs_metadata = True
            await self._client.pause()
            return
        if response.error_code:
            known = response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            session.begin_anew(keep_id=known)
            self.needs_metadata = True
            return
        self._check_session(session, response, wanted)
        for topic in response.responses:
            for data in topic.partitions:
                self._answered(session, wanted, topic.topic_id, data)

    def _check_session(
        self, session: Session, response: FetchResponse, wanted: dict[Place, Wanted]
    ) -> None:
        """As clients do: a full response has all partitions, an incremental one no others."""
        told = {
            (topic.topic_id, data.partition_index)
            for topic in response.responses
            for data in topic.partitions
        }
        asked = {(has[0], place[1]) for place, has in wanted.items()}
        if not told <= asked or (session.epoch == 0 and told != asked):
            raise Broken(f"{self._client.name}: asked for {asked}, and got {told} in {session}")
        if session.epoch and response.session_id not in (0, session.id):
            raise Broken(f"{self._client.name}: session {response.session_id} in {session}")
        session.id = response.session_id
        session.epoch = session.epoch + 1 if response.session_id else 0
        session.partitions = dict(wanted) if response.session_id else {}

    def _answered(
        self,
        session: Session,
        wanted: dict[Place, Wanted],
        topic_id: bytes,
        data: PartitionData,
    ) -> None:
        place, asked = next(
            (place, has)
            for place, has in wanted.items()
            if has[0] == topic_id and place[1] == data.partition_index
        )
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise Broken(f"{self._client.name}: {place} has no offset {asked[1]}")
        if data.error_code:
            if place in session.partitions:
                session.partitions[place] = asked[0], -1, -1  # name it again
            self.needs_metadata = True
        elif data.records:
            assert isinstance(data.records, memoryview)
            self._take(place, *_records(data.records, asked[1]))


def _records(data: memoryview, offset: int) -> tuple[list[Record], int]:
    """Those from the offset on, and the leader epoch of the last."""
    found: list[Record] = []
    epoch = -1
    for start, header in iter_headers(data):
        found += decode_records(data[start : start + header.size_bytes])
        epoch = header.leader_epoch
    return [record for record in found if record.offset >= offset], epoch


def _topics(wanted: Mapping[Place, Wanted]) -> list[FetchTopic]:
    topics: dict[bytes, FetchTopic] = {}
    for (name, index), (topic_id, offset, epoch) in wanted.items():
        topic = topics.setdefault(
            topic_id, FetchTopic(topic=named((name, index))[0], topic_id=topic_id, partitions=[])
        )
        topic.partitions.append(
            FetchPartition(
                partition=index,
                current_leader_epoch=epoch,
                fetch_offset=offset,
                partition_max_bytes=_MAX_BYTES,
            )
        )
    return list(topics.values())


def _forgotten(gone: Mapping[Place, Wanted]) -> list[ForgottenTopic]:
    topics: dict[bytes, ForgottenTopic] = {}
    for (name, index), (topic_id, _, _) in gone.items():
        topic = topics.setdefault(
            topic_id,
            ForgottenTopic(topic=named((name, index))[0], topic_id=topic_id, partitions=[]),
        )
        topic.partitions.append(index)
    return list(topics.values())
