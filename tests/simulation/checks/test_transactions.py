"""Each check of transactions finds its anomaly, and nothing in a sound history."""

from collections.abc import Callable

import pytest

from tests.simulation.checks.transactions import (
    NO_OFFSET,
    Accepted,
    Ended,
    Granted,
    Kind,
    Ledger,
    OffsetSeen,
    Producer,
    check,
    check_transform,
    hanging,
)
from tests.support.checker import Log, Outcome, Partition

INPUT: Partition = ("in", 0)
OUTPUT: Partition = ("out", 0)
OLD, NEW = Producer(7, 0), Producer(7, 1)


def granted(incarnation: str, producer: Producer, acked_ns: int) -> Granted:
    return Granted("t", incarnation, producer, acked_ns)


def accepted(incarnation: str, producer: Producer, sent_ns: int) -> Accepted:
    return Accepted("t", incarnation, producer, "EndTxn", sent_ns)


def seen(
    offset: int, transaction: str, sent_ns: int, *, is_stable: bool = True, took_ns: int = 5
) -> OffsetSeen:
    return OffsetSeen("g", INPUT, offset, transaction, sent_ns, sent_ns + took_ns, is_stable)


def sound() -> Ledger:
    """`t.0` commits offset 1 and is replaced by `t.1`, which commits offset 2."""
    return Ledger(
        granted=[granted("t.0", OLD, 10), granted("t.1", NEW, 100)],
        accepted=[accepted("t.0", OLD, 20), accepted("t.1", NEW, 110)],
        ended={"first": Ended(20, 30), "second": Ended(110, 120), "aborted": Ended()},
        offsets={("g", INPUT, "first"): 1, ("g", INPUT, "second"): 2, ("g", INPUT, "aborted"): 3},
        seen=[seen(NO_OFFSET, "", 1), seen(1, "first", 40), seen(2, "second", 130)],
        outputs={b"a": (INPUT, 0), b"b": (INPUT, 1), b"x": (INPUT, 1)},
    )


OUTCOMES = {"first": Outcome.DONE, "second": Outcome.DONE, "aborted": Outcome.FAILED}


def kinds(ledger: Ledger) -> set[Kind]:
    return {anomaly.kind for anomaly in check(ledger, OUTCOMES)}


def test_a_sound_history_has_no_anomaly() -> None:
    assert kinds(sound()) == set()


def test_a_request_that_was_sent_before_the_new_epoch_was_known_may_succeed() -> None:
    ledger = sound()
    ledger.accepted.append(accepted("t.0", OLD, 99))
    assert kinds(ledger) == set()


def _zombie_goes_on(ledger: Ledger) -> None:
    ledger.accepted.append(accepted("t.0", OLD, 101))


def _epoch_is_given_twice(ledger: Ledger) -> None:
    ledger.granted.append(granted("t.2", NEW, 200))


def _aborted_offset_is_seen(ledger: Ledger) -> None:
    ledger.seen.append(seen(3, "aborted", 140))


def _offset_is_seen_before_its_commit(ledger: Ledger) -> None:
    ledger.seen.insert(2, seen(2, "second", 100))


def _offset_is_of_no_transaction(ledger: Ledger) -> None:
    ledger.seen.append(seen(9, "second", 140))


def _committed_offset_is_lost(ledger: Ledger) -> None:
    ledger.seen[2:] = [seen(1, "first", 130)]


def _offset_goes_back(ledger: Ledger) -> None:
    ledger.seen.append(seen(1, "first", 140, is_stable=False))


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (_zombie_goes_on, Kind.UNFENCED),
        (_epoch_is_given_twice, Kind.SAME_EPOCH),
        (_aborted_offset_is_seen, Kind.ABORTED),
        (_offset_is_seen_before_its_commit, Kind.EARLY),
        (_offset_is_of_no_transaction, Kind.WRONG_OFFSET),
        (_committed_offset_is_lost, Kind.LOST_OFFSET),
        (_offset_goes_back, Kind.WENT_BACK),
    ],
)
def test_each_anomaly_is_found(plant: Callable[[Ledger], None], kind: Kind) -> None:
    ledger = sound()
    plant(ledger)
    assert kind in kinds(ledger)


def test_an_offset_that_waits_for_its_marker_may_be_hidden_from_reads_that_are_not_stable() -> None:
    ledger = sound()
    ledger.seen[2:] = [seen(1, "first", 130, is_stable=False)]
    assert kinds(ledger) == set()


@pytest.mark.parametrize(
    ("output", "position", "expected"),
    [
        ([b"a", b"b"], 2, None),
        ([b"a"], 1, None),
        ([b"a"], 2, Kind.SKIPPED),
        ([b"a", b"b", b"x"], 2, Kind.REPEATED),
        ([b"a", b"b"], 1, Kind.AHEAD),
    ],
)
def test_each_input_has_one_output(
    output: list[bytes], position: int, expected: Kind | None
) -> None:
    logs: dict[Partition, Log] = {
        INPUT: [(0, b"0"), (1, b"1")],
        OUTPUT: list(enumerate(output)),
    }
    found = [anomaly.kind for anomaly in check_transform(sound(), logs, INPUT, position)]
    assert found == ([] if expected is None else [expected])


def test_an_output_of_an_aborted_record_is_found() -> None:
    logs: dict[Partition, Log] = {INPUT: [(0, b"0")], OUTPUT: [(0, b"a"), (1, b"b")]}
    (anomaly,) = check_transform(sound(), logs, INPUT, 1)
    assert anomaly.kind is Kind.INVENTED


def test_a_reader_that_does_not_reach_the_end_tells_of_a_hanging_transaction() -> None:
    assert [it.kind for it in hanging({INPUT: 3}, {INPUT: 4})] == [Kind.HANGING]
    assert not list(hanging({INPUT: 4}, {INPUT: 4}))
