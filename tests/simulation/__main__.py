"""`make sim`: histories with new seeds, or one again. Ends with 1 if any went wrong, and says how to see it again."""

import logging
import os
import random
import sys
import time

from tests.simulation.histories import run_history
from tests.simulation.loop import Broken, Stuck


def main() -> int:
    """SEED=1 repeats one history, and TRACE=1 tells it as it happens; SEEDS=100 tries that many others."""
    seed, count = os.environ.get("SEED"), int(os.environ.get("SEEDS") or 20)
    seed = None if seed == "random" else seed  # as elsewhere
    first = int(seed) if seed else random.SystemRandom().getrandbits(31)
    level = logging.INFO if os.environ.get("TRACE") else logging.CRITICAL + 1
    logging.basicConfig(level=level, format="    %(message)s", stream=sys.stdout)
    failed = [it for it in range(first, first + (1 if seed else count)) if not _is_sound(it)]
    for bad in failed:
        _say(f"to see it again: SEED={bad} make sim   (TRACE=1 tells what happens)")
    return 1 if failed else 0


def _is_sound(seed: int) -> bool:
    begun_s = time.monotonic()
    try:
        result = run_history(seed)
    except (Broken, Stuck) as error:
        _say(f"SEED={seed} {type(error).__name__}: {error}")
        return False
    _say(
        f"SEED={seed} trace={result.trace} steps={result.steps} acked={result.acked}"
        f" simulated-s={result.simulated_s:.0f} took-s={time.monotonic() - begun_s:.1f}"
    )
    return True


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - it is a command


if __name__ == "__main__":
    sys.exit(main())
