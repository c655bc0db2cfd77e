"""Plants each bug of the catalogue and looks for it with histories: `python -m tests.simulation.campaign`.

SEEDS=30 histories for each bug at most, from seed FIRST=1 on; PROCESSES=2 bugs at a time; BUG=name,name or
AREA=storage only some. A bug that no history finds is looked for with the directed schedules. First a run
without a bug, which must find nothing.
"""

import os
import sys
import time
from contextlib import nullcontext
from multiprocessing import get_context
from typing import Final, NamedTuple

from tests.simulation.catalogue import BY_NAME, CATALOGUE
from tests.simulation.cpu_limit import TooLong, cpu_limited
from tests.simulation.histories import run_history, shape_of
from tests.simulation.loop import Broken, Stuck
from tests.simulation.planted.probe import Probe
from tests.simulation.schedules import SCHEDULES, Schedule
from tests.simulation.simulation import Shape, simulation

NO_BUG: Final = "(none)"
_HISTORY_CPU_S: Final = 120  # a bug may keep a broker busy for ever
_TRIES: Final = 3  # of each directed schedule
_MESSAGE_CHARS: Final = 110


class Found(NamedTuple):
    """What the histories said to one bug."""

    bug: str
    seed: int | None  # of the first history that noticed it
    histories: int
    calls: int
    deviations: int | None  # None: the bug does not count them
    cpu_s: float
    message: str
    schedule: str = ""  # a directed one that noticed it, where no history did

    @property
    def is_noticed(self) -> bool:
        return self.seed is not None or bool(self.schedule)

    @property
    def verdict(self) -> str:
        if self.seed is not None:
            return f"seed {self.seed}"
        if self.schedule:
            return "schedule"
        return "not found" if self.calls else "not reached"


def search(bug: str, seeds: range) -> Found:
    """Run one history after the other with the bug, until one of them notices it."""
    begun_s = time.process_time()
    planted = nullcontext(Probe()) if bug == NO_BUG else BY_NAME[bug].plant()
    seed, schedule, message, count = None, "", "", 0
    area = os.environ.get("AREA", "") if bug == NO_BUG else BY_NAME[bug].area
    with planted as probe:
        for seed_now in seeds:
            count += 1
            message = _complaint(seed_now, shape_of(seed_now, area))
            if message:
                seed = seed_now
                break
        if seed is None and bug != NO_BUG:
            schedule, message = _scheduled(seeds[0])
    cpu_s = time.process_time() - begun_s
    deviations = probe.deviations if probe.counts_deviations else None
    return Found(bug, seed, count, probe.calls, deviations, cpu_s, message, schedule)


def _scheduled(first_seed: int) -> tuple[str, str]:
    """The first directed schedule that finds something wrong, and what."""
    for number in range(_TRIES):
        for schedule, shape in SCHEDULES:
            message = _complaint(first_seed + number, shape, schedule)
            if message:
                name = schedule.__name__
                return name, f"{name}: {message}"
    return "", ""


def _complaint(seed: int, shape: Shape, schedule: Schedule | None = None) -> str:
    """What a history, or a schedule, finds wrong; nothing if it is sound."""
    try:
        with cpu_limited(_HISTORY_CPU_S):
            if schedule is None:
                run_history(seed, shape=shape)
            else:
                with simulation(seed, shape) as sim:
                    schedule(sim)
    except (Broken, Stuck) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    except TooLong:
        return f"TooLong: more than {_HISTORY_CPU_S} s of CPU time"
    return ""


def _search(task: tuple[str, range]) -> Found:
    return search(*task)


def main() -> int:
    """End with 1 if the run without a bug found something."""
    first, count = int(os.environ.get("FIRST") or 1), int(os.environ.get("SEEDS") or 30)
    tasks = [(bug, range(first, first + count)) for bug in _chosen()]
    _say(f"{'bug':42} {'found':12} {'calls':>8} {'deviations':>10} {'cpu-s':>6}  message")
    found: list[Found] = []
    with get_context("fork").Pool(
        int(os.environ.get("PROCESSES") or 1), maxtasksperchild=1
    ) as pool:
        for one in pool.imap(_search, tasks):
            found.append(one)
            _say(_row(one))
    planted = [one for one in found if one.bug != NO_BUG]
    noticed = sum(one.is_noticed for one in planted)
    _say(f"{noticed} of {len(planted)} bugs found within {count} seeds, or by a schedule")
    return int(any(one.bug == NO_BUG and one.seed is not None for one in found))


def _row(one: Found) -> str:
    deviations = "-" if one.deviations is None else str(one.deviations)
    return (
        f"{one.bug:42} {one.verdict:12} {one.calls:8} {deviations:>10} {one.cpu_s:6.0f}"
        f"  {one.message[:_MESSAGE_CHARS]}"
    )


def _chosen() -> list[str]:
    names, area = os.environ.get("BUG"), os.environ.get("AREA")
    if names:
        return names.split(",")
    chosen = [it.name for it in CATALOGUE if area in (None, "", it.area)]
    return [NO_BUG, *chosen]


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    sys.exit(main())
