"""The workloads by name: `Shape.workloads` names those that run besides `records`."""

from collections.abc import Callable
from typing import Final

from tests.simulation.workloads import Cluster, Records, Workload

KINDS: Final[dict[str, Callable[[Cluster], Workload]]] = {"records": Records}
