from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kafka import overtaken
from penstock.kafka.overtaken import Overtaken, Refusals
from penstock.model.errors import (
    BrokerError,
    ErrorCode,
    InvalidRecord,
    NotLeader,
    UnknownTopicOrPartition,
)
from penstock.records.builder import build_batch
from penstock.records.record import Record
from penstock.storage.producers import SEQUENCE_COUNT

TOPIC = "orders"
NOT_LEADER = NotLeader("orders-0 is led by broker 2")


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    record = Record(0, 1_700_000_000_000, None, b"v", ())
    return bytes(
        build_batch([record], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    )


def code_for(refusals: Refusals, records: bytes | None, now_ms: int = 0) -> ErrorCode | None:
    found = refusals.overtaken_by(TOPIC, 0, records, now_ms)
    return None if found is None else found.code


def test_what_comes_after_a_refused_batch_is_refused_as_it_was() -> None:
    refusals = Refusals()
    refusals.note(TOPIC, 0, batch(5), NOT_LEADER, 0)
    assert code_for(refusals, batch(6)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_for(refusals, batch(5)) is None, "it is sent again"
    assert code_for(refusals, batch(4)) is None
    refusals.note(TOPIC, 0, batch(5), BrokerError("one", ErrorCode.NOT_ENOUGH_REPLICAS), 0)
    found = refusals.overtaken_by(TOPIC, 0, batch(6), 0)
    assert str(found) == "sequence 6 of producer 7 comes after 5, which was refused: one"


def test_others_are_not_concerned() -> None:
    refusals = Refusals()
    refusals.note(TOPIC, 0, batch(0), NOT_LEADER, 0)
    assert code_for(refusals, batch(1, producer_id=8)) is None
    assert code_for(refusals, batch(1, epoch=1)) is None
    assert code_for(refusals, batch(-1, producer_id=-1, epoch=-1)) is None
    assert refusals.overtaken_by(TOPIC, 1, batch(1), 0) is None
    assert refusals.overtaken_by("other", 0, batch(1), 0) is None
    assert refusals.overtaken_by(b"i" * 16, 0, batch(1), 0) is None


@pytest.mark.parametrize("records", [None, b"", b"short", batch(-1, -1, -1)])
def test_what_has_no_sequence_is_not_noted(records: bytes | None) -> None:
    refusals = Refusals()
    refusals.note(TOPIC, 0, records, NOT_LEADER, 0)
    assert len(refusals) == 0


def test_neither_is_what_will_not_be_sent_again_nor_what_overtook() -> None:
    refusals = Refusals()
    refusals.note(TOPIC, 0, batch(0), InvalidRecord("no"), 0)
    refusals.note(TOPIC, 0, batch(1), Overtaken("after 0", ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    assert len(refusals) == 0


def test_sequences_begin_again_after_the_last() -> None:
    refusals = Refusals()
    refusals.note(TOPIC, 0, batch(SEQUENCE_COUNT - 1), NOT_LEADER, 0)
    assert code_for(refusals, batch(0)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert code_for(refusals, batch(SEQUENCE_COUNT - 2)) is None


def test_it_is_forgotten_after_a_while_and_so_are_the_oldest_of_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overtaken, "_LIMIT", 2)
    refusals = Refusals()
    for producer_id in range(3):
        refusals.note(TOPIC, 0, batch(0, producer_id), NOT_LEADER, producer_id)
    assert [code_for(refusals, batch(1, it), 3) is None for it in range(3)] == [True, False, False]
    late_ms = overtaken._UNDER_WAY_MS + 1
    assert [code_for(refusals, batch(1, it), late_ms) is None for it in (1, 2)] == [True, False]
    assert len(refusals) == 1


# Whatever happens ------------------------------------------------------------------------------


@dataclass
class Log:
    """A partition that takes batches of one producer as logs do, or refuses them for a while."""

    refusals: Refusals = field(default_factory=Refusals)
    taken: list[int] = field(default_factory=list)
    able: bool = True

    def send(self, sequence: int) -> bool:
        records = batch(sequence)
        if not self.able:
            self.refusals.note(TOPIC, 0, records, UnknownTopicOrPartition("not yet"), 0)
            return False
        if not self.taken and code_for(self.refusals, records) is not None:
            return False
        if self.taken and sequence != self.taken[-1] + 1:
            return sequence in self.taken  # a duplicate
        self.taken.append(sequence)
        self.refusals.settle(TOPIC, 0, records)
        return True


@given(st.lists(st.booleans(), max_size=30), st.integers(1, 5))
def test_whenever_it_is_able_all_are_taken_once_and_in_order(able: list[bool], window: int) -> None:
    """A producer with a window of requests sends again, in order, from the first that was refused on."""
    log, sent, moments = Log(), 0, iter(able)
    while sent < 8:
        outcomes = []
        for sequence in range(sent, min(8, sent + window)):
            log.able = next(moments, True)
            outcomes.append(log.send(sequence))
        # librdkafka takes whatever is before an acknowledged batch for acknowledged
        acknowledged = max((number for number, done in enumerate(outcomes) if done), default=-1)
        sent += acknowledged + 1
        assert log.taken == list(range(sent))
    assert len(log.refusals) == 0
