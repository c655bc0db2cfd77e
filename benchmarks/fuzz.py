"""A million spoiled frames against a broker, and it must not mind: `make bench B=fuzz`.

The same as tests/conformance/test_fuzz.py, for longer. `--seed` and `--first` send a slice again. Exit code 1 if
anything was not well.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rig import print_heading, print_machine, print_row
from penstock.testing import Broker
from tests.support.fuzzer import SETTINGS, DecoderFuzzer, Fuzzer, Health
from tests.support.stalls import BOUND_MS
from tests.support.work_fuzzer import WorkFuzzer, worst_of_each


def fuzz_decoders(seed: int, frames: int) -> None:
    begun_s = time.monotonic()
    fuzzer = DecoderFuzzer(seed)
    fuzzer.run(frames)
    print(
        f"decoders alone: {frames:,} spoiled frames and batches in {time.monotonic() - begun_s:.0f} s, "
        f"{fuzzer.refused:,} refused, {fuzzer.decoded:,} still in order, nothing else\n",
        flush=True,
    )


def fuzz_broker(seed: int, first: int, slices: int, slice_frames: int) -> Health:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-fuzz-") as home,
        Broker(SETTINGS, subprocess=True, data_dir=Path(home) / "data") as broker,
    ):
        fuzzer = Fuzzer(broker, Path(home) / "broker.log", seed)
        health = fuzzer.health
        for number in range(first, first + slices):
            begun_s = time.monotonic()
            fuzzer.run_slice(number, slice_frames)
            print_row(
                number,
                f"{health.frames:,}",
                f"{health.connections:,}",
                f"{health.answered_bytes / 1e6:.1f}",
                f"{slice_frames / (time.monotonic() - begun_s):,.0f}",
                f"{health.rss_mb[-1]:.1f}",
                health.troubles.total(),
            )
        fuzzer.look_after_crash()
        return health


def fuzz_work(seed: int, share: float) -> int:
    """Print the request that holds the loop longest, for each API; how many hold it for too long."""
    print("\nThe longest that one request holds the event loop, in CPU time:\n")
    print_heading("API", "ms", f"≤ {BOUND_MS:.0f}", "request", "outcome")
    with WorkFuzzer.started(seed) as fuzzer:
        worst = worst_of_each(fuzzer.run(share))
    for cost in worst:
        verdict = "reached" if cost.stall_ms <= BOUND_MS else "missed"
        print_row(cost.api, f"{cost.stall_ms:.1f}", verdict, cost.what, cost.outcome)
    return sum(cost.stall_ms > BOUND_MS for cost in worst)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, default=1_000_000, help="in all")
    options.add_argument("--slice", type=int, default=50_000, help="frames between two looks")
    options.add_argument("--first", type=int, default=0, help="number of the first slice")
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options.add_argument("--decoders", type=int, default=1_000_000, help="frames for these alone")
    options.add_argument(
        "--work", type=float, default=1.0, help="share of the requests with long arrays"
    )
    arguments = options.parse_args()
    print_machine()
    print(f"seed {arguments.seed}\n", flush=True)
    fuzz_decoders(arguments.seed, arguments.decoders)
    too_long = fuzz_work(arguments.seed, arguments.work) if arguments.work else 0
    if not arguments.frames:
        return 1 if too_long else 0
    print_heading(
        "slice", "frames", "connections", "MB answered", "frames/s", "resident MB", "troubles"
    )
    slices = -(-arguments.frames // arguments.slice)
    health = fuzz_broker(arguments.seed, arguments.first, slices, arguments.slice)
    print(f"\n{health.troubles.total()} troubles")
    for trouble, count in health.troubles.most_common():
        print(f"- {count} times: {trouble}")
    return 1 if health.troubles or too_long else 0


if __name__ == "__main__":
    sys.exit(main())
