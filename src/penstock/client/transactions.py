"""What people ask about transactions: which there are, where they stand, which hang, and to end one."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from penstock.client.errors import ClientError, check, error_code
from penstock.client.pool import AnyBroker, Broker, Deadline, Leader, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages import describe_producers
from penstock.wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from penstock.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ONGOING: Final = "Ongoing"
UNFINISHED: Final = frozenset({ONGOING, "PrepareCommit", "PrepareAbort"})
_TRANSACTION: Final = 1  # the kind of coordinator
_SHORTEST_MS: Final = 1  # a timeout, of a producer that only comes to fence
T = TypeVar("T")


class Listed(NamedTuple):
    id: str
    state: str
    producer_id: int
    coordinator: int


class Described(NamedTuple):
    id: str
    state: str
    producer_id: int
    epoch: int
    timeout_ms: int
    start_ms: int  # -1: none was begun
    coordinator: int
    partitions: tuple[TopicPartition, ...]


class Open(NamedTuple):
    """A transaction as a partition knows it: it has records, and no end."""

    partition: TopicPartition
    first_offset: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    last_write_ms: int


async def list_transactions(
    pool: Pool,
    *,
    states: Iterable[str] = (),
    producers: Iterable[int] = (),
    longer_than_ms: int = -1,
) -> list[Listed]:
    """Those of all brokers, by name; of these producer ids, if any are given."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producers),
        duration_filter=longer_than_ms,
    )
    found: list[Listed] = []
    for broker_id in await pool.broker_ids():
        answer = await pool.ask(
            Broker(broker_id),
            request,
            ListTransactionsResponse,
            check=lambda answer: check(answer.error_code, None, "transactions"),
        )
        if answer.unknown_state_filters:
            raise ClientError(
                f"no transaction is ever in state {answer.unknown_state_filters[0]!r}",
                ErrorCode.INVALID_REQUEST,
            )
        found += (
            Listed(row.transactional_id, row.transaction_state, row.producer_id, broker_id)
            for row in answer.transaction_states
        )
    return sorted(found)


async def describe_transaction(pool: Pool, name: str) -> Described:
    """Raises for a transactional id that nobody uses."""
    request = DescribeTransactionsRequest(transactional_ids=[name])

    async def attempt(coordinator: int, deadline: Deadline) -> Described:
        answer = await pool.once(
            Broker(coordinator), request, DescribeTransactionsResponse, deadline
        )
        (row,) = answer.transaction_states
        if error_code(row.error_code) is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise ClientError(
                f"transactional id {name!r} does not exist; see: penstock txn list",
                ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            )
        check(row.error_code, None, f"transactional id {name!r}")
        return Described(
            name,
            row.transaction_state,
            row.producer_id,
            row.producer_epoch,
            row.transaction_timeout_ms,
            row.transaction_start_time_ms,
            coordinator,
            tuple(
                TopicPartition(topic.topic, index)
                for topic in sorted(row.topics, key=lambda topic: topic.topic)
                for index in sorted(topic.partitions)
            ),
        )

    return await _at_coordinator(pool, name, attempt)


async def fence(pool: Pool, name: str) -> None:
    """Abort what is open under the transactional id, and shut out its producer, until that is done."""
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=_SHORTEST_MS)

    async def attempt(coordinator: int, deadline: Deadline) -> None:
        answer = await pool.once(Broker(coordinator), request, InitProducerIdResponse, deadline)
        check(answer.error_code, None, f"transactional id {name!r}")

    await _at_coordinator(pool, name, attempt)


async def open_transactions(pool: Pool, topics: Mapping[str, Iterable[int]]) -> list[Open]:
    """Those that the partitions know, oldest first in each."""
    found: list[Open] = []
    for topic, indexes in topics.items():
        for index in indexes:
            found += await _open_in(pool, TopicPartition(topic, index))
    return found


async def _open_in(pool: Pool, partition: TopicPartition) -> list[Open]:
    asked = describe_producers.TopicRequest(
        name=partition.topic, partition_indexes=[partition.partition]
    )

    def accept(answer: describe_producers.DescribeProducersResponse) -> None:
        for topic in answer.topics:
            for row in topic.partitions:
                check(row.error_code, row.error_message, str(partition))

    answer = await pool.ask(
        Leader(partition),
        describe_producers.DescribeProducersRequest(topics=[asked]),
        describe_producers.DescribeProducersResponse,
        check=accept,
    )
    found = [
        Open(
            partition,
            row.current_txn_start_offset,
            row.producer_id,
            row.producer_epoch,
            row.coordinator_epoch,
            row.last_timestamp,
        )
        for row in answer.topics[0].partitions[0].active_producers
        if row.current_txn_start_offset >= 0
    ]
    return sorted(found)


async def hanging_transactions(pool: Pool, topics: Mapping[str, Iterable[int]]) -> list[Open]:
    """Those that no coordinator will ever end: it does not know of them, or not there."""
    candidates = await open_transactions(pool, topics)
    if not candidates:
        return []
    known = await coordinated(pool, {found.producer_id for found in candidates})
    still_open = set(await open_transactions(pool, topics))
    return [
        found
        for found in candidates
        if (found.producer_id, found.partition) not in known and found in still_open
    ]


async def coordinated(
    pool: Pool, producers: Iterable[int]
) -> dict[tuple[int, TopicPartition], str]:
    """What coordinators will end: the transactional id for each producer and partition."""
    found: dict[tuple[int, TopicPartition], str] = {}
    for listed in await list_transactions(pool, states=sorted(UNFINISHED), producers=producers):
        described = await describe_transaction(pool, listed.id)
        for partition in described.partitions:
            found[described.producer_id, partition] = listed.id
    return found


async def abort_in_partition(pool: Pool, found: Open) -> None:
    """Write the marker that nobody else will."""
    marker = WritableTxnMarker(
        producer_id=found.producer_id,
        producer_epoch=found.epoch,
        transaction_result=False,
        coordinator_epoch=max(found.coordinator_epoch, 0),
        topics=[
            WritableTxnMarkerTopic(
                name=found.partition.topic, partition_indexes=[found.partition.partition]
            )
        ],
    )

    def accept(answer: WriteTxnMarkersResponse) -> None:
        code = answer.markers[0].topics[0].partitions[0].error_code
        check(code, None, f"{found.partition}: producer {found.producer_id}")

    await pool.ask(
        Leader(found.partition),
        WriteTxnMarkersRequest(markers=[marker]),
        WriteTxnMarkersResponse,
        check=accept,
    )


async def _at_coordinator(
    pool: Pool, name: str, work: Callable[[int, Deadline], Awaitable[T]]
) -> T:
    """Found anew for each attempt: it may have moved."""

    async def attempt(deadline: Deadline) -> T:
        request = FindCoordinatorRequest(key_type=_TRANSACTION, coordinator_keys=[name])
        answer = await pool.once(AnyBroker(), request, FindCoordinatorResponse, deadline)
        (found,) = answer.coordinators
        check(found.error_code, found.error_message, f"transactional id {name!r}")
        return await work(found.node_id, deadline)

    return await pool.retry(attempt)
