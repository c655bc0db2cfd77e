"""Workloads: each is one kind of client activity on a simulated cluster, with its own judgement."""

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.records.record import Record
from tests.simulation.clients.client import Client
from tests.simulation.invariants import Invariants
from tests.simulation.loop import SimLoop, World
from tests.support.checker import History

JUDGED_APART: Final = (
    "__",
    "x-",
)  # how the names of topics begin that the history's checker does not see


@dataclass(frozen=True)
class Topic:
    """A topic beside the one that every simulated cluster has."""

    name: str
    partitions: int = 1
    configs: tuple[tuple[str, str], ...] = ()
    is_whole: bool = True  # no record leaves it: the history's checker judges it


class Cluster(Protocol):
    """What a workload uses of the simulation."""

    world: World
    loop: SimLoop  # in which the clients run
    history: History
    invariants: Invariants

    @property
    def brokers(self) -> list[int]: ...
    @property
    def places(self) -> list[tuple[str, int]]:
        """The partitions of the topic that every simulated cluster has."""

    def contents(self, topic: str) -> Iterator[tuple[str, list[Record]]]:
        """The records of partition 0 in each replica's log, by host. In the end."""

    def run_client(self, client: Client, run: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a client; an error that ends it fails the history."""


class Workload(Protocol):
    """The simulation calls `begin`, `stop` when faults are over, and `judge` in the end."""

    @property
    def topics(self) -> tuple[Topic, ...]:
        """Those that the simulation creates before `begin`."""

    @property
    def operations(self) -> int:
        """How many operations brokers acknowledged."""

    @property
    def written(self) -> int:
        """How many records the producers know to be there that readers of the history read.

        0 where only readers of its own read them: then `judge` or the history's checker compares.
        """

    def begin(self) -> None: ...
    def stop(self) -> None:
        """Begin no new operation; retry those that have no response yet."""

    def is_done(self) -> bool:
        """Every operation has its response."""

    def is_caught_up(self) -> bool:
        """Every reader has read what is committed. Asked when the cluster is healthy and all is done."""

    def judge(self) -> None:
        """Raise Broken if the clients saw what must not happen. The final logs are in the history."""
