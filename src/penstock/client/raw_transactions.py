"""A transactional producer in pieces, for those who write together: one begins and ends, many send ready batches.

A Session can be sent to other processes: whoever has it writes in its transaction. It speaks what every broker
since Kafka 3 understands: partitions are added before they are written to, and the epoch stays while nobody takes over.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple, TypeVar

from penstock.client.errors import ClientError, check, error_code
from penstock.client.pool import AnyBroker, Broker, Deadline, Leader, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.batch import (
    CRC_START,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
    renew_checksum,
)
from penstock.wire.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from penstock.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from penstock.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from penstock.wire.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from penstock.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from penstock.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from penstock.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

T = TypeVar("T")

_GROUP: Final = 0  # kinds of coordinators
_TRANSACTION: Final = 1
_ALL_IN_SYNC: Final = -1
_OLD_INIT: Final = 4
_OLD_ADD: Final = 3  # the last versions in which a client adds partitions itself
_OLD_PRODUCE: Final = 11
_OLD_OFFSETS: Final = 4
_OLD_END: Final = 4
_BY_NAME: Final = 9  # the last OffsetFetch that names topics
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)
_LOST: Final = frozenset(
    {
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
_NOT_TRIED: Final = ErrorCode.OPERATION_NOT_ATTEMPTED  # because of another partition
_ATTRIBUTES: Final = Struct(">h")
_PRODUCER: Final = Struct(">qhi")  # id, epoch, base sequence
_PRODUCER_POSITION: Final = 43


class Session(NamedTuple):
    """Who writes. Valid until somebody initialises the same transactional id, or its transaction is overdue."""

    transactional_id: str
    producer_id: int
    epoch: int


class OffsetToCommit(NamedTuple):
    offset: int
    metadata: str | None = None


class Fenced(ClientError):
    """Somebody else has the transactional id by now, or the transaction was overdue: what was sent is aborted."""


class TransactionLost(ClientError):
    """This transaction cannot be committed any more: abort it, and begin another."""


# What one does for all ---------------------------------------------------------------------------


async def begin(
    pool: Pool, transactional_id: str, *, transaction_timeout_ms: int, timeout_ms: int | None = None
) -> Session:
    """A new epoch: whoever had the last one is shut out, and what it left open is aborted before this returns."""
    request = InitProducerIdRequest(
        transactional_id=transactional_id, transaction_timeout_ms=transaction_timeout_ms
    )

    async def attempt(broker_id: int, deadline: Deadline) -> Session:
        answer = await pool.once(
            Broker(broker_id), request, InitProducerIdResponse, deadline, at_most=_OLD_INIT
        )
        _check(answer.error_code, None, f"transactional id {transactional_id!r}")
        return Session(transactional_id, answer.producer_id, answer.producer_epoch)

    return await _at_coordinator(pool, _TRANSACTION, transactional_id, attempt, timeout_ms)


async def add_partitions(
    pool: Pool,
    session: Session,
    partitions: Iterable[TopicPartition],
    *,
    timeout_ms: int | None = None,
) -> None:
    """Before anything is sent to them. All or none; to add again changes nothing."""
    topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=indexes)
        for topic, indexes in _by_topic(partitions).items()
    ]
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=session.transactional_id,
        v3_and_below_producer_id=session.producer_id,
        v3_and_below_producer_epoch=session.epoch,
        v3_and_below_topics=topics,
    )

    async def attempt(broker_id: int, deadline: Deadline) -> None:
        answer = await pool.once(
            Broker(broker_id), request, AddPartitionsToTxnResponse, deadline, at_most=_OLD_ADD
        )
        rows = [
            (f"{topic.name}-{row.partition_index}", row.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for row in topic.results_by_partition
        ]
        for name, code in sorted(rows, key=lambda row: row[1] == _NOT_TRIED):
            _check(code, None, name)

    await _at_coordinator(pool, _TRANSACTION, session.transactional_id, attempt, timeout_ms)


async def commit_offsets(
    pool: Pool,
    session: Session,
    group_id: str,
    offsets: Mapping[TopicPartition, OffsetToCommit],
    *,
    timeout_ms: int | None = None,
) -> None:
    """The group has these offsets if and when the transaction commits. Their topics must be of this cluster."""
    await _add_group(pool, session, group_id, timeout_ms)
    request = TxnOffsetCommitRequest(
        transactional_id=session.transactional_id,
        group_id=group_id,
        producer_id=session.producer_id,
        producer_epoch=session.epoch,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[_offset_row(offsets, topic, index) for index in indexes],
            )
            for topic, indexes in _by_topic(offsets).items()
        ],
    )

    async def attempt(broker_id: int, deadline: Deadline) -> None:
        answer = await pool.once(
            Broker(broker_id), request, TxnOffsetCommitResponse, deadline, at_most=_OLD_OFFSETS
        )
        for topic in answer.topics:
            for row in topic.partitions:
                _check(row.error_code, None, f"offset of {topic.name}-{row.partition_index}")

    await _at_coordinator(pool, _GROUP, group_id, attempt, timeout_ms)


async def committed_offsets(
    pool: Pool, group_id: str, *, timeout_ms: int | None = None
) -> dict[TopicPartition, OffsetToCommit]:
    """What the group has, once no transaction that would change it is under way: was the last one committed?"""
    asked = [OffsetFetchRequestGroup(group_id=group_id, topics=None)]
    request = OffsetFetchRequest(groups=asked, require_stable=True)

    async def attempt(broker_id: int, deadline: Deadline) -> dict[TopicPartition, OffsetToCommit]:
        answer = await pool.once(
            Broker(broker_id), request, OffsetFetchResponse, deadline, at_most=_BY_NAME
        )
        (group,) = answer.groups
        _check(group.error_code, None, f"group {group_id!r}")
        found = {}
        for topic in group.topics:
            for row in topic.partitions:
                place = TopicPartition(topic.name, row.partition_index)
                _check(row.error_code, None, f"offset of {place}")
                found[place] = OffsetToCommit(row.committed_offset, row.metadata)
        return found

    return await _at_coordinator(pool, _GROUP, group_id, attempt, timeout_ms)


async def end(
    pool: Pool, session: Session, *, committed: bool, timeout_ms: int | None = None
) -> None:
    """Returns when the end is decided and written down; readers see it when the markers are there.

    Asked again after an answer was lost, the coordinator says the same again.
    """
    request = EndTxnRequest(
        transactional_id=session.transactional_id,
        producer_id=session.producer_id,
        producer_epoch=session.epoch,
        committed=committed,
    )

    async def attempt(broker_id: int, deadline: Deadline) -> None:
        answer = await pool.once(
            Broker(broker_id), request, EndTxnResponse, deadline, at_most=_OLD_END
        )
        _check(answer.error_code, None, f"transactional id {session.transactional_id!r}")

    await _at_coordinator(pool, _TRANSACTION, session.transactional_id, attempt, timeout_ms)


# What each writer does ---------------------------------------------------------------------------


def sign(batch: bytearray | memoryview, session: Session, base_sequence: int) -> None:
    """Makes a batch one of the session's transaction, in place, whoever's it was. One without a delete horizon."""
    view = memoryview(batch)
    attributes = _ATTRIBUTES.unpack_from(view, CRC_START)[0] | TRANSACTIONAL_BIT
    assert not attributes & DELETE_HORIZON_BIT, "its first timestamp would be lost"
    _ATTRIBUTES.pack_into(view, CRC_START, attributes)
    _PRODUCER.pack_into(view, _PRODUCER_POSITION, session.producer_id, session.epoch, base_sequence)
    renew_checksum(view)


async def produce(
    pool: Pool,
    session: Session,
    partition: TopicPartition,
    batch: bytes | bytearray | memoryview,
    *,
    timeout_ms: int | None = None,
) -> int:
    """One signed batch; its first offset, -1 if it was there already and nobody remembers where.

    In a partition sequences go on from 0 without holes, in each epoch. One writer a partition; sent again it is kept once.
    """
    data = PartitionProduceData(index=partition.partition, records=memoryview(batch))
    topic = TopicProduceData(name=partition.topic, partition_data=[data])

    async def attempt(deadline: Deadline) -> int:
        request = ProduceRequest(
            transactional_id=session.transactional_id,
            acks=_ALL_IN_SYNC,
            timeout_ms=max(1, deadline.left_ms()),
            topic_data=[topic],
        )
        answer = await pool.once(
            Leader(partition), request, ProduceResponse, deadline, at_most=_OLD_PRODUCE
        )
        row = answer.responses[0].partition_responses[0]
        if row.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return -1
        _check(row.error_code, row.error_message, str(partition))
        return row.base_offset

    return await pool.retry(attempt, patient=True, timeout_ms=timeout_ms)


# Underneath --------------------------------------------------------------------------------------


async def _add_group(pool: Pool, session: Session, group_id: str, timeout_ms: int | None) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=session.transactional_id,
        producer_id=session.producer_id,
        producer_epoch=session.epoch,
        group_id=group_id,
    )

    async def attempt(broker_id: int, deadline: Deadline) -> None:
        answer = await pool.once(
            Broker(broker_id), request, AddOffsetsToTxnResponse, deadline, at_most=_OLD_ADD
        )
        _check(answer.error_code, None, f"group {group_id!r}")

    await _at_coordinator(pool, _TRANSACTION, session.transactional_id, attempt, timeout_ms)


def _offset_row(
    offsets: Mapping[TopicPartition, OffsetToCommit], topic: str, index: int
) -> TxnOffsetCommitRequestPartition:
    given = offsets[TopicPartition(topic, index)]
    return TxnOffsetCommitRequestPartition(
        partition_index=index, committed_offset=given.offset, committed_metadata=given.metadata
    )


async def _at_coordinator(
    pool: Pool,
    kind: int,
    name: str,
    work: Callable[[int, Deadline], Awaitable[T]],
    timeout_ms: int | None,
) -> T:
    """Found anew for each attempt: it may have moved."""

    async def attempt(deadline: Deadline) -> T:
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        answer = await pool.once(AnyBroker(), request, FindCoordinatorResponse, deadline)
        (found,) = answer.coordinators
        check(found.error_code, found.error_message, f"coordinator of {name!r}")
        return await work(found.node_id, deadline)

    return await pool.retry(attempt, patient=True, timeout_ms=timeout_ms)


def _check(number: int, message: str | None, subject: str) -> None:
    """Fenced and TransactionLost call for different things; the rest is as everywhere."""
    try:
        check(number, message, subject)
    except ClientError as error:
        code = error_code(number)
        if code in _FENCED:
            raise Fenced(error.message, code) from None
        if code in _LOST:
            raise TransactionLost(error.message, code) from None
        raise


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for topic, index in partitions:
        groups.setdefault(topic, []).append(index)
    return groups
