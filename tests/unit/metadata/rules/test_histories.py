"""Random histories: whatever happens, in whatever order, the controller's decisions keep the laws."""

from collections.abc import Callable
from random import Random

import pytest

from penstock.metadata.rules.elections import ElectionKind
from tests.unit.metadata.rules.histories import BROKERS, History

PARTITIONS = range(3)
ENDINGS = ("clean", "process-crash", "process-crash", "power-loss", "empty-disk")
Act = Callable[[History, Random], object]

# Weights: data flows and ISRs change more often than brokers come and go.
ACTS: dict[str, tuple[int, Act]] = {
    "produce": (10, lambda h, r: h.produce(r.choice(PARTITIONS))),
    "fetch": (25, lambda h, r: h.fetch(r.choice(PARTITIONS), r.choice(BROKERS), r.randint(1, 9))),
    "isr": (10, lambda h, r: h.alter_isr(r.choice(PARTITIONS), some(r))),
    "catch up": (5, lambda h, r: h.catch_up(r.choice(PARTITIONS))),
    "stop": (4, lambda h, r: h.stop(r.choice(BROKERS))),
    "start": (6, lambda h, r: h.start(r.choice(BROKERS), r.choice(ENDINGS))),
    "attend": (8, lambda h, r: h.attend(r.choice([1, 100, 100]))),
    "unfence": (10, lambda h, r: h.unfence(r.choice(BROKERS))),
    "shut down": (1, lambda h, r: h.shut_down(r.choice(BROKERS))),
    "recover": (3, lambda h, r: h.recover(r.choice(PARTITIONS))),
    "move": (3, lambda h, r: h.move(r.choice(PARTITIONS), some(r) or None)),
    "prefer": (1, lambda h, _: h.elect(ElectionKind.PREFERRED)),
    "balance": (1, lambda h, _: h.balance()),
    "configure": (1, lambda h, r: h.configure(r.randint(1, 3))),
}
RARE: dict[str, tuple[int, Act]] = {
    "unclean": (1, lambda h, _: h.elect(ElectionKind.UNCLEAN)),
    "strike off": (2, lambda h, r: h.strike_off(r.choice(BROKERS))),
}


def some(rng: Random) -> list[int]:
    return rng.sample(BROKERS, rng.randint(0, len(BROKERS)))


def new_history(rng: Random) -> History:
    factor = rng.choice([1, 2, 3, 3, 3, 4])
    assignments = [tuple(rng.sample(BROKERS, factor)) for _ in PARTITIONS]
    config: dict[str, str | None] = {}
    if rng.random() < 0.7:
        config["min.insync.replicas"] = rng.choice("1223")
    if rng.random() < 0.2:
        config["flush.messages"] = "1"
    if rng.random() < 0.1:
        config["unclean.leader.election.enable"] = "true"
    return History(assignments, config)


def live_through(rng: Random, steps: int, acts: dict[str, tuple[int, Act]]) -> History:
    history = new_history(rng)
    names = list(acts)
    weights = [weight for weight, _ in acts.values()]
    for name in rng.choices(names, weights, k=steps):
        acts[name][1](history, rng)
        history.check()
    history.check_image()
    return history


@pytest.mark.parametrize("steps", [20, 200])
def test_no_history_breaks_a_law(rng: Random, steps: int) -> None:
    committed = 0
    for number in range(5000 // steps):
        acts = {**ACTS, **RARE} if number % 3 == 0 else ACTS
        history = live_through(rng, steps, acts)
        committed += sum(len(data.committed) for data in history.data)
    assert committed > 0


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "histories",
    [pytest.param(10, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.long)],
)
def test_no_long_history_breaks_a_law(rng: Random, histories: int) -> None:
    for _ in range(histories):
        live_through(rng, 1000, {**ACTS, **RARE})
