"""What was measured, run by run: nothing is averaged or left out before it is written down."""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

CLIENT_BOUND_BELOW: Final = 0.90  # of its core: the broker could have done more
SHARE: Final = "share"


class Measure(NamedTuple):
    """One figure of a run: how it is shown, and which way is better."""

    title: str
    unit: str
    higher_is_better: bool
    digits: int


MEASURES: Final = {
    "messages_s": Measure("messages", "msg/s", True, 0),
    "produced_s": Measure("produced meanwhile", "msg/s", True, 0),
    "megabytes_s": Measure("data", "MB/s", True, 0),
    "cpu_s_gb": Measure("broker CPU", "s/GB", False, 2),
    "cpu_s_million": Measure("broker CPU", "s per million", False, 2),
    "acked_p50_ms": Measure("acknowledged p50", "ms", False, 2),
    "acked_p99_ms": Measure("acknowledged p99", "ms", False, 2),
    "p50_ms": Measure("end to end p50", "ms", False, 2),
    "p99_ms": Measure("end to end p99", "ms", False, 2),
    "p999_ms": Measure("end to end p99.9", "ms", False, 2),
    "late_ms": Measure("load late by, p99", "ms", False, 2),
    "seconds": Measure("time", "s", False, 2),
    "idle_mb": Measure("resident, idle", "MB", False, 0),
    "load_mb": Measure("resident, at most", "MB", False, 0),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one workload on one system; with an error it has no figures."""

    stage: str
    workload: str
    system: str
    turn: int
    figures: Mapping[str, float] = field(default_factory=dict)
    error: str = ""
    ended: str = ""  # time of day: a disturbance of the machine can be found in the samples


@dataclass(slots=True)
class Results:
    """All samples of a session, and what they were taken with."""

    machine: str = ""
    command: str = ""
    begun: str = ""
    load_average: float = 0.0  # before the first run
    quick: bool = False
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # what a reader must know; by hand
    samples: list[Sample] = field(default_factory=list)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Results":
        read = json.loads(path.read_text())
        return cls(**{**read, "samples": [Sample(**one) for one in read["samples"]]})

    def values(self, stage: str, workload: str, system: str, measure: str) -> dict[int, float]:
        """By turn."""
        return {
            sample.turn: sample.figures[measure]
            for sample in self.samples
            if (sample.stage, sample.workload, sample.system) == (stage, workload, system)
            and measure in sample.figures
        }

    def workloads(self, stage: str) -> list[str]:
        """In the order of their first run."""
        return list(dict.fromkeys(it.workload for it in self.samples if it.stage == stage))

    def systems(self, stage: str) -> list[str]:
        return list(dict.fromkeys(it.system for it in self.samples if it.stage == stage))

    def measures(self, stage: str) -> list[str]:
        """Those that some run of the stage has, in the order of the table above."""
        had = {name for it in self.samples if it.stage == stage for name in it.figures}
        return [name for name in MEASURES if name in had]

    def is_client_bound(self, stage: str, workload: str, system: str) -> bool | None:
        """None where nobody knows."""
        shares = self.values(stage, workload, system, SHARE)
        return statistics.median(shares.values()) < CLIENT_BOUND_BELOW if shares else None


def interleaved(targets: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """A B A B …: what slows the machine down for a while slows down all of them."""
    for turn in range(turns):
        for target in targets:
            yield turn, target


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Those that contain one of the words in `only` (with commas between); all, if it is empty."""
    words = [word.strip().lower() for word in only.split(",") if word.strip()]
    return [name for name in names if not words or any(word in name.lower() for word in words)]
