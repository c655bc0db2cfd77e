"""CPU costs of a broker on this machine, for `penstock plan --calibrate`: one line of JSON at the end.

`append` and `batch` come from two sizes of batches: a batch costs the same whatever is in it, and each byte the rest.
"""

import json
import time
from typing import NamedTuple

from benchmarks.cluster import Case as ClusterCase
from benchmarks.cluster import produce, running_cluster
from benchmarks.raw import Outcome
from benchmarks.rig import parser, running_broker
from benchmarks.throughput import Case, run
from penstock.testing import Broker

_KIB = 1024
_SMALL = Case("in, 1 KB, 8 KiB batches", 1000, 8 * _KIB)
_LARGE = Case("in, 1 KB, 64 KiB batches", 1000, 64 * _KIB)
_BOTH = Case("in and out, 1 KB, 64 KiB batches", 1000, 64 * _KIB, consume=True)
_REPLICATED = ClusterCase("1 KB, 64 KiB batches", 1000, 64 * _KIB)
_FOLLOWERS = 2


class Append(NamedTuple):
    gb_s: float  # CPU seconds a GB
    batch_s: float  # CPU seconds a batch


def split_append(small: Outcome, large: Outcome) -> Append:
    """Solve cpu = bytes x a + batches x b for the two; neither is less than nothing."""
    determinant = (
        small.produced_bytes * large.produced_requests
        - large.produced_bytes * small.produced_requests
    )
    a = (
        small.broker_cpu_s * large.produced_requests - large.broker_cpu_s * small.produced_requests
    ) / determinant
    b = (small.broker_cpu_s - small.produced_bytes * a) / small.produced_requests
    if a <= 0 or b < 0:  # noise: everything goes to the bytes of large batches
        return Append(large.broker_cpu_s / large.produced_bytes * 1e9, 0.0)
    return Append(a * 1e9, b)


def costs_of_one(broker: Broker, seconds: float) -> dict[str, float]:
    small, large, both = (run(case, broker, seconds) for case in (_SMALL, _LARGE, _BOTH))
    append = split_append(small, large)
    appended_s = both.produced_bytes / 1e9 * append.gb_s + both.produced_requests * append.batch_s
    return {
        "append": append.gb_s,
        "batch": append.batch_s,
        "read": max(0.0, both.broker_cpu_s - appended_s) / both.fetched_bytes * 1e9,
        "produce_bytes_s": large.produced_bytes / large.seconds,
        "both_bytes_s": both.produced_bytes / both.seconds,
    }


def costs_of_replication(data: str | None, seconds: float) -> dict[str, float]:
    with running_cluster(data) as cluster:
        one, three = (produce(cluster, _REPLICATED, factor, seconds) for factor in (1, 3))
    one_gb, three_gb = (it.broker_cpu_s / it.produced_bytes * 1e9 for it in (one, three))
    return {
        "serve_follower": max(0.0, three_gb - one_gb) / _FOLLOWERS,
        "follow": three.others_cpu_s / _FOLLOWERS / three.produced_bytes * 1e9,
    }


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of load for each case")
    arguments = options.parse_args()
    begun_s = time.monotonic()
    with running_broker(data=arguments.data) as broker:
        found = costs_of_one(broker, arguments.seconds)
    found |= costs_of_replication(arguments.data, arguments.seconds)
    found["took_s"] = time.monotonic() - begun_s
    print(json.dumps(found))


if __name__ == "__main__":
    main()
