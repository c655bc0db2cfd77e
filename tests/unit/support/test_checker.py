"""Each detector of the history checker finds the fault that was planted for it, and a sound history has none."""

from collections.abc import Callable
from random import Random

import pytest

from tests.support.checker import (
    History,
    Kind,
    Outcome,
    Partition,
    Seen,
    Send,
    assert_sound,
    check,
)

FIRST: Partition = ("t", 0)
SECOND: Partition = ("t", 1)


class Scene:
    """A cluster that keeps its promises, until somebody breaks one by hand."""

    def __init__(self) -> None:
        self.history = History(logs={FIRST: [], SECOND: []})
        self.now_ns = 0

    def send(
        self,
        value: bytes,
        partition: Partition = FIRST,
        *,
        producer: str = "p",
        transaction: str | None = None,
        outcome: Outcome = Outcome.DONE,
        lands: bool = True,
    ) -> Send:
        self.now_ns += 2
        send = Send(producer, partition, value, self.now_ns, transaction, outcome)
        log = self.log(partition)
        if outcome is Outcome.DONE:
            send.offset = len(log)
            send.acked_ns = self.now_ns + 1
        if lands:
            log.append((len(log), value))
        self.history.sends.append(send)
        return send

    def log(self, partition: Partition = FIRST) -> list[tuple[int, bytes]]:
        log = self.history.logs[partition]
        assert isinstance(log, list)
        return log

    def read(self, reader: str = "r", partition: Partition = FIRST, session: int = 0) -> None:
        for offset, value in self.log(partition):
            self.history.seen.append(Seen(reader, session, partition, offset, value))

    def kinds(self) -> set[Kind]:
        return {anomaly.kind for anomaly in check(self.history)}


@pytest.fixture
def scene() -> Scene:
    """Two producers, three messages each in each partition, and a reader that saw them all."""
    made = Scene()
    for number in range(3):
        for producer in ("p", "q"):
            for partition in (FIRST, SECOND):
                value = f"{producer}{number}-{partition[1]}".encode()
                made.send(value, partition, producer=producer)
    made.read(partition=FIRST)
    made.read(partition=SECOND)
    return made


def test_a_sound_history_has_nothing_wrong(scene: Scene) -> None:
    assert scene.kinds() == set()
    assert_sound(scene.history)


def test_what_nobody_was_told_of_may_be_there_or_not(scene: Scene) -> None:
    scene.send(b"there", outcome=Outcome.UNKNOWN)
    scene.send(b"not there", outcome=Outcome.UNKNOWN, lands=False)
    scene.send(b"refused", outcome=Outcome.FAILED, lands=False)
    assert scene.kinds() == set()


def test_transactions_that_ended_as_told_or_without_a_word_are_sound(scene: Scene) -> None:
    scene.history.transactions |= {"c": Outcome.DONE, "a": Outcome.FAILED, "u": Outcome.UNKNOWN}
    scene.send(b"c0", transaction="c")
    scene.send(b"c1", SECOND, transaction="c")
    for name in ("a", "u", "v"):  # v: nobody even noted that it began
        scene.send(f"{name}0".encode(), transaction=name, lands=False).offset = None
        scene.send(f"{name}1".encode(), SECOND, transaction=name, lands=False).offset = None
    assert scene.kinds() == set()


def test_a_lost_message_is_found(scene: Scene) -> None:
    scene.history.seen.clear()
    scene.log().pop(2)
    assert scene.kinds() == {Kind.LOST}


def test_a_lost_message_of_a_committed_transaction_is_found(scene: Scene) -> None:
    scene.history.transactions["c"] = Outcome.DONE
    scene.send(b"c0", transaction="c", lands=False)
    assert scene.kinds() == {Kind.LOST}


def test_a_message_that_was_read_and_is_gone_is_found(scene: Scene) -> None:
    scene.history.sends[-1].outcome = Outcome.UNKNOWN
    scene.log(SECOND).pop()
    assert scene.kinds() == {Kind.VANISHED}


def test_a_doubled_message_is_found(scene: Scene) -> None:
    offset, value = scene.log()[-1]
    scene.log().append((offset + 1, value))
    assert scene.kinds() == {Kind.DUPLICATE}
    assert not list(check(scene.history, idempotent=False)), "such producers may"


def test_a_producers_messages_in_another_order_are_found() -> None:
    scene = Scene()
    for value in (b"0", b"1"):
        scene.send(value, outcome=Outcome.UNKNOWN)
    (_, zero), (_, one) = scene.log()
    scene.log()[:] = [(0, one), (1, zero)]
    assert scene.kinds() == {Kind.REORDERED}


def test_a_message_before_one_that_was_sent_after_its_acknowledgement_is_found() -> None:
    scene = Scene()
    scene.send(b"early", producer="p").offset = None  # at which offset, the producer was not told
    scene.send(b"late", producer="q").offset = None
    scene.log()[:] = [(0, b"late"), (1, b"early")]
    assert scene.kinds() == {Kind.BACKDATED}


def test_concurrent_messages_may_stand_in_any_order() -> None:
    scene = Scene()
    early = scene.send(b"early", producer="p")
    late = scene.send(b"late", producer="q")
    early.acked_ns = late.acked_ns
    early.offset, late.offset = 1, 0
    scene.log()[:] = [(0, b"late"), (1, b"early")]
    assert scene.kinds() == set()


def other_reader(scene: Scene) -> None:
    scene.history.sends[0].outcome = Outcome.UNKNOWN
    scene.history.sends[0].offset = None
    scene.history.seen.append(Seen("s", 0, FIRST, 5, scene.log()[0][1]))


def replica(scene: Scene) -> None:
    copy = list(scene.log())
    copy[1] = (1, b"other")
    scene.history.replicas["broker 2", FIRST] = copy


def acknowledgement(scene: Scene) -> None:
    scene.history.sends[0].offset = 1


@pytest.mark.parametrize("plant", [other_reader, replica, acknowledgement])
def test_two_messages_at_one_offset_are_found(scene: Scene, plant: Callable[[Scene], None]) -> None:
    scene.history.replicas["broker 1", FIRST] = list(scene.log())
    assert scene.kinds() == set()
    plant(scene)
    assert scene.kinds() == {Kind.INCONSISTENT}


def test_a_reader_that_goes_back_is_found(scene: Scene) -> None:
    scene.read("r", FIRST)
    assert scene.kinds() == {Kind.NOT_MONOTONIC}


def test_a_reader_may_go_back_in_a_new_session_and_over_gaps_of_the_log(scene: Scene) -> None:
    scene.read("r", FIRST, session=1)
    scene.log().append((100, b"after markers"))
    scene.history.sends.append(Send("p", FIRST, b"after markers"))
    scene.history.seen.append(Seen("r", 1, FIRST, 100, b"after markers"))
    assert scene.kinds() == set()


def test_a_reader_that_passes_over_a_message_is_found(scene: Scene) -> None:
    scene.history.seen.pop(2)
    assert scene.kinds() == {Kind.SKIPPED}


def test_a_message_that_no_member_of_a_group_got_is_found(scene: Scene) -> None:
    scene.history.groups["g"] = {"m", "n"}
    scene.read("m", FIRST)
    scene.read("n", SECOND)
    assert scene.kinds() == set()
    scene.history.seen.pop()
    assert scene.kinds() == {Kind.UNREAD}


def test_a_message_that_nobody_sent_is_found(scene: Scene) -> None:
    scene.log().append((len(scene.log()), b"who?"))
    assert scene.kinds() == {Kind.PHANTOM}


def test_a_message_in_another_partition_is_found(scene: Scene) -> None:
    scene.send(b"astray", FIRST, outcome=Outcome.UNKNOWN, lands=False)
    scene.log(SECOND).append((len(scene.log(SECOND)), b"astray"))
    assert scene.kinds() == {Kind.PHANTOM}


def test_a_failed_message_that_can_be_read_is_found(scene: Scene) -> None:
    scene.send(b"failed", outcome=Outcome.FAILED)
    assert scene.kinds() == {Kind.ABORTED}


def test_an_aborted_message_that_can_be_read_is_found(scene: Scene) -> None:
    scene.history.transactions["a"] = Outcome.FAILED
    scene.send(b"a0", transaction="a")
    assert scene.kinds() == {Kind.ABORTED}


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.UNKNOWN])
def test_half_a_transaction_is_found(scene: Scene, outcome: Outcome) -> None:
    scene.history.transactions["x"] = outcome
    scene.send(b"x0", FIRST, transaction="x")
    scene.send(b"x1", SECOND, transaction="x", lands=False)
    assert Kind.TORN in scene.kinds()
    assert scene.kinds() <= {Kind.TORN, Kind.LOST}


def test_the_failure_tells_how_many_of_each_kind_and_the_first_few(scene: Scene) -> None:
    scene.history.seen.clear()
    scene.log().clear()
    with pytest.raises(AssertionError) as failure:
        assert_sound(scene.history)
    text = str(failure.value)
    assert "12 sends (12 done), 0 reads, 6 in the end" in text
    assert "6 x lost: acknowledged and not there" in text
    assert text.count("t-0: b'") == 3


def test_a_value_that_is_sent_twice_is_the_testers_mistake(scene: Scene) -> None:
    scene.send(b"p0-0")
    with pytest.raises(ValueError, match="was sent twice"):
        assert_sound(scene.history)


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lambda log, at: log.pop(at), Kind.LOST),
        (lambda log, at: log.append((len(log), log[at][1])), Kind.DUPLICATE),
        (lambda log, _: log.append((len(log), b"?")), Kind.PHANTOM),
    ],
    ids=["lost", "duplicate", "phantom"],
)
def test_one_fault_among_many_messages_is_found(
    plant: Callable[[list[tuple[int, bytes]], int], None], kind: Kind, rng: Random
) -> None:
    scene = Scene()
    for number in range(5000):
        scene.send(b"%d" % number, producer=f"p{number % 7}")
    scene.read()
    assert scene.kinds() == set()
    plant(scene.log(), rng.randrange(4000))
    assert kind in scene.kinds()
