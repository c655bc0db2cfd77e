"""What people ask about consumer groups: which there are, who is in them, where they are, and to be somewhere else."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from penstock.client.errors import ClientError, check, error_code
from penstock.client.pool import AnyBroker, Broker, Deadline, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import consumer_group_describe as consumer
from penstock.wire.messages import describe_groups as classic
from penstock.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from penstock.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from penstock.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from penstock.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import decode_for

_BY_NAME: Final = 9  # the last OffsetCommit and OffsetFetch that name topics
_VERSION: Final = Struct(">h")
_ABSENT: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
T = TypeVar("T")


class Listed(NamedTuple):
    name: str
    type: str
    state: str
    protocol: str  # what its members speak: consumer, connect, …; empty for offsets alone


class Member(NamedTuple):
    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


class Described(NamedTuple):
    name: str
    type: str
    state: str
    coordinator: int
    assignor: str
    epoch: int | None  # of a consumer group
    members: tuple[Member, ...]


async def list_groups(
    pool: Pool, *, states: Iterable[str] = (), types: Iterable[str] = ()
) -> list[Listed]:
    """The groups of all brokers, by name."""
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
    found: list[Listed] = []
    for broker_id in await pool.broker_ids():
        answer = await pool.ask(
            Broker(broker_id),
            request,
            ListGroupsResponse,
            check=lambda answer: check(answer.error_code, None, "groups"),
        )
        found += (
            Listed(g.group_id, g.group_type.lower(), g.group_state, g.protocol_type)
            for g in answer.groups
        )
    return sorted(found)


async def describe_group(pool: Pool, name: str) -> Described:
    """Raises for a group that does not exist."""

    async def attempt(coordinator: int, deadline: Deadline) -> Described:
        described = await _describe_consumer(pool, name, coordinator, deadline)
        return described or await _describe_classic(pool, name, coordinator, deadline)

    return await _at_coordinator(pool, name, attempt)


class Committed(NamedTuple):
    offset: int
    metadata: str  # whatever the group put beside it


async def committed(pool: Pool, name: str) -> dict[TopicPartition, int]:
    """Every position of the group, in order."""
    found = await committed_with_metadata(pool, name)
    return {partition: position.offset for partition, position in found.items()}


async def committed_with_metadata(pool: Pool, name: str) -> dict[TopicPartition, Committed]:
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None)]
    request = OffsetFetchRequest(groups=asked)

    async def attempt(coordinator: int, deadline: Deadline) -> dict[TopicPartition, Committed]:
        answer = await pool.once(
            Broker(coordinator), request, OffsetFetchResponse, deadline, at_most=_BY_NAME
        )
        (group,) = answer.groups
        check(group.error_code, None, f"group {name!r}")
        return {
            TopicPartition(topic.name, p.partition_index): Committed(
                p.committed_offset, p.metadata or ""
            )
            for topic in sorted(group.topics, key=lambda topic: topic.name)
            for p in sorted(topic.partitions, key=lambda p: p.partition_index)
        }

    return await _at_coordinator(pool, name, attempt)


async def set_offsets(
    pool: Pool,
    name: str,
    offsets: Mapping[TopicPartition, int],
    metadata: Mapping[TopicPartition, str] | None = None,
) -> None:
    """Move the group there. Refused while it has members."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for partition, offset in offsets.items():
        row = OffsetCommitRequestPartition(
            partition_index=partition.partition,
            committed_offset=offset,
            committed_metadata=(metadata or {}).get(partition, ""),
        )
        by_topic.setdefault(partition.topic, []).append(row)
    request = OffsetCommitRequest(
        group_id=name,
        topics=[OffsetCommitRequestTopic(name=t, partitions=p) for t, p in by_topic.items()],
    )

    async def attempt(coordinator: int, deadline: Deadline) -> None:
        answer = await pool.once(
            Broker(coordinator), request, OffsetCommitResponse, deadline, at_most=_BY_NAME
        )
        for topic in answer.topics:
            for row in topic.partitions:
                if row.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                    raise _is_active(name)
                check(row.error_code, None, f"{topic.name}-{row.partition_index}")

    await _at_coordinator(pool, name, attempt)


async def delete_group(pool: Pool, name: str) -> None:
    request = DeleteGroupsRequest(groups_names=[name])

    async def attempt(coordinator: int, deadline: Deadline) -> None:
        answer = await pool.once(Broker(coordinator), request, DeleteGroupsResponse, deadline)
        code = error_code(answer.results[0].error_code)
        if code is ErrorCode.NON_EMPTY_GROUP:
            raise _is_active(name)
        if code is ErrorCode.GROUP_ID_NOT_FOUND:
            raise _is_absent(name)
        check(code, None, f"group {name!r}")

    await _at_coordinator(pool, name, attempt)


def _is_active(name: str) -> ClientError:
    return ClientError(
        f"group {name!r} has members; stop them first (see: penstock group describe {name})",
        ErrorCode.NON_EMPTY_GROUP,
    )


def _is_absent(name: str) -> ClientError:
    return ClientError(
        f"group {name!r} does not exist; see: penstock group list", ErrorCode.GROUP_ID_NOT_FOUND
    )


async def _at_coordinator(
    pool: Pool, name: str, work: Callable[[int, Deadline], Awaitable[T]]
) -> T:
    """Found anew for each attempt: it may have moved."""

    async def attempt(deadline: Deadline) -> T:
        request = FindCoordinatorRequest(coordinator_keys=[name])
        answer = await pool.once(AnyBroker(), request, FindCoordinatorResponse, deadline)
        (found,) = answer.coordinators
        check(found.error_code, found.error_message, f"group {name!r}")
        return await work(found.node_id, deadline)

    return await pool.retry(attempt)


async def _describe_consumer(
    pool: Pool, name: str, coordinator: int, deadline: Deadline
) -> Described | None:
    """None if it is no consumer group, or the broker has never heard of those."""
    request = consumer.ConsumerGroupDescribeRequest(group_ids=[name])
    response = consumer.ConsumerGroupDescribeResponse
    try:
        answer = await pool.once(Broker(coordinator), request, response, deadline)
        (group,) = answer.groups
        check(group.error_code, group.error_message, f"group {name!r}")
    except ClientError as error:
        if error.code in _ABSENT:
            return None
        raise
    members = tuple(
        Member(
            m.member_id,
            m.instance_id,
            m.client_id,
            m.client_host,
            tuple(
                TopicPartition(topic.topic_name, index)
                for topic in m.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for m in group.members
    )
    return Described(
        name,
        "consumer",
        group.group_state,
        coordinator,
        group.assignor_name,
        group.group_epoch,
        members,
    )


async def _describe_classic(
    pool: Pool, name: str, coordinator: int, deadline: Deadline
) -> Described:
    request = classic.DescribeGroupsRequest(groups=[name])
    response = classic.DescribeGroupsResponse
    answer = await pool.once(Broker(coordinator), request, response, deadline)
    (group,) = answer.groups
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or group.group_state == "Dead":
        raise _is_absent(name)
    check(group.error_code, group.error_message, f"group {name!r}")
    members = tuple(
        Member(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            _assigned(m.member_assignment) if group.protocol_type == "consumer" else (),
        )
        for m in group.members
    )
    return Described(
        name, "classic", group.group_state, coordinator, group.protocol_data, None, members
    )


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """What consumers put into the bytes; nothing where it cannot be read."""
    if len(assignment) < _VERSION.size:
        return ()
    version = min(_VERSION.unpack_from(assignment)[0], ConsumerProtocolAssignment.versions[-1])
    try:
        decode = decode_for(ConsumerProtocolAssignment, version)
        found = decode(memoryview(assignment), _VERSION.size)[0]
    except (MalformedMessage, ValueError):
        return ()
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in found.assigned_partitions
        for index in topic.partitions
    )
