"""Transactions whose coordinator, partitions and groups are on different brokers, and every message between them that can fail."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.coordinator import OFFSETS_TOPIC
from penstock.broker.partition import Partition
from penstock.broker.shards import partition_for
from penstock.broker.transactions import STATE_TOPIC
from penstock.client.errors import ClientError
from penstock.kafka.handlers import add_partitions_to_txn, write_txn_markers
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.batch import split_batches
from penstock.records.control import EndMarker, decode_marker
from penstock.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from penstock.wire.messages.init_producer_id import InitProducerIdRequest
from penstock.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.wire.schema import Message
from tests.support.several import PARTITIONS, Held, Pass, Several, passing, several_brokers
from tests.support.txn_session import NEW, OLD, Session, committed_values
from tests.unit.storage.logs import scratch

E = ErrorCode
both_versions = pytest.mark.parametrize("version", [OLD, NEW], ids=["old", "new"])
either_end = pytest.mark.parametrize("committed", [True, False], ids=["commit", "abort"])
SPREAD = [(1, 2, 3), (2, 3, 1), (3, 1, 2)]
_numbers = count()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Several]:
    with scratch() as path, several_brokers(Path(path)) as started:
        yield started


@pytest.fixture
def topic(brokers: Several) -> str:
    """Partition n is led by broker n + 1; all have it."""
    name = f"t{next(_numbers)}"
    brokers.create_topic(name, SPREAD)
    return name


def session(brokers: Several, at: int, version: int) -> Session:
    """Of a new transactional id, whose coordinator is that broker."""
    made = Session(brokers, brokers.name_at(at, f"tx{next(_numbers)}"), version)  # type: ignore[arg-type] # as good as one broker
    brokers.until(lambda: made.initialize() is E.NONE)  # it may be reading its log back
    return made


def send(made: Session, topic: str, *indexes: int) -> None:
    if made.version == OLD:
        assert set(made.add(topic, *indexes)) == {E.NONE}
    for index in indexes:
        assert made.send(topic, index, b"x") is E.NONE


def state(brokers: Several, made: Session) -> str:
    services = brokers.services(brokers.coordinator(made.id))
    found = brokers.call(lambda: services.transactions.find(made.id))
    assert found is not None
    return found.status.title


def until_complete(brokers: Several, made: Session) -> None:
    def is_complete() -> bool:
        services = brokers.services(brokers.coordinator(made.id)).transactions
        found = None if services.is_loading else services.find(made.id)
        return found is not None and found.status.title.startswith("Complete")

    brokers.until(is_complete)


def values(brokers: Several, topic: str, index: int) -> list[bytes]:
    return committed_values(brokers, topic, index)  # type: ignore[arg-type] # as good as one broker


def markers(partition: Partition) -> list[EndMarker]:
    found = partition.log.read(0, 1 << 20, upto_offset=partition.log.next_offset)
    decoded = [
        decode_marker(batch, header)
        for piece in found.slices
        for header, batch in split_batches(memoryview(piece.read()))
        if header.is_control
    ]
    return [marker for marker in decoded if marker is not None]


def offset_of(brokers: Several, group: str, topic: str) -> tuple[int, int]:
    topics = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True
    )
    answer = brokers.ask(request, 9, of=brokers.group_coordinator(group))
    if answer.groups[0].error_code:
        return answer.groups[0].error_code, -1
    (row,) = answer.groups[0].topics[0].partitions
    return row.error_code, row.committed_offset


async def lost(_: int, __: Message, ___: Pass) -> Any:
    """A gate that nothing passes."""
    raise ClientError("it is not there", E.NETWORK_EXCEPTION)


# Ends ------------------------------------------------------------------------------------------


@either_end
@both_versions
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_transaction_ends_everywhere_wherever_its_coordinator_is(
    brokers: Several, topic: str, at: int, version: int, committed: bool
) -> None:
    made = session(brokers, at, version)
    group = brokers.group_at(at % 3 + 1)
    send(made, topic, 0, 1, 2)
    if version == OLD:
        assert made.add_group(group) is E.NONE
    assert made.send_offset(group, topic, 5) is E.NONE
    assert [values(brokers, topic, index) for index in range(3)] == [[], [], []]
    assert offset_of(brokers, group, topic)[0] == E.UNSTABLE_OFFSET_COMMIT
    assert made.end(committed=committed) is E.NONE
    until_complete(brokers, made)
    for index in range(3):
        assert values(brokers, topic, index) == ([b"x"] if committed else [])
    assert offset_of(brokers, group, topic) == (E.NONE, 5 if committed else -1)


def test_markers_for_one_broker_go_together_whatever_transaction_they_end(
    brokers: Several, topic: str
) -> None:
    sessions = [session(brokers, 1, NEW) for _ in range(4)]
    for made in sessions:
        send(made, topic, 1)
    held = brokers.call(Held)
    with brokers.gate(1, WriteTxnMarkersRequest, held) as sent:
        assert sessions[0].end(committed=True) is E.NONE
        brokers.run(held.arrived.wait())
        for made in sessions[1:]:
            assert made.end(committed=True) is E.NONE
        held.may_pass.set()
        for made in sessions:
            until_complete(brokers, made)
    assert [len(it.markers) for it in sent if isinstance(it, WriteTxnMarkersRequest)] == [1, 3]
    assert values(brokers, topic, 1) == [b"x"] * 4


@both_versions
def test_markers_for_a_broker_that_cannot_be_reached_are_sent_until_it_can(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    send(made, topic, 0, 1, 2)
    with brokers.gate(1, WriteTxnMarkersRequest, lost) as sent:
        assert made.end(committed=True) is E.NONE
        brokers.until(lambda: len(sent) >= 6)
        assert state(brokers, made) == "PrepareCommit"
        assert values(brokers, topic, 0) == [b"x"], "its own part it has told"
    until_complete(brokers, made)
    assert [values(brokers, topic, index) for index in range(3)] == [[b"x"]] * 3


@both_versions
def test_a_marker_whose_answer_was_lost_is_sent_again_and_counts_once(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    send(made, topic, 1)
    losses = iter(range(2))

    async def unheard(_: int, __: Message, go: Pass) -> Any:
        answer = await go()
        if next(losses, None) is not None:
            raise ClientError("the answer was lost", E.NETWORK_EXCEPTION)
        return answer

    with brokers.gate(1, WriteTxnMarkersRequest, unheard) as sent:
        assert made.end(committed=True) is E.NONE
        until_complete(brokers, made)
    assert len(sent) == 3
    assert values(brokers, topic, 1) == [b"x"]


@both_versions
def test_a_marker_goes_to_the_new_leader_when_the_partition_moves(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    send(made, topic, 1)
    asked: list[int] = []

    async def gone_from_2(broker_id: int, message: Message, go: Pass) -> Any:
        asked.append(broker_id)
        return await (lost(broker_id, message, go) if broker_id == 2 else go())

    with brokers.gate(1, WriteTxnMarkersRequest, gone_from_2):
        assert made.end(committed=True) is E.NONE
        brokers.until(lambda: asked)
        brokers.move_leader(topic, 1, 3)
        until_complete(brokers, made)
    assert set(asked) == {2, 3}
    assert values(brokers, topic, 1) == [b"x"]


def test_a_leader_of_yesterday_refuses_markers_and_they_are_sent_again(
    brokers: Several, topic: str
) -> None:
    """The coordinator sends to whom it knows; by then another leads."""
    made = session(brokers, 1, OLD)
    send(made, topic, 1)
    held = brokers.call(Held)
    with brokers.gate(1, WriteTxnMarkersRequest, held):
        assert made.end(committed=False) is E.NONE
        brokers.run(held.arrived.wait())
        brokers.move_leader(topic, 1, 3)
        held.may_pass.set()
        until_complete(brokers, made)
    assert values(brokers, topic, 1) == []
    assert brokers.partition(topic, 1).log.first_unstable_offset is None


def test_a_topic_that_was_deleted_elsewhere_keeps_no_transaction_from_its_end(
    brokers: Several, topic: str
) -> None:
    other = f"{topic}-kept"
    brokers.create_topic(other, SPREAD)
    made = session(brokers, 1, NEW)
    send(made, topic, 1, 2)
    send(made, other, 1)
    with brokers.gate(1, WriteTxnMarkersRequest, lost) as sent:
        assert made.end(committed=True) is E.NONE
        brokers.until(lambda: sent)
        brokers.delete_topic(topic)
    until_complete(brokers, made)
    assert values(brokers, other, 1) == [b"x"]


def test_a_topic_that_the_coordinator_does_not_know_yet_is_not_taken_for_deleted(
    brokers: Several, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session(brokers, 1, NEW)
    send(made, topic, 1)
    cluster: Any = brokers.services(1).cluster
    catch_up, topics = cluster.catch_up, cluster.image.topics
    hidden = topics.pop(topic)

    async def learns() -> None:
        topics.setdefault(topic, hidden)
        await catch_up()

    monkeypatch.setattr(cluster, "catch_up", learns)
    try:
        assert made.end(committed=True) is E.NONE
        until_complete(brokers, made)
    finally:
        topics.setdefault(topic, hidden)
    assert values(brokers, topic, 1) == [b"x"]


def test_a_marker_that_is_overtaken_is_told_to_the_log_and_not_sent_again(
    brokers: Several, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = session(brokers, 1, OLD)
    send(made, topic, 1)
    ended = WritableTxnMarker(
        producer_id=made.producer.id,
        producer_epoch=made.producer.epoch,
        coordinator_epoch=1 << 20,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[1])],
    )
    brokers.ask(WriteTxnMarkersRequest(markers=[ended]), 1, of=2)
    with (
        caplog.at_level(logging.WARNING),
        brokers.gate(1, WriteTxnMarkersRequest, passing) as sent,
    ):
        assert made.end(committed=False) is E.NONE
        until_complete(brokers, made)
    assert len(sent) == 1
    assert "marker-overtaken" in caplog.text
    assert E.TRANSACTION_COORDINATOR_FENCED.name in caplog.text
    assert values(brokers, topic, 1) == [b"x"]


# Verification ----------------------------------------------------------------------------------


def produced(brokers: Several, made: Session, topic: str, index: int) -> asyncio.Task[ErrorCode]:
    """A produce on its way."""
    request = made.request(topic, index, b"x")
    version = 9 if made.version == OLD else 12

    async def ask() -> ErrorCode:
        answer = await brokers.asked(request, version)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    return brokers.begin(ask())


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
        return brokers.run(_result(task))


async def _result(task: asyncio.Task[ErrorCode]) -> ErrorCode:
    return await task


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
        assert brokers.run(_result(first)) is E.NONE
        assert brokers.run(_result(again)) is E.NONE, "a duplicate"
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
        assert {brokers.run(_result(it)) for it in (first, *others)} == {E.NONE}
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
    assert brokers.run(_result(task)) is E.NOT_ENOUGH_REPLICAS


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
    assert made.send(topic, 1, b"b", skip=1) is E.OUT_OF_ORDER_SEQUENCE_NUMBER
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
        assert brokers.run(_result(task)) is E.NOT_ENOUGH_REPLICAS, "it asked the old one"
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


# Offsets ---------------------------------------------------------------------------------------


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
    group = brokers.group_at(2, f"g{next(_numbers)}")
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
        code = brokers.run(_result(task))
    expected = {OLD: E.COORDINATOR_LOAD_IN_PROGRESS, NEW: E.CONCURRENT_TRANSACTIONS}
    assert code is expected[version], "which those clients try again"
    assert offset_of(brokers, group, topic) == (E.NONE, -1)


@both_versions
def test_a_broker_that_does_not_coordinate_the_group_says_so(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    task = offset_sent(brokers, made, brokers.group_at(2), topic, of=3)
    assert brokers.run(_result(task)) is E.NOT_COORDINATOR


@both_versions
def test_while_the_coordinator_of_the_transaction_is_away_offsets_are_sent_again_to_the_same_group(
    brokers: Several, topic: str, version: int
) -> None:
    made = session(brokers, 1, version)
    group = brokers.group_at(2, f"g{next(_numbers)}")
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
    group = brokers.group_at(2, f"g{next(_numbers)}")
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
