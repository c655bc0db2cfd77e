"""What every client of a group does: it finds the coordinator, commits offsets and reads them back."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, NamedTuple, TypeVar

from penstock.client.connection import Connection
from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
)
from penstock.wire.schema import Message
from tests.simulation.checks.groups import GroupHistory, Look, Outcome, Place, Read, Write
from tests.simulation.clients.client import GROUP, TIMEOUT_MS, TOPIC, Client
from tests.simulation.loop import SimLoop

Response = TypeVar("Response", bound=Message)

MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
BUSY: Final = MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
NEVER_WRITTEN: Final = frozenset(  # errors of commits that are checked before anything changes
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
_STABLE_FROM: Final = 7
_BATCHED_FROM: Final = 8


class Identity(NamedTuple):
    """Who commits. Without members, anyone may."""

    generation: int = -1  # or member epoch
    member_id: str = ""
    instance_id: str | None = None


NOBODY: Final = Identity()


class Position(NamedTuple):
    offset: int
    leader_epoch: int  # of the record before it; -1: not known
    token: str
    code: int


def _position(row: OffsetFetchResponsePartition | OffsetFetchResponsePartitions) -> Position:
    epoch = row.committed_leader_epoch
    return Position(row.committed_offset, epoch, row.metadata or "", row.error_code)


class GroupClient(Client):
    """Records each commit and each read of an offset."""

    def __init__(self, loop: SimLoop, brokers: list[int], name: str, history: GroupHistory) -> None:
        super().__init__(loop, brokers, name)
        self.history = history
        self.reaches_store: Callable[[int], bool] = lambda _broker_id: True
        self.term_of: Callable[[int, str], tuple[int, ...]] = lambda _broker_id, _group: ()
        self.is_current = True  # the last response came from a broker that reached the store
        self.read_epochs: dict[Place, int] = {}  # in which the record before a position was written
        self._tokens = count(1)

    async def refresh(self, topic: str = TOPIC) -> None:
        """Also forget the leaders of an earlier topic with the name: epochs begin anew."""
        before = self.topic_ids.get(topic)
        await super().refresh(topic)
        if before is not None and self.topic_ids[topic] != before:
            for key in [it for it in self._leaders if it[0] == topic]:
                del self._leaders[key]
            await super().refresh(topic)

    async def ask(
        self,
        group: str,
        request: Message,
        response: type[Response],
        *,
        at_most: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> Response:
        """Send to the coordinator, which is looked for anew after an error of the network."""
        try:
            connection: Connection = await self.coordinator(GROUP, group)
            broker_id = self._coordinators[GROUP, group]
            was_current = self.reaches_store(broker_id)
            answered = await connection.request(
                request, response, timeout_ms=timeout_ms, at_most=at_most
            )
        except BrokerError:
            self.forget_coordinator(GROUP, group)
            raise
        self.is_current = was_current and self.reaches_store(broker_id)
        return answered

    def note_code(self, group: str, code: int) -> ErrorCode:
        if code in MOVED:
            self.forget_coordinator(GROUP, group)
        return ErrorCode(code)

    # Offsets -----------------------------------------------------------------------------------

    def label(self, topic: str) -> str:
        """The topic's name in the history."""
        return topic

    async def commit(
        self,
        group: str,
        offsets: Mapping[Place, int],
        identity: Identity = NOBODY,
        at_most: int | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> tuple[ErrorCode, float]:
        """Return the first error, and when the request began. Raise after an error of the network."""
        start_s = self.loop.time()
        writes: dict[Place, Write] = {}
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for place, offset in offsets.items():
            token = f"{self.name}#{next(self._tokens)}"
            label = self.label(place[0]), place[1]
            write = Write(group, label, offset, token, start_s, identity.member_id)
            writes[place] = write
            self.history.writes.append(write)
            topic = topics.setdefault(
                place[0],
                OffsetCommitRequestTopic(
                    name=place[0], topic_id=self.topic_ids[place[0]], partitions=[]
                ),
            )
            topic.partitions.append(
                OffsetCommitRequestPartition(
                    partition_index=place[1],
                    committed_offset=offset,
                    committed_leader_epoch=self.read_epochs.get(place, -1),
                    committed_metadata=token,
                )
            )
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=identity.generation,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=list(topics.values()),
        )
        response = await self.ask(
            group, request, OffsetCommitResponse, at_most=at_most, timeout_ms=timeout_ms
        )
        code = ErrorCode.NONE
        for name, answered in zip(topics, response.topics, strict=True):
            for partition in answered.partitions:
                write = writes[name, partition.partition_index]
                error = self.note_code(group, partition.error_code)
                code = code or error
                if error is ErrorCode.NONE:
                    write.outcome, write.end_s = Outcome.DONE, self.loop.time()
                elif error in NEVER_WRITTEN:
                    write.outcome = Outcome.REFUSED
        return code, start_s

    async def fetch_offsets(
        self,
        group: str,
        places: Iterable[Place],
        identity: Identity = NOBODY,
        *,
        require_stable: bool = False,
        at_most: int | None = None,
    ) -> tuple[ErrorCode, dict[Place, Position]]:
        """The error of the whole group, and the positions that the coordinator returned."""
        indexes: dict[str, list[int]] = {}
        for topic, index in places:
            indexes.setdefault(topic, []).append(index)
        require_stable = require_stable and (at_most is None or at_most >= _STABLE_FROM)
        start_s = self.loop.time()
        request = self._offset_fetch(group, indexes, identity, require_stable, at_most)
        term = self._term(group)
        response = await self.ask(group, request, OffsetFetchResponse, at_most=at_most)
        found: dict[Place, Position] = {}
        if at_most is not None and at_most < _BATCHED_FROM:
            code = response.error_code
            for topic, old in zip(indexes, response.topics, strict=not code):
                for it in old.partitions:
                    found[topic, it.partition_index] = _position(it)
        else:
            code = response.groups[0].error_code
            for topic, new in zip(indexes, response.groups[0].topics, strict=not code):
                for told in new.partitions:
                    found[topic, told.partition_index] = _position(told)
        if term and term == self._term(group):
            is_loading = code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if is_loading or not code:
                self.history.looks.append(Look(term, group, is_loading, start_s, self.loop.time()))
        if not code:
            self._note_reads(group, found, start_s, require_stable)
        return self.note_code(group, code), found

    def _term(self, group: str) -> tuple[int, ...]:
        broker_id = self._coordinators.get((GROUP, group))
        return () if broker_id is None else self.term_of(broker_id, group)

    def _offset_fetch(
        self,
        group: str,
        indexes: Mapping[str, list[int]],
        identity: Identity,
        require_stable: bool,
        at_most: int | None,
    ) -> OffsetFetchRequest:
        if at_most is not None and at_most < _BATCHED_FROM:
            old = [
                OffsetFetchRequestTopic(name=it, partition_indexes=indexes[it]) for it in indexes
            ]
            return OffsetFetchRequest(group_id=group, topics=old, require_stable=require_stable)
        new = [
            OffsetFetchRequestTopics(
                name=it, topic_id=self.topic_ids[it], partition_indexes=indexes[it]
            )
            for it in indexes
        ]
        wanted = OffsetFetchRequestGroup(
            group_id=group,
            member_id=identity.member_id or None,
            member_epoch=identity.generation,
            topics=new,
        )
        return OffsetFetchRequest(groups=[wanted], require_stable=require_stable)

    def _note_reads(
        self, group: str, found: Mapping[Place, Position], start_s: float, require_stable: bool
    ) -> None:
        if not self.is_current:
            return  # B5: such a coordinator goes on, and may have been replaced
        end_s = self.loop.time()
        for (topic, index), position in found.items():
            if position.code:
                continue
            place = self.label(topic), index
            read = Read(group, place, position.offset, position.token, start_s, end_s, self.name)
            self.history.reads.append(read)
            if require_stable:
                self.history.stable_reads.append(read)
