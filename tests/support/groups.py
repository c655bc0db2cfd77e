"""Requests of group members to a broker without sockets, and what is in the log of the groups."""

from collections.abc import Mapping
from typing import Any

from penstock.broker.coordinators.groups import OFFSETS_TOPIC
from penstock.broker.coordinators.shards import partition_for
from penstock.groups.records import decode_entry
from penstock.records.record import decode_records
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from penstock.wire.schema import Message
from tests.support.context import BrokerContext

GROUP = "g"
METADATA = b"\x00\x00\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff"  # subscribed to topic t


def find(broker: BrokerContext, group: str = GROUP) -> None:
    """Makes the offsets topic, if it is not there."""
    (found,) = broker.ask(FindCoordinatorRequest(coordinator_keys=[group])).coordinators
    assert not found.error_code


def join_request(group: str = GROUP, member: str = "", **more: Any) -> JoinGroupRequest:
    fields: dict[str, Any] = {
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [JoinGroupRequestProtocol(name="range", metadata=METADATA)],
        **more,
    }
    return JoinGroupRequest(group_id=group, member_id=member, **fields)


def sync_request(
    member: str, generation: int, assignments: Mapping[str, bytes], group: str = GROUP
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in assignments.items()
        ],
    )


def heartbeat_request(member: str, generation: int, group: str = GROUP) -> HeartbeatRequest:
    return HeartbeatRequest(group_id=group, generation_id=generation, member_id=member)


def stable_group(broker: BrokerContext, group: str = GROUP) -> str:
    """A group of one member, at generation 1; the member's id."""
    find(broker, group)
    joined = broker.ask(join_request(group), 3)
    assert not joined.error_code
    member: str = joined.member_id
    synced = broker.ask(sync_request(member, joined.generation_id, {member: b"work"}, group))
    assert not synced.error_code
    return member


def commit_request(
    offset: int, group: str = GROUP, *, topic: str = "t", partition: int = 0, **more: Any
) -> OffsetCommitRequest:
    asked = OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_metadata="note"
    )
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[asked])]
    return OffsetCommitRequest(group_id=group, topics=topics, **more)


def commit_codes(response: Any) -> list[int]:
    return [p.error_code for topic in response.topics for p in topic.partitions]


def committed(broker: BrokerContext, group: str = GROUP, topic: str = "t") -> int:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, topics=topics)
    (answer,) = broker.ask(OffsetFetchRequest(groups=[asked])).groups
    assert not answer.error_code, answer
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def offsets_partition(broker: BrokerContext, group: str = GROUP) -> int:
    count = len(broker.cluster.image.topics[OFFSETS_TOPIC].partitions)
    return partition_for(group, count)


def written(broker: BrokerContext, group: str = GROUP) -> list[tuple[Message, Message | None]]:
    """Every record in the log of the group's shard."""
    partition = broker.partition(OFFSETS_TOPIC, offsets_partition(broker, group))
    found, offset = [], partition.log.start_offset
    while offset < partition.high_watermark:
        read = partition.read(offset, 1, 0)
        data = b"".join(piece.read() for piece in read.slices)
        for record in decode_records(data):
            found.append(tuple(decode_entry(record.key or b"", record.value)))
            offset = record.offset + 1
    return found  # type: ignore[return-value] # an Entry is such a pair
