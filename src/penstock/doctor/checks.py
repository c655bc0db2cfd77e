"""All checks by the scope that they belong to. Ids are stable: scripts ignore findings by them."""

from collections.abc import Iterator
from typing import Any, Final

from penstock.doctor.cluster_facts import ClusterFacts
from penstock.doctor.findings import Check, Found, Severity
from penstock.doctor.group_checks import GROUP_CHECKS
from penstock.doctor.host_checks import HOST_CHECKS
from penstock.doctor.load_checks import LOAD_CHECKS
from penstock.doctor.replication_checks import REPLICATION_CHECKS
from penstock.doctor.settings_checks import SETTINGS_CHECKS

CLUSTER_CHECKS: Final[tuple[Check[ClusterFacts], ...]] = (
    *REPLICATION_CHECKS,
    *LOAD_CHECKS,
    *GROUP_CHECKS,
    *SETTINGS_CHECKS,
)


def _unreachable(error: str) -> Iterator[Found]:
    yield Found(
        error,
        "start a broker (penstock serve), name another (--bootstrap HOST:PORT), or check only this host"
        " (--host)",
    )


UNREACHABLE: Final = Check(
    "cluster-unreachable",
    Severity.PROBLEM,
    "no broker answers at the bootstrap address",
    "Clients cannot connect there either.",
    _unreachable,
)
_ALL: Final[tuple[Check[Any], ...]] = (*HOST_CHECKS, UNREACHABLE, *CLUSTER_CHECKS)
ALL_CHECKS: Final = {check.id: check for check in _ALL}
