"""Coordinators of transactions and groups on different brokers, which move."""

import asyncio

import pytest

from penstock.broker.coordinators.groups import OFFSETS_TOPIC
from penstock.broker.coordinators.shards import partition_for
from penstock.broker.coordinators.transactions import STATE_TOPIC
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    PartitionRequest,
    TopicRequest,
)
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.several import PARTITIONS, Held, Several
from tests.support.txn_session import NEW, OLD, Session
from tests.unit.broker.coordinators.across.sessions import (
    E,
    both_versions,
    either_end,
    lost,
    markers,
    numbers,
    offset_of,
    result_of,
    send,
    session,
    until_complete,
    values,
)


def offset_sent(
    brokers: Several, made: Session, group: str, topic: str, of: int | None = None
) -> asyncio.Task[ErrorCode]:
    """An offset on its way."""
    request = made.offset_request(group, topic, 7)
    version = 3 if made.version == OLD else 5

    async def ask() -> ErrorCode:
        answer = await brokers.asked(request, version, of)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    return brokers.begin(ask())


@both_versions
def test_offsets_are_refused_once_their_transaction_has_ended(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    group = brokers.group_at(2, f"g{next(numbers)}")
    if version == OLD:
        made.add_group(group)
    held = brokers.call(lambda: Held(answers=True))
    with brokers.gate(2, AddPartitionsToTxnRequest, held):
        task = offset_sent(brokers, made, group, topic)
        brokers.run(held.arrived.wait())
        late = Session(brokers, made.id, version)  # type: ignore[arg-type] # as good as one broker
        late.producer = made.producer
        assert late.end(committed=True) is E.NONE
        until_complete(brokers, made)
        held.may_pass.set()
        code = brokers.run(result_of(task))
    expected = {OLD: E.COORDINATOR_LOAD_IN_PROGRESS, NEW: E.CONCURRENT_TRANSACTIONS}
    assert code is expected[version], "which those clients try again"
    assert offset_of(brokers, group, topic) == (E.NONE, -1)


@both_versions
def test_a_broker_that_does_not_coordinate_the_group_says_so(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    task = offset_sent(brokers, made, brokers.group_at(2), topic, of=3)
    assert brokers.run(result_of(task)) is E.NOT_COORDINATOR


@both_versions
def test_while_the_coordinator_of_the_transaction_is_away_offsets_are_sent_again_to_the_same_group(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    group = brokers.group_at(2, f"g{next(numbers)}")
    if version == OLD:
        made.add_group(group)
    with brokers.gate(2, AddPartitionsToTxnRequest, lost):
        assert made.send_offset(group, topic, 7) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert made.send_offset(group, topic, 7) is E.NONE
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert offset_of(brokers, group, topic) == (E.NONE, 7)


@either_end
def test_a_group_that_moves_takes_its_pending_offsets_along(
    brokers: Several, topic: str, committed: bool
) -> None:
    made = session(brokers, 1, NEW)
    group = brokers.group_at(2, f"g{next(numbers)}")
    index = partition_for(group, PARTITIONS)
    assert made.send_offset(group, topic, 7) is E.NONE
    brokers.move_leader(OFFSETS_TOPIC, index, 3)
    assert made.end(committed=committed) is E.NONE
    until_complete(brokers, made)
    assert offset_of(brokers, group, topic) == (E.NONE, 7 if committed else -1)
    brokers.move_leader(OFFSETS_TOPIC, index, 2)


# Coordinators that move ------------------------------------------------------------------------


@either_end
@both_versions
def test_a_new_coordinator_finishes_what_was_decided_and_the_old_one_comes_too_late(
    brokers: Several, topic: str, version: int, committed: bool
) -> None:
    made = session(brokers, 1, version)
    index = partition_for(made.id, PARTITIONS)
    send(made, topic, 1, 2)
    producer = made.producer
    with brokers.gate(1, WriteTxnMarkersRequest, lost) as sent:
        assert made.end(committed=committed) is E.NONE
        brokers.until(lambda: sent)
        old = brokers.partition(STATE_TOPIC, index).leader_epoch
        brokers.move_leader(STATE_TOPIC, index, 3)
        until_complete(brokers, made)
    for at in (1, 2):
        assert values(brokers, topic, at) == ([b"x"] if committed else [])
        assert [it.coordinator_epoch for it in markers(brokers.partition(topic, at))] == [old + 1]
    late = WritableTxnMarker(
        producer_id=producer.id,
        producer_epoch=producer.epoch + (version == NEW),
        coordinator_epoch=old,
        transaction_result=not committed,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[1])],
    )
    answer = brokers.ask(WriteTxnMarkersRequest(markers=[late]), 1, of=2)
    (row,) = answer.markers[0].topics[0].partitions
    assert row.error_code == E.TRANSACTION_COORDINATOR_FENCED
    brokers.move_leader(STATE_TOPIC, index, 1)


@both_versions
def test_an_open_transaction_goes_on_with_the_new_coordinator(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    index = partition_for(made.id, PARTITIONS)
    send(made, topic, 0)
    brokers.move_leader(STATE_TOPIC, index, 3)
    brokers.until(lambda: not brokers.services(3).transactions.is_loading)
    send(made, topic, 1)
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert [values(brokers, topic, at) for at in (0, 1)] == [[b"x"], [b"x"]]
    brokers.move_leader(STATE_TOPIC, index, 1)


def test_who_does_not_coordinate_says_so(brokers: Several) -> None:
    made = session(brokers, 1, OLD)
    request = InitProducerIdRequest(transactional_id=made.id, transaction_timeout_ms=1000)
    for other in (2, 3):
        assert brokers.ask(request, 4, of=other).error_code == E.NOT_COORDINATOR


def test_a_broker_that_lost_its_session_coordinates_nothing(brokers: Several, topic: str) -> None:
    """Others may do it by now, and what it still knows may be of yesterday."""
    made = session(brokers, 1, OLD)
    made.add(topic, 1)
    transactions = brokers.services(1).transactions
    index = partition_for(made.id, PARTITIONS)

    def leads_no_more() -> None:
        partition = brokers.partition(STATE_TOPIC, index, at=1)
        partition.follow(None)
        for callback in brokers.services(1).cluster._session._when_lost[1:]:
            callback()

    brokers.call(leads_no_more)
    with pytest.raises(Exception, match="another broker"):
        brokers.call(
            lambda: transactions.verify(made.id, made.producer, [TopicPartition(topic, 1)])
        )
    brokers.move_leader(STATE_TOPIC, index, 2)
    brokers.until(lambda: made.send(topic, 1, b"x") is E.NONE)
    brokers.move_leader(STATE_TOPIC, index, 1)


def test_no_two_brokers_give_the_same_producer_id(brokers: Several) -> None:
    ids = [
        brokers.ask(InitProducerIdRequest(transactional_id=None), 4, of=number).producer_id
        for number in (1, 2, 3) * 5
    ]
    assert len(set(ids)) == len(ids)


def test_every_broker_describes_the_same_quorum(brokers: Several) -> None:
    """Only the controller knows how far the others are, so they forward the request."""
    request = DescribeQuorumRequest(
        topics=[
            TopicRequest(
                topic_name="__cluster_metadata", partitions=[PartitionRequest(partition_index=0)]
            )
        ]
    )

    def voters(of: int) -> list[tuple[int, bool]]:
        (topic,) = brokers.ask(request, of=of).topics
        (found,) = topic.partitions
        assert found.leader_id in brokers.nodes
        return [
            (
                it.replica_id,
                it.log_end_offset == found.high_watermark and it.last_fetch_timestamp > 0,
            )
            for it in found.current_voters
        ]

    for number in brokers.nodes:
        brokers.until(lambda: voters(number) == [(1, True), (2, True), (3, True)])  # noqa: B023
