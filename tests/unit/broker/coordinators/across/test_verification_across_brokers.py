"""Verification by a coordinator on another broker, and what makes it worthless before the append (KIP-890)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.coordinators.shards import partition_for
from penstock.broker.coordinators.transactions import STATE_TOPIC
from penstock.broker.partitions.partition import Partition
from penstock.kafka.handlers import add_partitions_to_txn, write_txn_markers
from penstock.model.errors import ErrorCode
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.support.several import PARTITIONS, Held, Several, passing
from tests.support.txn_session import NEW, OLD, Session
from tests.unit.broker.coordinators.across.sessions import (
    E,
    both_versions,
    lost,
    markers,
    produced,
    result_of,
    send,
    session,
    state,
    until_complete,
    values,
)


def refused_while_held(
    brokers: Several, made: Session, topic: str, happens: Callable[[], object]
) -> ErrorCode:
    """What a produce to partition 1 is told if something happens while its verification is on its way back."""
    held = brokers.call(lambda: Held(answers=True))
    with brokers.gate(2, AddPartitionsToTxnRequest, held):
        task = produced(brokers, made, topic, 1)
        brokers.run(held.arrived.wait())
        happens()
        held.may_pass.set()
        return brokers.run(result_of(task))


RETRY = {OLD: E.NOT_ENOUGH_REPLICAS, NEW: E.CONCURRENT_TRANSACTIONS}


@pytest.mark.parametrize("earlier", [0, 1, 2])
@both_versions
def test_what_was_verified_does_not_count_once_the_transaction_has_ended(
    brokers: Several, topic: str, version: int, earlier: int
) -> None:
    """The client gave it up, or it is a ghost of one: its records would never be ended."""
    made = session(brokers, 1, version)
    for _ in range(earlier):
        brokers.until(lambda: made.version == NEW or made.add(topic, 1) == [E.NONE])
        brokers.until(lambda: made.send(topic, 1, b"x") is E.NONE)
        assert made.end(committed=True) is E.NONE
        until_complete(brokers, made)
    if version == OLD:
        made.add(topic, 1)

    def end() -> None:
        late = Session(brokers, made.id, version)  # type: ignore[arg-type] # as good as one broker
        late.producer = made.producer
        assert late.end(committed=True) is E.NONE
        until_complete(brokers, made)

    assert refused_while_held(brokers, made, topic, end) is RETRY[version]
    assert values(brokers, topic, 1) == [b"x"] * earlier
    assert brokers.partition(topic, 1).log.first_unstable_offset is None


@both_versions
def test_what_was_verified_does_not_count_for_another_term_of_the_leader(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)

    def away_and_back() -> None:
        brokers.move_leader(topic, 1, 3)
        brokers.move_leader(topic, 1, 2)

    assert refused_while_held(brokers, made, topic, away_and_back) is RETRY[version]
    assert made.send(topic, 1, b"x") is E.NONE, "asked again, it is"
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert values(brokers, topic, 1) == [b"x"]


@both_versions
def test_a_leader_that_has_moved_takes_nothing_that_it_had_verified(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)
    code = refused_while_held(brokers, made, topic, lambda: brokers.move_leader(topic, 1, 3))
    assert code is E.NOT_LEADER_OR_FOLLOWER
    assert made.send(topic, 1, b"x") is E.NONE
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert values(brokers, topic, 1) == [b"x"]


@both_versions
def test_a_newer_epoch_of_the_producer_in_between_fences_what_was_verified(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)

    def fence() -> None:
        newer = Session(brokers, made.id, version)  # type: ignore[arg-type] # as good as one broker
        brokers.until(lambda: newer.initialize() is E.NONE)

    code = refused_while_held(brokers, made, topic, fence)
    assert code in (RETRY[version], E.INVALID_PRODUCER_EPOCH)
    assert values(brokers, topic, 1) == []
    assert made.send(topic, 1, b"x") is E.INVALID_PRODUCER_EPOCH


def test_a_batch_that_entered_meanwhile_needs_no_other_verification(
    brokers: Several, topic: str
) -> None:
    made = session(brokers, 1, OLD)
    made.add(topic, 1)
    held = brokers.call(lambda: Held(answers=True))
    with brokers.gate(2, AddPartitionsToTxnRequest, held) as sent:
        first = produced(brokers, made, topic, 1)
        brokers.run(held.arrived.wait())
        again = produced(brokers, made, topic, 1)
        held.may_pass.set()
        assert brokers.run(result_of(first)) is E.NONE
        assert brokers.run(result_of(again)) is E.NONE, "a duplicate"
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert len(sent) == 2
    assert values(brokers, topic, 1) == [b"x"]


def test_a_partition_with_records_of_the_transaction_is_not_asked_about_again(
    brokers: Several, topic: str
) -> None:
    made = session(brokers, 1, NEW)
    with brokers.gate(2, AddPartitionsToTxnRequest, passing) as sent:
        for _ in range(3):
            send(made, topic, 1)
    assert len(sent) == 1


def test_questions_for_one_coordinator_go_together(brokers: Several, topic: str) -> None:
    sessions = [session(brokers, 1, NEW) for _ in range(4)]
    held = brokers.call(Held)
    with brokers.gate(2, AddPartitionsToTxnRequest, held) as sent:
        first = produced(brokers, sessions[0], topic, 1)
        brokers.run(held.arrived.wait())
        others = [produced(brokers, made, topic, 1) for made in sessions[1:]]
        brokers.run(asyncio.sleep(0))
        held.may_pass.set()
        assert {brokers.run(result_of(it)) for it in (first, *others)} == {E.NONE}
    batches = [it.transactions for it in sent if isinstance(it, AddPartitionsToTxnRequest)]
    assert [len(it) for it in batches] == [1, 3]


def test_a_question_that_takes_long_does_not_hold_up_the_others(
    brokers: Several, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = session(brokers, 1, NEW), session(brokers, 1, NEW)
    transactions = brokers.services(1).transactions
    add = transactions.add

    def stuck(transactional_id: str, *rest: Any) -> Any:
        if transactional_id == slow.id:
            return asyncio.get_running_loop().create_future()
        return add(transactional_id, *rest)

    monkeypatch.setattr(transactions, "add", stuck)
    monkeypatch.setattr(add_partitions_to_txn, "_PATIENCE_S", 0.01)
    task = produced(brokers, slow, topic, 1)
    brokers.until(lambda: quick.send(topic, 1, b"x") is E.NONE)
    assert brokers.run(result_of(task)) is E.NOT_ENOUGH_REPLICAS


def test_a_marker_that_is_not_committed_in_time_does_not_hold_up_the_others(
    brokers: Several, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(brokers, 1, NEW)
    send(made, topic, 1, 2)
    stuck = brokers.partition(topic, 1)
    monkeypatch.setattr(write_txn_markers, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(type(stuck), "committed", _never_for(stuck))
    with brokers.gate(1, WriteTxnMarkersRequest, passing) as sent:
        assert made.end(committed=True) is E.NONE
        brokers.until(lambda: len(sent) >= 3)
        assert state(brokers, made) == "PrepareCommit"
    monkeypatch.undo()
    until_complete(brokers, made)
    assert len(markers(stuck)) == 1, "one of version 2 is not written again"


def _never_for(stuck: Partition) -> Callable[[Partition, int], asyncio.Future[None] | None]:
    committed = Partition.committed

    def patched(self: Partition, next_offset: int) -> asyncio.Future[None] | None:
        if self is stuck:
            return asyncio.get_running_loop().create_future()
        return committed(self, next_offset)

    return patched


@pytest.mark.parametrize(
    ("version", "code"),
    [(9, E.INVALID_TXN_STATE), (11, E.TRANSACTION_ABORTABLE)],
)
def test_who_did_not_add_the_partition_may_not_write_there(
    brokers: Several, topic: str, version: int, code: ErrorCode
) -> None:
    made = session(brokers, 1, OLD)
    made.add(topic, 0)
    assert made.send(topic, 1, b"x", version=version) is code
    assert brokers.partition(topic, 1).log.next_offset == 0


@both_versions
def test_a_coordinator_that_cannot_be_reached_is_asked_again_by_the_client(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)
    with brokers.gate(2, AddPartitionsToTxnRequest, lost):
        assert made.send(topic, 1, b"x") is E.NOT_ENOUGH_REPLICAS
    assert made.send(topic, 1, b"x") is E.NONE


@both_versions
def test_what_follows_a_batch_that_was_told_to_try_again_does_not_enter_before_it(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)
    with brokers.gate(2, AddPartitionsToTxnRequest, lost):
        assert made.send(topic, 1, b"a") is E.NOT_ENOUGH_REPLICAS
    assert made.send(topic, 1, b"b", skip=1) is E.NOT_ENOUGH_REPLICAS
    assert made.send(topic, 1, b"a") is E.NONE
    assert made.send(topic, 1, b"b") is E.NONE
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert values(brokers, topic, 1) == [b"a", b"b"]


def test_a_producer_that_nobody_refused_may_begin_anywhere(brokers: Several, topic: str) -> None:
    """Its earlier batches may have been deleted, and its state with them (KIP-360)."""
    made = session(brokers, 1, OLD)
    made.add(topic, 1)
    assert made.send(topic, 1, b"b", skip=7) is E.NONE


@both_versions
def test_the_new_coordinator_is_asked_once_it_is_known(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    if version == OLD:
        made.add(topic, 1)
    index = partition_for(made.id, PARTITIONS)
    held = brokers.call(Held)
    with brokers.gate(2, AddPartitionsToTxnRequest, held):
        task = produced(brokers, made, topic, 1)
        brokers.run(held.arrived.wait())
        brokers.move_leader(STATE_TOPIC, index, 3)
        held.may_pass.set()
        assert brokers.run(result_of(task)) is E.NOT_ENOUGH_REPLICAS, "it asked the old one"
    brokers.until(lambda: made.send(topic, 1, b"x") is E.NONE)
    assert made.end(committed=True) is E.NONE
    until_complete(brokers, made)
    assert values(brokers, topic, 1) == [b"x"]
    brokers.move_leader(STATE_TOPIC, index, 1)


def test_an_old_coordinator_is_not_believed_where_a_newer_one_has_ended_something(
    brokers: Several, topic: str
) -> None:
    """It may have missed that the transaction is over."""
    made = session(brokers, 1, OLD)
    made.add(topic, 1)
    newer = WritableTxnMarker(
        producer_id=made.producer.id,
        producer_epoch=made.producer.epoch,
        coordinator_epoch=1 << 20,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[1])],
    )
    brokers.ask(WriteTxnMarkersRequest(markers=[newer]), 1, of=2)
    assert made.send(topic, 1, b"x") is E.NOT_ENOUGH_REPLICAS
    assert values(brokers, topic, 1) == []
