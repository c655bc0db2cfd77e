"""How much one broker on one core takes and gives: `make bench B=throughput`.

"at 100 %" is the observed rate divided by the share of its core that the broker used: what it would do if the load,
which has one core for itself and everything else on a machine of two, could keep it busy.
"""

import time
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

_KIB: Final = 1024


class Case(NamedTuple):
    name: str
    message_bytes: int
    batch_bytes: int
    consume: bool = False
    window: int = 16
    partitions: int = 2
    target_messages_s: float | None = None


CASES: Final = (
    Case("in, 100 B, 16 KiB batches", 100, 16 * _KIB),
    Case("in, 100 B, 64 KiB batches", 100, 64 * _KIB),
    Case("in and out, 100 B, 16 KiB batches", 100, 16 * _KIB, True, target_messages_s=3e6),
    Case("in and out, 100 B, 64 KiB batches", 100, 64 * _KIB, True, target_messages_s=3e6),
    Case("in, 1 KB, one message a batch", 1000, 1000, window=64),
    Case("in, 1 KB, 64 KiB batches", 1000, 64 * _KIB),
    Case("in, 1 KB, 1 MB batches", 1000, 1_000_000, window=4),
    Case("in and out, 1 KB, 64 KiB batches", 1000, 64 * _KIB, True, target_messages_s=0.4e6),
    Case("in and out, 1 KB, 1 MB batches", 1000, 1_000_000, True, window=4, target_messages_s=1e6),
    Case("in, 10,000 messages of 90 B a batch", 90, 10_000 * 98, window=4),
    Case("in and out, messages of 10 MB", 10_000_000, 10_000_000, True, window=2, partitions=1),
)


def run(case: Case, broker: Broker, seconds: float) -> Outcome:
    with topic(broker, case.partitions) as name:
        return generate(
            Plan(
                port=port_of(broker),
                broker_pid=broker.pid,
                topic=name,
                partitions=case.partitions,
                message_bytes=case.message_bytes,
                batch_bytes=case.batch_bytes,
                now_ms=time.time_ns() // 1_000_000,
                window=case.window,
                consume=case.consume,
                seconds=seconds,
                fetch_bytes=max(1 << 20, case.batch_bytes + 4 * _KIB),
            )
        )


def report(case: Case, outcome: Outcome) -> None:
    broker = outcome.broker
    rates = [outcome.produced_messages / outcome.seconds]
    if case.consume:
        rates.append(outcome.fetched_messages / outcome.seconds)
    slowest = min(rates)
    requests = outcome.produced_requests + outcome.fetched_requests
    gigabytes = (outcome.produced_bytes + outcome.fetched_bytes) / 1e9
    print_row(
        case.name,
        " / ".join(_rate(rate) for rate in rates),
        f"{outcome.produced_bytes / outcome.seconds / 1e6:,.0f}",
        f"{broker.share:.0%}",
        broker.bound,
        " / ".join(_rate(rate / broker.share) for rate in rates),
        f"{broker.cpu_s / gigabytes:.2f}",
        f"{1e6 * broker.cpu_s / requests:.1f}",
        _verdict(case.target_messages_s, slowest, slowest / broker.share),
    )


def _rate(messages_s: float) -> str:
    return f"{messages_s / 1e6:.3f} M" if messages_s >= 1e4 else f"{messages_s:.1f}"


def _verdict(target: float | None, observed: float, at_full: float) -> str:
    if target is None:
        return ""
    if observed >= target:
        return f"{_rate(target)}: reached"
    return f"{_rate(target)}: {'reached at 100 %' if at_full >= target else 'missed'}"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=5.0, help="of load for each case")
    options.add_argument("--only", default="", help="cases whose name contains this")
    options.add_argument("--best-of", type=int, default=1, metavar="N", help="runs for each case")
    arguments = options.parse_args()
    print_machine()
    print_heading(
        "case",
        "msg/s in / out",
        "MB/s in",
        "broker CPU",
        "bound by",
        "msg/s at 100 %",
        "CPU s/GB",
        "CPU µs/request",
        "target",
    )
    with running_broker(data=arguments.data) as broker:
        for case in CASES:
            if arguments.only in case.name:
                runs = [run(case, broker, arguments.seconds) for _ in range(arguments.best_of)]
                report(case, max(runs, key=lambda it: it.produced_messages / it.seconds))


if __name__ == "__main__":
    main()
