"""Readers: from the start of a partition to its end, without a group.

A reader does what consumers may do: it keeps a fetch session or does not, reads from a follower in its rack (KIP-392),
validates its position after a change of leaders (KIP-320), and asks for the end of the partition.
"""

from collections.abc import Callable
from typing import Final

from penstock.client.connection import Connection
from penstock.model.errors import BrokerError, ErrorCode
from penstock.records.batch import iter_headers
from penstock.records.record import decode_records
from penstock.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from penstock.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from penstock.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.simulation.clients.client import TIMEOUT_MS, Client
from tests.simulation.loop import Broken, SimLoop
from tests.simulation.machine import rack_of
from tests.support.checker import History, Partition, Seen

_WRONG_EPOCHS: Final = 0.02  # of all fetches
_FAR_AHEAD: Final = 1000
_NEW_MANNER: Final = 0.05  # of all fetches: from then on with or without a rack, a session
_END_ASKED: Final = 0.02  # of all fetches: the end of the partition is asked for before
_LATEST: Final = -1
_NO_SESSION: Final = -1
_CONSUMER: Final = -1


class Session:
    """A fetch session of one partition with one broker; every error ends it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.id = 0
        self.epoch = 0
        self.named: tuple[int, int] | None = None  # offset and leader epoch

    def answered(self, session_id: int, named: tuple[int, int]) -> None:
        """The broker may have no session to give; then the next fetch begins one."""
        self.id = session_id
        self.epoch = self.epoch + 1 if session_id else 0
        self.named = named if session_id else None


class Reader(Client):
    """Reads one partition from offset 0 until it is stopped."""

    def __init__(
        self, loop: SimLoop, brokers: list[int], name: str, place: Partition, history: History
    ) -> None:
        super().__init__(loop, brokers, name)
        self.place = place
        self.topic, self.partition = place
        self._history = history
        self.position = 0
        self.observe: Callable[[int], None] = lambda _offset: None
        self._answered: dict[int, int] = {}  # the last leader epoch of each broker that it knows
        self._read_epoch = -1  # of the last batch
        self._validated = -1  # the leader epoch in which the position was found to be good
        self._rack = ""
        self._follower: int | None = None  # in that rack
        self._has_session = False
        self._session: Session | None = None

    async def run(self) -> None:
        while not self.is_stopping:
            if not await self._attempt():
                self._follower = self._session = None
                await self.recover(self.topic)

    async def _attempt(self) -> bool:
        rng = self.loop.world.rng
        if rng.random() < _NEW_MANNER:
            self._rack = rack_of(rng.choice(self.brokers)) if rng.random() < 0.5 else ""
            self._has_session = rng.random() < 0.5
            self._follower = None
        try:
            connection, leader_epoch = await self.leader(self.topic, self.partition)
            if self._validated < leader_epoch:
                return await self._validate(connection, leader_epoch)
            if rng.random() < _END_ASKED and not await self._ask_for_end(connection, leader_epoch):
                return False
            return await self._fetch(connection, leader_epoch)
        except BrokerError:
            return False

    # Positions -------------------------------------------------------------------------------------

    async def _validate(self, leader: Connection, leader_epoch: int) -> bool:
        """KIP-320: whether the leader has what was read, as consumers ask after a change of leaders."""
        if self._read_epoch >= 0:
            wanted = OffsetForLeaderPartition(
                partition=self.partition,
                current_leader_epoch=leader_epoch,
                leader_epoch=self._read_epoch,
            )
            request = OffsetForLeaderEpochRequest(
                replica_id=_CONSUMER,
                topics=[OffsetForLeaderTopic(topic=self.topic, partitions=[wanted])],
            )
            response = await leader.request(
                request, OffsetForLeaderEpochResponse, timeout_ms=TIMEOUT_MS
            )
            found = response.topics[0].partitions[0]
            if found.error_code:
                return False
            if found.end_offset < self.position:
                self._lost(
                    f"{self.name} read epoch {self._read_epoch} up to {self.position}; the leader of"
                    f" epoch {leader_epoch} says that epoch {found.leader_epoch} ends at {found.end_offset}"
                )
        if not await self._ask_for_end(leader, leader_epoch):
            return False
        self._validated = leader_epoch
        return True

    async def _ask_for_end(self, leader: Connection, leader_epoch: int) -> bool:
        """KIP-207: what was read is below the end that the leader tells of, or it does not know it yet."""
        position = self.position
        wanted = ListOffsetsPartition(
            partition_index=self.partition, current_leader_epoch=leader_epoch, timestamp=_LATEST
        )
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            topics=[ListOffsetsTopic(name=self.topic, partitions=[wanted])],
        )
        response = await leader.request(request, ListOffsetsResponse, timeout_ms=TIMEOUT_MS)
        found = response.topics[0].partitions[0]
        if found.error_code:
            return False
        if found.offset < position:
            self._lost(f"{self.name} read up to {position}; the latest offset is {found.offset}")
        elif found.offset:
            self.observe(found.offset - 1)
        return True

    def _lost(self, what: str) -> None:
        """What was read is not there any more."""
        raise Broken(what)

    # Fetches ---------------------------------------------------------------------------------------

    async def _fetch(self, leader: Connection, leader_epoch: int) -> bool:
        broker_id = self._leaders[self.topic, self.partition][0]
        connection = leader
        if self._follower is not None:
            broker_id, connection = self._follower, await self.connection(self._follower)
        epoch = self._epoch_to_name(broker_id, leader_epoch)
        session = self._session_with(connection)
        response = await connection.request(
            self._request(session, epoch), FetchResponse, timeout_ms=TIMEOUT_MS
        )
        if response.error_code:
            return False
        if session is not None:
            session.answered(response.session_id, (self.position, epoch))
        if not response.responses:  # nothing new in the session
            return session is not None
        data = response.responses[0].partitions[0]
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._lost(f"{self.name} at {self.position} is out of range in epoch {epoch}")
        if data.error_code:
            self._session = None
            return epoch != leader_epoch
        if epoch != leader_epoch:
            raise Broken(f"{self.name}: broker {broker_id} answered in epoch {epoch}, not its own")
        self._answered[broker_id] = epoch
        self._take(data)
        return True

    def _session_with(self, connection: Connection) -> Session | None:
        if not self._has_session:
            return None
        if self._session is None or self._session.connection is not connection:
            self._session = Session(connection)
        return self._session

    def _request(self, session: Session | None, epoch: int) -> FetchRequest:
        wanted = FetchPartition(
            partition=self.partition,
            current_leader_epoch=epoch,
            fetch_offset=self.position,
            partition_max_bytes=4096,
        )
        is_known = session is not None and session.named == (self.position, epoch)
        topic = FetchTopic(
            topic=self.topic, topic_id=self.topic_ids[self.topic], partitions=[wanted]
        )
        return FetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            session_id=0 if session is None else session.id,
            session_epoch=_NO_SESSION if session is None else session.epoch,
            topics=[] if is_known else [topic],
            rack_id=self._rack,
        )

    def _epoch_to_name(self, broker_id: int, leader_epoch: int) -> int:
        """Now and then one that must be rejected (KIP-320): older than that in which the broker led, or far ahead."""
        rng = self.loop.world.rng
        if rng.random() >= _WRONG_EPOCHS:
            return leader_epoch
        led_in = self._answered.get(broker_id, 0)
        return led_in - 1 if led_in and rng.random() < 0.5 else leader_epoch + _FAR_AHEAD

    def _take(self, data: PartitionData) -> None:
        if data.high_watermark > 0:
            self.observe(data.high_watermark - 1)
        if data.preferred_read_replica >= 0:
            self._follower = data.preferred_read_replica
            return
        if not data.records:
            return
        assert isinstance(data.records, memoryview)
        for start, header in iter_headers(data.records):
            for record in decode_records(data.records[start : start + header.size_bytes]):
                if record.offset >= self.position:
                    assert record.value is not None
                    self._seen(record.offset, header.leader_epoch, record.value)
                    self.position = record.offset + 1
                    self.observe(record.offset)
            self._read_epoch = header.leader_epoch

    def _seen(self, offset: int, epoch: int, value: bytes) -> None:  # noqa: ARG002 - others need it
        self._history.seen.append(Seen(self.name, 0, self.place, offset, value))
