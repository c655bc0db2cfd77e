"""`penstock bench compare`: hands over to the harness in the repository's `benchmarks/`, and says so where there is none."""

import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import penstock
from penstock.cli.arguments import UsageError, count, examples

_HARNESS: Final = Path("benchmarks", "compare.py")


def configure(parser: ArgumentParser) -> None:
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    compare = commands.add_parser(
        "compare",
        help="Penstock beside Apache Kafka, RabbitMQ, NATS and Redis on this machine",
        description="Run the same load on Penstock and its peers, turn by turn, and write a report.",
        epilog=examples(
            "penstock bench compare --quick --peers kafka",
            "penstock bench compare --only raw,latency --out docs/benchmarks/compare",
        ),
    )
    add = compare.add_argument
    add("--peers", metavar="NAMES", help="kafka,rabbitmq,nats,redis (default: all)")
    add("--only", metavar="WORDS", help="stages by key, or workloads whose names contain one")
    add("--quick", action="store_true", help="few cases, a second each: to see that it works")
    add("--wide", action="store_true", help="also 10 MB messages, 100 and 1,000 partitions")
    add("--turns", metavar="N", type=count, help="of each system")
    add("--topics", metavar="N", type=count, help="that are created")
    add("--data", metavar="DIR", type=Path, help="where brokers put their data")
    add("--out", metavar="DIR", type=Path, default=Path("build/compare"), help="of the report")
    compare.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    root = find_repository((Path(penstock.__file__).parents[2], Path.cwd()))
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command(arguments), env=environment, check=False).returncode


def find_repository(places: Iterable[Path]) -> Path:
    """The first of these that has the harness."""
    for place in places:
        if (place / _HARNESS).is_file():
            return place
    raise UsageError(
        "the benchmarks are not part of the installed package; run this in a checkout of the repository"
    )


def command(arguments: Namespace) -> list[str]:
    words = [sys.executable, "-m", "benchmarks.compare", "--out", str(arguments.out)]
    for name in ("peers", "only", "turns", "topics", "data"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name}", str(value)]
    return words + [f"--{name}" for name in ("quick", "wide") if getattr(arguments, name)]
