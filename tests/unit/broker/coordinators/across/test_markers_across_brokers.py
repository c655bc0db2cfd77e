"""Markers for partitions of other brokers: every message can fail, and each transaction ends everywhere, once."""

import logging
from typing import Any

import pytest

from penstock.client.errors import ClientError
from penstock.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from penstock.wire.schema import Message
from tests.support.several import Held, Pass, Several, passing
from tests.support.txn_session import NEW, OLD
from tests.unit.broker.coordinators.across.sessions import (
    SPREAD,
    E,
    both_versions,
    either_end,
    lost,
    offset_of,
    send,
    session,
    state,
    until_complete,
    values,
)


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
