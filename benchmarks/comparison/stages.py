"""What a stage of the comparison is: workloads that run on the same systems, which stay up side by side or start for each run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from benchmarks.peers import Running, System

Figures = Mapping[str, float]


class Effort(NamedTuple):
    """How much of everything."""

    turns: int
    seconds: float  # of load, each run
    warmup_s: float
    max_bytes: int  # that one run may write
    fill_bytes: int  # that a consumer finds
    messages: int  # for clients that send one by one
    confirmed: int  # messages that are waited for one by one
    settle_s: float  # until memory is called idle
    recovered_bytes: int
    topics: int
    is_quick: bool = False
    data: str | None = None


FULL: Final = Effort(
    turns=5,
    seconds=3.0,
    warmup_s=1.5,
    max_bytes=3_000_000_000,
    fill_bytes=500_000_000,
    messages=500_000,
    confirmed=2_000,
    settle_s=5.0,
    recovered_bytes=2_000_000_000,
    topics=10_000,
)
QUICK: Final = Effort(
    turns=2,
    seconds=1.0,
    warmup_s=0.5,
    max_bytes=1_000_000_000,
    fill_bytes=60_000_000,
    messages=20_000,
    confirmed=100,
    settle_s=1.0,
    recovered_bytes=50_000_000,
    topics=100,
    is_quick=True,
)


class OnRunning(NamedTuple):
    """A workload on a system that is up and stays up."""

    name: str
    run: Callable[[Running, Effort], Figures]


class OnFresh(NamedTuple):
    """A workload that starts the system itself."""

    name: str
    run: Callable[[System, Effort], Figures]


class Stage(NamedTuple):
    """`servers` of each system stay up side by side; 0: every run starts its own, and nothing else is up."""

    key: str
    title: str
    workloads: Sequence[OnRunning | OnFresh]
    servers: int = 1
    kafka_only: bool = True
