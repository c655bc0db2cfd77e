"""`make sim`: run histories with new seeds on all cores, or repeat one. Exit with 1 if any failed."""

import os
import random
import sys
from itertools import count, islice
from typing import Final

from tests.simulation.runs import Outcome, Totals, run, run_on_all_cores

_SEEDS: Final = 20  # if neither HOURS nor SEEDS says how many


def main() -> int:
    """SEED=1 repeats one history; SEEDS=100 runs that many others; HOURS=10 runs as many as simulate so long."""
    seed, hours = os.environ.get("SEED"), float(os.environ.get("HOURS") or 0)
    if seed and seed != "random":  # as elsewhere
        first, limit = int(seed), 1
    else:
        first = random.SystemRandom().getrandbits(31)
        limit = 1 << 31 if hours else int(os.environ.get("SEEDS") or _SEEDS)
    seeds = islice(count(first), limit)
    totals = Totals()
    for outcome in map(run, seeds) if limit == 1 else run_on_all_cores(seeds, totals, hours):
        totals.add(outcome)
        _say(_line(outcome, totals))
    for line in totals.lines():
        _say(line)
    return 1 if totals.failed else 0


def _line(outcome: Outcome, totals: Totals) -> str:
    result = outcome.result
    if result is None:
        return f"SEED={outcome.seed} {outcome.error}"
    return (
        f"SEED={outcome.seed} trace={result.trace} steps={result.steps} operations={result.acked}"
        f" faults={sum(result.faults.values())} simulated-s={result.simulated_s:.0f}"
        f" cpu-s={outcome.cpu_s:.1f} logical-hours-so-far={totals.hours:.2f}"
    )


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    sys.exit(main())
