"""The tester is tested: each of these bugs, put into the machine, is found by the histories."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.model.errors import ErrorCode
from penstock.transactions import machine, state
from penstock.transactions.events import (
    Add,
    Effect,
    End,
    Initialize,
    Outcome,
    Reply,
    SendMarkers,
)
from penstock.transactions.state import LAST_EPOCH, NO_EPOCH, NO_ID, Now, Status, Transaction
from tests.unit.transactions.test_histories import FEW_EPOCHS, History, OldHistory
from tests.unit.transactions.world import PARTITIONS, TIMEOUT_MS, World

pytestmark = pytest.mark.slow

_original = {name: getattr(machine, name) for name in dir(machine) if name.startswith("_")}


def no_epoch_at_the_end(txn: Transaction, event: End, now: Now) -> list[Effect]:
    """KIP-890's point: without it, what is late enters the next transaction."""
    epoch = txn.epoch
    effects: list[Effect] = _original["_prepare"](txn, event, now)
    if any(isinstance(effect, SendMarkers) for effect in effects):
        txn.epoch, txn.next_producer_id = epoch, NO_ID
    return [_with_producer(effect, txn) for effect in effects]


def _with_producer(effect: Effect, txn: Transaction) -> Effect:
    if isinstance(effect, SendMarkers):
        return SendMarkers(effect.markers._replace(producer=txn.producer, ends_epoch=False))
    if isinstance(effect, Reply) and not effect.outcome.code:
        return Reply(effect.to, effect.outcome._replace(producer=txn.producer))
    return effect


def no_epoch_for_a_newcomer(txn: Transaction, event: Initialize) -> None:
    if txn.epoch == NO_EPOCH:
        _original["_take_epoch"](txn, event)


def no_epoch_by_a_fence(txn: Transaction, last_epoch: int, now: Now) -> list[Effect]:
    txn.epoch -= 1
    effects: list[Effect] = _original["_abort_with_new_epoch"](txn, last_epoch, now)
    return effects


def partitions_are_told_too_early(txn: Transaction, event: End, now: Now) -> list[Effect]:
    effects: list[Effect] = _original["_prepare"](txn, event, now)
    return sorted(effects, key=lambda effect: not isinstance(effect, SendMarkers))


def the_client_is_told_too_early(txn: Transaction, event: End, now: Now) -> list[Effect]:
    effects: list[Effect] = _original["_prepare"](txn, event, now)
    return sorted(effects, key=lambda effect: not isinstance(effect, Reply))


def nothing_is_finished_after_a_crash(_: Transaction) -> list[Effect]:
    return []


def a_partition_is_forgotten(txn: Transaction, event: Add, now: Now) -> list[Effect]:
    effects: list[Effect] = _original["_add"](txn, event, now)
    if len(txn.partitions) == len(event.partitions) + 1:
        txn.partitions = set(event.partitions)
    return effects


def adds_while_it_ends(txn: Transaction, event: Add, now: Now) -> list[Effect]:
    if txn.status is Status.PREPARE_COMMIT and event.producer == txn.producer:
        txn.status = Status.ONGOING
    effects: list[Effect] = _original["_add"](txn, event, now)
    return effects


def every_end_is_a_success(txn: Transaction, event: End) -> list[Effect]:
    return [Reply(event.reply_to, Outcome(ErrorCode.NONE, txn.producer))]


def anyone_may_write(*_: object) -> ErrorCode:
    return ErrorCode.NONE


def time_commits(txn: Transaction, now: Now) -> list[Effect]:
    effects: list[Effect] = _original["_overdue"](txn, now)
    if effects:
        txn.status = Status.PREPARE_COMMIT
        effects[0] = machine._write(txn, now)
        sent = effects[1]
        assert isinstance(sent, SendMarkers)
        effects[1] = SendMarkers(sent.markers._replace(committed=True))
    return effects


def time_stands_still(_: Transaction, __: Now) -> list[Effect]:
    return []


def the_new_id_is_forgotten(txn: Transaction, event: Any, now: Now) -> list[Effect]:
    txn.next_producer_id = NO_ID
    effects: list[Effect] = _original["_markers_written"](txn, event, now)
    return effects


def anyone_may_ask_again(txn: Transaction, producer: state.Producer) -> bool:
    return txn.status not in (Status.EMPTY, Status.ONGOING) and producer.id == txn.producer_id


def epochs_are_used_to_the_last(txn: Transaction, event: Initialize) -> None:
    txn.last_epoch = NO_EPOCH if event.expected is None else txn.epoch
    if txn.epoch < LAST_EPOCH:
        txn.epoch += 1


BUGS: dict[str, tuple[str, Callable[..., Any], type[History]]] = {
    "no epoch at the end": ("_prepare", no_epoch_at_the_end, History),
    "no epoch for a newcomer": ("_take_epoch", no_epoch_for_a_newcomer, History),
    "no epoch for a newcomer, old clients": ("_take_epoch", no_epoch_for_a_newcomer, OldHistory),
    "no epoch by a fence": ("_abort_with_new_epoch", no_epoch_by_a_fence, History),
    "partitions are told too early": ("_prepare", partitions_are_told_too_early, History),
    "partitions are told too early, old": ("_prepare", partitions_are_told_too_early, OldHistory),
    "the client is told too early": ("_prepare", the_client_is_told_too_early, History),
    "nothing is finished": ("_loaded", nothing_is_finished_after_a_crash, History),
    "nothing is finished, old clients": ("_loaded", nothing_is_finished_after_a_crash, OldHistory),
    "a partition is forgotten": ("_add", a_partition_is_forgotten, History),
    "adds while it ends": ("_add", adds_while_it_ends, OldHistory),
    "every end is a success": ("_end_again", every_end_is_a_success, History),
    "anyone may write": ("verify", anyone_may_write, OldHistory),
    "time commits": ("_overdue", time_commits, History),
    "time stands still": ("_overdue", time_stands_still, History),
    "the new id is forgotten": ("_markers_written", the_new_id_is_forgotten, History),
    "anyone may ask again": ("_asks_again", anyone_may_ask_again, History),
    "epochs are used to the last": ("_take_epoch", epochs_are_used_to_the_last, History),
}
_HUNT = settings(
    max_examples=2000,
    stateful_step_count=50,
    deadline=None,
    phases=[Phase.generate],
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state, machine):
        monkeypatch.setattr(module, "LAST_EPOCH", FEW_EPOCHS)
    name, planted, history = BUGS[bug]
    monkeypatch.setattr(machine, name, planted)
    with pytest.raises(Exception):  # noqa: B017, PT011 - an assertion of the histories, or of the machine
        run_state_machine_as_test(history, settings=_HUNT)


@pytest.mark.parametrize("history", [History, OldHistory])
def test_partitions_that_are_told_too_early_tear_a_transaction(
    history: type[History], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition hears of a commit that is lost with the coordinator; then the time is up."""
    monkeypatch.setattr(World, "check_is_decided", lambda *_: None)  # what comes of it counts here

    def play() -> None:
        found = history()
        found.newcomer(lost=False)
        for name in PARTITIONS[:2]:
            found.produce(choice=0, name=name, lost=False, late=False)
        found.end(choice=0, committed=True, lost=True, unheard=False, late=False)
        found.time_passes(TIMEOUT_MS)
        found.teardown()

    play()
    monkeypatch.setattr(machine, "_prepare", partitions_are_told_too_early)
    with pytest.raises(AssertionError, match="is torn"):
        play()


def test_without_a_bug_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state, machine):
        monkeypatch.setattr(module, "LAST_EPOCH", FEW_EPOCHS)
    for history in (History, OldHistory):
        run_state_machine_as_test(history, settings=settings(_HUNT, max_examples=50))
