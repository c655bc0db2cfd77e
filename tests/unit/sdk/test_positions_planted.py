"""The machines of test_positions find each of these bugs: those that the client had, and some that it might get."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from penstock import AsyncConsumer, Consumer
from penstock.sdk.exactly_once import Transaction
from penstock.sdk.message import Message, Place
from penstock.sdk.processing import Engine
from penstock.sdk.reading import Reading
from penstock.sdk.seeking import Seeks
from penstock.sdk.shelf import Shelf
from tests.unit.sdk.test_positions import AsyncMachine, SyncMachine, TransactionMachine, World

SEARCH = settings(
    max_examples=5000,  # the first that breaks a rule ends the search
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


async def take_on_the_thread(
    self: AsyncConsumer,
    limit: int,
    timeout: float | None,  # noqa: ASYNC109 - as in aio.py
) -> list[Message]:
    while not self.is_stopped:
        found = await self._on_thread(self.consumer.poll_many, limit, 0.2)
        if found or timeout == 0:
            return found
    return []


def forget_what_ran(self: Engine) -> None:
    self._consumer._shelf.finish()
    self._consumer._shelf.finished.clear()
    self._books.clear()
    self._resume_places(list(self._paused))


def consume_before_put(self: Reading, timeout_s: float) -> None:
    first = self._client.poll(timeout_s)
    if first is not None:
        more = self._client.consume(self._batch_size - 1, 0)
        self._shelf.put([first, *more], note_origins=not self.auto_commits)


def take_until_it_raises(self: Shelf) -> Message | None:
    while not self.is_empty:
        message = self.take()
        if message is not None:
            return message
    return None


def finish_then_commit(self: Reading, *, asynchronous: bool = False) -> None:
    self._shelf.finish()
    self._commits.commit(self._shelf.finished, asynchronous=asynchronous)


def forget_then_seek(self: Seeks, offsets: dict[Place, int]) -> None:
    for place, offset in offsets.items():
        self._move(place, offset)
        self._seek(place, offset)


def keep_in_hand(self: Shelf, places: Any) -> None:
    self._set_aside(places)
    for place in places:
        for known in (self.finished, self.origins, self._held):
            known.pop(place, None)


def only_the_last_is_in_hand(self: Shelf) -> Message | None:
    message = take_more(self)
    if message is not None:
        self.done = self.index - 1
    return message


def abort_then_rewind(self: Transaction, error: BaseException, *, is_in_doubt: bool) -> None:  # noqa: ARG001
    self._producer.exclusively(lambda: self._producer.client.abort_transaction(60.0), "abort")
    if self._consumer is not None:
        self._consumer.rewind()


def do_nothing(*_: Any, **__: Any) -> None:
    """What is left out."""


take_more = Shelf.take_more
PLANTED: dict[str, tuple[type[World], type, str, Callable[..., Any]]] = {
    "a cancelled poll loses its message": (AsyncMachine, AsyncConsumer, "_take", take_on_the_thread),
    "run forgets what it did not finish": (SyncMachine, Engine, "_hand_back", forget_what_ran),
    "consume revokes the partition of a message": (SyncMachine, Reading, "_fetch", consume_before_put),
    "the same in a transaction": (TransactionMachine, Reading, "_fetch", consume_before_put),
    "an error behind messages loses them": (SyncMachine, Shelf, "take_more", take_until_it_raises),
    "a failed commit finishes": (SyncMachine, Consumer, "commit", finish_then_commit),
    "a failed seek forgets": (SyncMachine, Seeks, "seek", forget_then_seek),
    "a revoked message stays in hand": (SyncMachine, Shelf, "forget", keep_in_hand),
    "a batch is finished but for its last": (SyncMachine, Shelf, "take_more", only_the_last_is_in_hand),
    "a failed abort does not rewind": (TransactionMachine, Transaction, "_abort_after", abort_then_rewind),
    "a rewind does not ask whether it was committed": (
        TransactionMachine, Seeks, "rewind_in_doubt", Seeks.rewind),
    "a fetch that fails loses what it took": (SyncMachine, Seeks, "_find_lost", do_nothing),
    "a transaction keeps what was revoked": (TransactionMachine, Reading, "_note_lost", do_nothing),
    "what is fetched is not noted as its begin": (TransactionMachine, Seeks, "_move", do_nothing),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    machine, owner, attribute, bug = PLANTED[name]
    with (
        mock.patch.object(owner, attribute, bug),
        pytest.raises((AssertionError, BaseExceptionGroup)),
    ):
        run_state_machine_as_test(machine, settings=SEARCH)
