"""What people ask about the brokers and places of a cluster: who runs, what is where, moves, elections, farewells."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from penstock.client.errors import ClientError, check, describe, error_code
from penstock.client.layout import Node
from penstock.client.pool import AnyBroker, Broker, Controller, Deadline, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import alter_partition_reassignments as alter
from penstock.wire.messages import describe_topic_partitions as partitions
from penstock.wire.messages import elect_leaders as elect
from penstock.wire.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from penstock.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from penstock.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from penstock.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

_TIMEOUT_MS: Final = 30_000
_PREFERRED: Final = 0  # kinds of elections
_UNCLEAN: Final = 1
_PAGE: Final = 2_000  # partitions in an answer
_ASK_SIZES_MS: Final = 5_000  # of one broker; it may just have died

Refusals = dict[TopicPartition, ClientError]


class Member(NamedTuple):
    """A registered broker. One that does not run has no address."""

    id: int
    host: str
    port: int
    rack: str | None
    is_running: bool


class Members(NamedTuple):
    cluster_id: str
    controller_id: int | None
    brokers: tuple[Member, ...]
    cordoned: frozenset[int] = frozenset()  # get no new replicas; only if that was asked for

    @property
    def open(self) -> list[Node]:
        """Where replicas can be put."""
        return [node for node in self.running if node.id not in self.cordoned]

    @property
    def running(self) -> list[Node]:
        return [Node(member.id, member.rack) for member in self.brokers if member.is_running]

    @property
    def missing(self) -> list[int]:
        return [member.id for member in self.brokers if not member.is_running]


class Place(NamedTuple):
    """Where a partition is, and where it goes: `adding` are among the replicas, and so are `removing`."""

    leader: int  # -1: nobody
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    eligible: tuple[int, ...] = ()  # not in sync, and yet with everything that was acknowledged
    offline: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when no move is under way any more."""
        return tuple(member for member in self.replicas if member not in self.removing)

    @property
    def original(self) -> tuple[int, ...]:
        """The replicas if the move is called off."""
        return tuple(member for member in self.replicas if member not in self.adding)


class Move(NamedTuple):
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


Places = dict[TopicPartition, Place]


async def members(pool: Pool) -> Members:
    """All registered brokers by id, those that do not run too."""
    answer = await pool.ask(
        AnyBroker(),
        DescribeClusterRequest(include_fenced_brokers=True),
        DescribeClusterResponse,
        check=lambda answer: check(answer.error_code, answer.error_message, "cluster"),
    )
    brokers = [
        Member(row.broker_id, row.host, row.port, row.rack, not row.is_fenced)
        for row in sorted(answer.brokers, key=lambda row: row.broker_id)
    ]
    controller = answer.controller_id if answer.controller_id >= 0 else None
    return Members(answer.cluster_id, controller, tuple(brokers))


async def places(pool: Pool, topics: Iterable[str] = ()) -> Places:
    """The partitions of these topics (none: of all) by topic and number.

    Moves are asked for before and after: one that begins or ends meanwhile is told from one that does not
    exist, and what only leaves is not taken for a replica that stays.
    """
    before = await moves(pool)
    found = await _described(pool, topics)
    after = await moves(pool)
    for listed in (before, after):
        for at, move in listed.items():
            if at in found and found[at].replicas == move.replicas:
                found[at] = found[at]._replace(adding=move.adding, removing=move.removing)
    return dict(sorted(found.items()))


async def _described(pool: Pool, topics: Iterable[str]) -> Places:
    found: Places = {}
    cursor: partitions.Cursor | None = None
    asked = [partitions.TopicRequest(name=name) for name in sorted(set(topics))]
    while True:
        request = partitions.DescribeTopicPartitionsRequest(
            topics=asked, response_partition_limit=_PAGE, cursor=cursor
        )
        page = await pool.ask(Controller(), request, partitions.DescribeTopicPartitionsResponse)
        for topic in page.topics:
            for row in topic.partitions:
                found[TopicPartition(topic.name or "", row.partition_index)] = _place(row)
        cursor = page.next_cursor
        if cursor is None:
            return found


def _place(row: partitions.DescribeTopicPartitionsResponsePartition) -> Place:
    return Place(
        row.leader_id,
        tuple(row.replica_nodes),
        tuple(row.isr_nodes),
        tuple(row.eligible_leader_replicas or ()),
        tuple(row.offline_replicas),
    )


async def moves(pool: Pool) -> dict[TopicPartition, Move]:
    """Those under way."""
    answer = await pool.ask(
        Controller(),
        ListPartitionReassignmentsRequest(topics=None, timeout_ms=_TIMEOUT_MS),
        ListPartitionReassignmentsResponse,
        check=lambda answer: check(answer.error_code, answer.error_message, "moves"),
    )
    return {
        TopicPartition(topic.name, row.partition_index): Move(
            tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas)
        )
        for topic in answer.topics
        for row in topic.partitions
    }


async def move(pool: Pool, targets: Mapping[TopicPartition, Sequence[int] | None]) -> Refusals:
    """Begins moves (None: calls one off); what is refused, and why."""
    if not targets:
        return {}
    topics: dict[str, alter.ReassignableTopic] = {}
    for at, replicas in targets.items():
        topic = topics.setdefault(at.topic, alter.ReassignableTopic(name=at.topic))
        topic.partitions.append(
            alter.ReassignablePartition(
                partition_index=at.partition, replicas=None if replicas is None else list(replicas)
            )
        )
    answer = await pool.ask(
        Controller(),
        alter.AlterPartitionReassignmentsRequest(
            topics=list(topics.values()), timeout_ms=_TIMEOUT_MS
        ),
        alter.AlterPartitionReassignmentsResponse,
        check=lambda answer: check(answer.error_code, answer.error_message, "moves"),
    )
    return {
        TopicPartition(row.name, result.partition_index): _refusal(
            TopicPartition(row.name, result.partition_index),
            result.error_code,
            result.error_message,
        )
        for row in answer.responses
        for result in row.partitions
        if result.error_code
    }


class Elected(NamedTuple):
    done: tuple[TopicPartition, ...]
    refused: Refusals


async def elect_leaders(
    pool: Pool, asked: Iterable[TopicPartition] | None, *, unclean: bool = False
) -> Elected:
    """None: of all partitions. What needs no election is neither done nor refused."""
    answer = await pool.ask(
        Controller(),
        elect.ElectLeadersRequest(
            election_type=_UNCLEAN if unclean else _PREFERRED,
            topic_partitions=None if asked is None else _by_topic(asked),
            timeout_ms=_TIMEOUT_MS,
        ),
        elect.ElectLeadersResponse,
        check=lambda answer: check(answer.error_code, None, "election"),
    )
    done: list[TopicPartition] = []
    refused: Refusals = {}
    for row in answer.replica_election_results:
        for result in row.partition_result:
            at = TopicPartition(row.topic, result.partition_id)
            code = error_code(result.error_code)
            if code is ErrorCode.NONE:
                done.append(at)
            elif code is not ErrorCode.ELECTION_NOT_NEEDED:
                refused[at] = _refusal(at, result.error_code, result.error_message)
    return Elected(tuple(sorted(done)), refused)


async def unregister_broker(pool: Pool, broker_id: int) -> None:
    """Of one that was stopped and will not come back."""
    await pool.change(
        UnregisterBrokerRequest(broker_id=broker_id),
        UnregisterBrokerResponse,
        check=lambda answer: check(answer.error_code, answer.error_message, f"broker {broker_id}"),
        done=ErrorCode.BROKER_ID_NOT_REGISTERED,
    )


class Disk(NamedTuple):
    sizes_bytes: dict[TopicPartition, int]  # of each replica
    usable_bytes: int  # -1: unknown
    total_bytes: int


async def disks(
    pool: Pool, brokers: Iterable[int], asked: Iterable[TopicPartition] | None = None
) -> dict[int, Disk]:
    """What brokers have on disk (None: of everything). One that does not answer is left out."""
    request = DescribeLogDirsRequest(
        topics=None
        if asked is None
        else [
            DescribableLogDirTopic(topic=row.topic, partitions=row.partitions)
            for row in _by_topic(asked)
        ]
    )
    found: dict[int, Disk] = {}
    for broker_id in brokers:
        try:
            answer = await pool.once(
                Broker(broker_id), request, DescribeLogDirsResponse, Deadline(_ASK_SIZES_MS)
            )
        except ClientError:
            continue
        found[broker_id] = _disk(answer)
    return found


def _disk(answer: DescribeLogDirsResponse) -> Disk:
    sizes_bytes = {
        TopicPartition(topic.name, row.partition_index): row.partition_size
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
    }
    usable = [directory.usable_bytes for directory in answer.results]
    total = [directory.total_bytes for directory in answer.results]
    return Disk(sizes_bytes, min(usable, default=-1), max(total, default=-1))


def _by_topic(asked: Iterable[TopicPartition]) -> list[elect.TopicPartitions]:
    topics: dict[str, elect.TopicPartitions] = {}
    for at in asked:
        row = topics.setdefault(at.topic, elect.TopicPartitions(topic=at.topic))
        row.partitions.append(at.partition)
    return list(topics.values())


def _refusal(at: TopicPartition, number: int, message: str | None) -> ClientError:
    return ClientError(message or f"{at}: {describe(number)}", error_code(number))
