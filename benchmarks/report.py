"""Every benchmark after the other: `make bench B=report`, or `python -m benchmarks.report --into FILE`. Half an hour on a quiet machine.

What is about CPU time keeps its data in memory, so that the disk has no say; what is about disks does not.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

_ROOT: Final = Path(__file__).parent.parent
_IN_MEMORY: Final = ("--data", "/dev/shm")
_BEST: Final = ("--best-of", "3", "--seconds", "3")


class Section(NamedTuple):
    title: str
    module: str
    arguments: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        return " ".join(("python -m", f"benchmarks.{self.module}", *self.arguments))


SECTIONS: Final = (
    Section("Throughput, data in memory", "throughput", _IN_MEMORY + _BEST),
    Section("Throughput, data on disk", "throughput", _BEST),
    Section("CPU time of a produce request", "requests", _IN_MEMORY + _BEST),
    Section("Latency", "latency", ("--least-late-of", "3", "--seconds", "5")),
    Section("A real client", "librdkafka"),
    Section("Sustained writing", "sustained", ("--seconds", "180")),
    Section("Start-up, memory, connections", "footprint", ("--partitions", "10000", "100000")),
    Section("After kill -9", "recovery", ("--gb", "10")),
    Section("Fuzzing", "fuzz"),
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--only", default="", help="modules whose name contains this")
    options.add_argument("--into", type=Path, metavar="FILE", help="written anew, as Markdown")
    arguments = options.parse_args()
    failed = 0
    parts = ["# Results\n"]
    for section in SECTIONS:
        if arguments.only not in section.module:
            continue
        print(f"{section.title}: {section.command}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{section.module}", *section.arguments],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        failed |= done.returncode
        print(done.stdout, flush=True)
        parts.append(f"## {section.title}\n\n`{section.command}`\n\n{done.stdout.strip()}\n")
        if arguments.into is not None:
            arguments.into.write_text("\n".join(parts))
    return failed


if __name__ == "__main__":
    sys.exit(main())
