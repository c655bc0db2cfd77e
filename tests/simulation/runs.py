"""Runs of many histories: one after the other in each worker process, and their totals."""

import gc
import logging
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Final, NamedTuple

from tests.simulation.cpu_limit import TooLong, cpu_limited
from tests.simulation.histories import run_long_history
from tests.simulation.loop import VERBOSE, Broken, Stuck
from tests.simulation.simulation import Result

_GC_THRESHOLD: Final = (
    100_000  # objects; at the default of 700, collections take a tenth of the time
)
_HISTORY_CPU_S: Final = 300


class Outcome(NamedTuple):
    seed: int
    cpu_s: float
    result: Result | None  # None: it failed
    error: str = ""


class Totals:
    """What all histories of this run amount to."""

    def __init__(self) -> None:
        self.failed: list[int] = []
        self.simulated_s = 0.0
        self._begun_s = time.monotonic()
        self._cpu_s = 0.0
        self._seeds = self._steps = self._operations = 0
        self._faults: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self._seeds += 1
        self._cpu_s += outcome.cpu_s
        result = outcome.result
        if result is None:
            self.failed.append(outcome.seed)
            return
        self.simulated_s += result.simulated_s
        self._steps += result.steps
        self._operations += result.acked
        self._faults.update(result.faults)

    @property
    def hours(self) -> float:
        return self.simulated_s / 3600

    def lines(self) -> Iterator[str]:
        cpu_minutes = self._cpu_s / 60
        faults = sum(self._faults.values())
        yield (
            f"logical-hours={self.hours:.2f} cpu-minutes={cpu_minutes:.2f}"
            f" hours-per-cpu-minute={self.hours / max(cpu_minutes, 1e-9):.2f}"
            f" wall-minutes={(time.monotonic() - self._begun_s) / 60:.2f}"
        )
        yield (
            f"seeds={self._seeds} steps={self._steps} operations={self._operations} faults={faults}"
            f" per-logical-hour: operations={self._operations / max(self.hours, 1e-9):.0f}"
            f" faults={faults / max(self.hours, 1e-9):.0f}"
        )
        yield "faults: " + " ".join(f"{kind}={n}" for kind, n in sorted(self._faults.items()))
        for seed in self.failed:
            yield f"failed: repeat it with SEED={seed} make sim   (TRACE=1 prints its events)"


def run_on_all_cores(seeds: Iterator[int], totals: Totals, hours: float) -> Iterator[Outcome]:
    """Run the seeds until there are no more, or the totals have so many hours."""
    workers = int(os.environ.get("WORKERS") or os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        running: set[Future[Outcome]] = {pool.submit(run, seed) for seed in islice(seeds, workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for ended in done:
                yield ended.result()
                if not hours or totals.hours < hours:
                    running |= {pool.submit(run, seed) for seed in islice(seeds, 1)}


def run(seed: int) -> Outcome:
    level = logging.INFO if VERBOSE else logging.CRITICAL + 1
    logging.basicConfig(level=level, format="    %(message)s", stream=sys.stdout)
    gc.set_threshold(_GC_THRESHOLD)
    begun_s = time.process_time()
    result, error = None, ""
    try:
        with cpu_limited(_HISTORY_CPU_S):
            result = run_long_history(seed)
    except (Broken, Stuck, TooLong) as failure:
        error = f"{type(failure).__name__}: {failure}"
    except Exception:  # noqa: BLE001 - the other seeds go on, and it counts as failed
        error = traceback.format_exc()
    return Outcome(seed, time.process_time() - begun_s, result, error)
