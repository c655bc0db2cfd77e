"""Transactions are all or nothing, once and fenced, whatever goes wrong. More: AREA=transactions python -m tests.simulation.campaign."""

import pytest

from tests.simulation.histories import TRANSACTIONS, run_history
from tests.support.seed import chosen_seed

_HISTORIES = 10


def test_the_same_seed_gives_the_same_transactions() -> None:
    seed = chosen_seed()
    first, again = (run_history(seed, shape=TRANSACTIONS[0], faulty_s=5) for _ in range(2))
    assert first == again
    assert first.acked


@pytest.mark.slow
@pytest.mark.parametrize("number", range(_HISTORIES))
def test_a_transaction_is_all_or_nothing_and_a_zombie_is_fenced(number: int) -> None:
    shape = TRANSACTIONS[number % len(TRANSACTIONS)]
    assert run_history(chosen_seed() + number, shape=shape).acked
