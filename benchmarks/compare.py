"""Penstock beside its peers, in one session on this machine: `make bench B=compare`, or `penstock bench compare`.

Systems are got from package registries, run on the broker's core one after another, turn by turn, and loaded by the same
clients from the other cores. Every sample is kept in compare.json; compare.md and its plots are made from it.
"""

import argparse
import resource
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.comparison.growth import COLD, CONNECTIONS, GROUPS, TRANSACTIONS
from benchmarks.comparison.kafka_load import (
    LATENCY,
    LIBRDKAFKA,
    RAW,
    RF3,
    SPREAD_OUT,
    WIDE,
    RawCase,
)
from benchmarks.comparison.lifecycle import MEMORY, RECOVERY, START, topics_stage
from benchmarks.comparison.own_clients import OWN
from benchmarks.comparison.pictures import draw
from benchmarks.comparison.samples import Results, chosen
from benchmarks.comparison.session import RESULTS_NAME, Session, say
from benchmarks.comparison.stages import FULL, QUICK, Effort, Stage
from benchmarks.comparison.tables import markdown
from benchmarks.peers import OURS, SYSTEMS
from benchmarks.rig import LOAD_CORES, load_average, machine, on_cores, parser

_PAGE_NAME: Final = "compare.md"
_QUICK_CASES: Final = (
    RawCase("produce", 100, 16, "1"),
    RawCase("produce", 1_000, 16),
    RawCase("produce", 100, 16, "0"),
    RawCase("produce", 1_000, 16, codec="zstd"),
    RawCase("produce", 1_000, 16, idempotent=True),
    RawCase("consume", 1_000, 16),
    RawCase("in and out", 1_000, 16),
)


def stages(effort: Effort, *, wide: bool) -> list[Stage]:
    """All of them, in the order of the report."""
    raw = RAW
    if effort.is_quick:
        names = {case.name for case in _QUICK_CASES}
        raw = RAW._replace(workloads=[it for it in RAW.workloads if it.name in names])
    load = [raw, RF3, LIBRDKAFKA, TRANSACTIONS, LATENCY, SPREAD_OUT, COLD]
    around = [START, MEMORY, RECOVERY, topics_stage(effort.topics), CONNECTIONS, GROUPS]
    return [*load, *around, *([WIDE] if wide else []), OWN]


def selected(all_of_them: Sequence[Stage], only: str) -> list[Stage]:
    """Stages by their keys, else those workloads whose names match."""
    keys = {stage.key for stage in all_of_them}
    if only and all(word.strip() in keys for word in only.split(",")):
        wanted = {word.strip() for word in only.split(",")}
        return [stage for stage in all_of_them if stage.key in wanted]
    found = []
    for stage in all_of_them:
        names = chosen((it.name for it in stage.workloads), only)
        if names:
            kept = [it for it in stage.workloads if it.name in names]
            found.append(stage._replace(workloads=kept))
    return found


def write_report(results: Results, out: Path, all_of_them: Sequence[Stage]) -> Path:
    titles = {stage.key: stage.title for stage in all_of_them}
    page = out / _PAGE_NAME
    page.write_text(markdown(results, titles, OURS, draw(results, out, OURS)))
    return page


def options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    add = made.add_argument
    peers = [name for name in SYSTEMS if name != OURS]
    add("--peers", default=",".join(peers), metavar="NAMES", help=f"default: {','.join(peers)}")
    add(
        "--only",
        default="",
        metavar="WORDS",
        help="stages by key (raw, rf3, librdkafka, transactions, latency, spread, cold, start, memory, recovery, "
        "topics, connections, groups, wide, own), "
        "or workloads whose names contain one of these, with commas between",
    )
    add("--quick", action="store_true", help="few cases, a second each: to see that it works")
    add("--wide", action="store_true", help="also 10 MB messages, 100 and 1,000 partitions")
    add("--turns", type=int, metavar="N", help=f"of each system (default: {FULL.turns})")
    add("--seconds", type=float, metavar="S", help=f"of load a run (default: {FULL.seconds:g})")
    add("--topics", type=int, metavar="N", help=f"to create (default: {FULL.topics:,})")
    add("--out", type=Path, default=Path("build/compare"), metavar="DIR", help="of the report")
    add("--again", action="store_true", help="only write the report again from what is in --out")
    return made


def effort_of(arguments: argparse.Namespace) -> Effort:
    base = QUICK if arguments.quick else FULL
    return base._replace(
        turns=arguments.turns or base.turns,
        seconds=arguments.seconds or base.seconds,
        topics=arguments.topics or base.topics,
        data=arguments.data,
    )


def allow_many_files() -> None:
    """As many as this user may have, for all that is started here: a broker with 10,000 partitions opens tens of thousands."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def main() -> int:
    made = options()
    arguments = made.parse_args()
    names = [name.strip() for name in arguments.peers.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SYSTEMS]:
        made.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    effort = effort_of(arguments)
    allow_many_files()
    everything = stages(effort, wide=True)
    if arguments.again:
        say(
            str(write_report(Results.load(arguments.out / RESULTS_NAME), arguments.out, everything))
        )
        return 0
    wanted = selected(stages(effort, wide=arguments.wide), arguments.only)
    if not wanted:
        made.error(f"--only {arguments.only}: nothing is called so")
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = Results(
        machine=machine(),
        command=shlex.join(["python", "-m", "benchmarks.compare", *sys.argv[1:]]),
        begun=time.strftime("%Y-%m-%d %H:%M %Z"),
        load_average=load_average(),
        quick=arguments.quick,
    )
    session = Session(results, effort, arguments.out)
    with on_cores(LOAD_CORES):
        session.get(list(dict.fromkeys((OURS, *names))))
        for stage in wanted:
            session.run(stage)
    say(f"\n{write_report(results, arguments.out, everything)}")
    return 1 if any(sample.error for sample in results.samples) else 0


if __name__ == "__main__":
    sys.exit(main())
