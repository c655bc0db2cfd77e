"""The workloads by name: `Shape.workloads` names those that run besides `records`."""

from collections.abc import Callable
from typing import Final

from tests.simulation.workloads.groups import Groups
from tests.simulation.workloads.in_flight import InFlight
from tests.simulation.workloads.keyed import Keyed
from tests.simulation.workloads.lossy import Lossy
from tests.simulation.workloads.records import Records
from tests.simulation.workloads.retained import Retained
from tests.simulation.workloads.topics import Topics
from tests.simulation.workloads.transactions import TransactionWorkload
from tests.simulation.workloads.workload import Cluster, Workload

KINDS: Final[dict[str, Callable[[Cluster], Workload]]] = {
    "records": Records,
    "in_flight": InFlight,
    "transactions": TransactionWorkload,
    "groups": Groups,
    "retained": Retained,
    "keyed": Keyed,
    "lossy": Lossy,
    "topics": Topics,
}
