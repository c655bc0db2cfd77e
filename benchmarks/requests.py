"""What one produce request costs the broker: `make bench B=requests`.

CPU time of the whole process (all threads, flushing included) over the requests it answered, against the prototype's
figures. Those were taken, as the rows "many" are, with a window of requests in flight, so that one wake-up may find
several; in the rows "one" the next is sent after the answer, and each request pays for its own wake-up.
"""

import time
from itertools import product
from typing import Final, NamedTuple

from benchmarks.raw import Outcome, Plan, generate
from benchmarks.rig import (
    parser,
    port_of,
    print_heading,
    print_machine,
    print_row,
    running_broker,
    topic,
)
from penstock.testing import Broker

TARGET_RATIO: Final = 1.5
_MESSAGE_BYTES: Final = 1000


class Size(NamedTuple):
    name: str
    batch_bytes: int
    prototype_us: float  # uvloop add_reader
    window: int


SIZES: Final = (
    Size("1 KB", 1000, 15.4, 64),
    Size("16 KB", 16_000, 25.7, 16),
    Size("64 KB", 64_000, 54.6, 16),
    Size("1 MB", 1_000_000, 832.0, 4),
)


def run(broker: Broker, size: Size, *, idempotent: bool, deep: bool, seconds: float) -> Outcome:
    with topic(broker, 2) as name:
        return generate(
            Plan(
                port=port_of(broker),
                broker_pid=broker.pid,
                topic=name,
                partitions=2,
                message_bytes=_MESSAGE_BYTES,
                batch_bytes=size.batch_bytes,
                now_ms=time.time_ns() // 1_000_000,
                window=size.window if deep else 1,
                idempotent=idempotent,
                seconds=seconds,
            )
        )


def report(size: Size, kind: str, in_flight: str, outcome: Outcome) -> None:
    cost_us = 1e6 * outcome.broker_cpu_s / outcome.produced_requests
    ratio = cost_us / size.prototype_us
    print_row(
        size.name,
        kind,
        in_flight,
        f"{cost_us:.1f}",
        f"{size.prototype_us:.1f}",
        f"{ratio:.2f}",
        _verdict(ratio) if in_flight == "many" else "",
        f"{outcome.produced_requests / outcome.seconds:,.0f}",
        f"{outcome.broker.share:.0%}",
        outcome.broker.bound,
    )


def _verdict(ratio: float) -> str:
    return "reached" if ratio <= TARGET_RATIO else "missed"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=4.0, help="of load for each row")
    options.add_argument("--best-of", type=int, default=1, metavar="N", help="runs for each row")
    arguments = options.parse_args()
    print_machine()
    print_heading(
        "request",
        "producer",
        "in flight",
        "CPU µs/request",
        "prototype",
        "ratio",
        f"≤ {TARGET_RATIO}",
        "requests/s",
        "broker CPU",
        "bound by",
    )
    with running_broker(data=arguments.data) as broker:
        for size, idempotent, deep in product(SIZES, (False, True), (True, False)):
            runs = [
                run(broker, size, idempotent=idempotent, deep=deep, seconds=arguments.seconds)
                for _ in range(arguments.best_of)
            ]
            report(
                size,
                "idempotent" if idempotent else "plain",
                "many" if deep else "one",
                min(runs, key=lambda it: it.broker_cpu_s / it.produced_requests),
            )


if __name__ == "__main__":
    main()
