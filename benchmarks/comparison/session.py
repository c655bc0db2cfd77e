"""One session: systems are got, stages run turn by turn, and every sample is on disk before the next one is taken."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from benchmarks.comparison.samples import MEASURES, SHARE, Results, Sample, interleaved
from benchmarks.comparison.stages import Effort, Figures, OnFresh, OnRunning, Stage
from benchmarks.peers import SYSTEMS, Missing, Running, System
from benchmarks.peers.clients import check_client
from benchmarks.peers.process import DidNotStart

T = TypeVar("T", System, Running)

RESULTS_NAME: Final = "compare.json"
_SHOWN_CHARACTERS: Final = 300
_WARM_UP_S: Final = 1.0
_FIRST_WARM_UPS: Final = 8  # of a stage's first workload: a fresh JVM is several times slower


class Session:
    """Runs stages on those systems that can be had; a run that fails is noted, and the next one goes on."""

    def __init__(self, results: Results, effort: Effort, out: Path) -> None:
        self._results = results
        self._effort = effort
        self._path = out / RESULTS_NAME
        self._systems: list[System] = []

    def get(self, names: Sequence[str]) -> None:
        for name in names:
            system = SYSTEMS[name]()
            say(f"{name}: getting it")
            try:
                system.get()
            except Missing as reason:
                self._results.missing[name] = str(reason)
                say(f"{name} is missing: {reason}")
                continue
            self._results.versions[name] = system.version
            self._results.settings[name] = system.settings
            self._systems.append(system)
        self._results.save(self._path)

    def run(self, stage: Stage) -> None:
        say(f"\n{stage.title}")
        systems = list(self._able(stage))
        if not stage.servers:
            for workload in stage.workloads:
                assert isinstance(workload, OnFresh), "nothing is up in this stage"
                self._turns(stage, workload.name, workload.run, systems)
            return
        with ExitStack() as up:
            targets = list(self._started(stage, systems, up))
            for number, workload in enumerate(stage.workloads):
                assert isinstance(workload, OnRunning), "all are up in this stage"
                is_long = not number and not self._effort.is_quick
                for _ in range(_FIRST_WARM_UPS if is_long else 1):
                    self._warm_up(workload, targets)
                self._turns(stage, workload.name, workload.run, targets)

    def _able(self, stage: Stage) -> Iterator[System]:
        for system in self._systems:
            if stage.kafka_only and not system.speaks_kafka:
                continue
            try:
                if not stage.kafka_only:
                    check_client(system.name)
            except Missing as reason:
                self._results.missing[f"client of {system.name}"] = str(reason)
                say(f"{system.name} is left out: {reason}")
                continue
            yield system

    def _started(self, stage: Stage, systems: Sequence[System], up: ExitStack) -> Iterator[Running]:
        for system in systems:
            try:
                yield up.enter_context(system.running(stage.servers, self._effort.data))
            except (DidNotStart, OSError) as error:
                self._results.missing[f"{system.name} in stage {stage.key}"] = _line(error)
                say(f"{system.name} did not start: {_line(error)}")

    def _warm_up(self, workload: OnRunning, targets: Sequence[Running]) -> None:
        """Uncounted: a JVM compiles what it will need. A failure shows in the runs that count."""
        for target in targets:
            _figures_or_error(workload.run, target, self._effort._replace(seconds=_WARM_UP_S))

    def _turns(
        self,
        stage: Stage,
        name: str,
        run: Callable[[T, Effort], Figures],
        targets: Sequence[T],
    ) -> None:
        for turn, target in interleaved(targets, self._effort.turns):
            figures, error = _figures_or_error(run, target, self._effort)
            ended = time.strftime("%H:%M:%S")
            sample = Sample(stage.key, name, target.name, turn, figures, error, ended)
            self._results.samples.append(sample)
            self._results.save(self._path)
            say(f"  {name} | {turn + 1} | {target.name} | {_told(sample)}")


def _figures_or_error(
    run: Callable[[T, Effort], Figures], target: T, effort: Effort
) -> tuple[Figures, str]:
    """Whatever goes wrong in a run belongs into the report; only who presses Ctrl-C ends the session."""
    try:
        return run(target, effort), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001  # of systems that are not ours
        return {}, _line(error)


def _line(error: BaseException) -> str:
    said = str(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    return " ".join(said.split())[-_SHOWN_CHARACTERS:]


def _told(sample: Sample) -> str:
    if sample.error:
        return f"failed: {sample.error}"
    shown = [
        f"{sample.figures[name]:,.{it.digits}f} {it.unit}"
        for name, it in MEASURES.items()
        if name in sample.figures
    ]
    share = sample.figures.get(SHARE)
    return ", ".join(shown + ([] if share is None else [f"broker CPU {share:.0%}"]))


def say(text: str) -> None:
    print(text, flush=True)
