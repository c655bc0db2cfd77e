"""The seed of tests that choose at random: the same in every run, so that what lands does not hang on luck.

`SEED=random pytest …` looks further, and `SEED=1234 pytest …` repeats what that found."""

import os
import random
from typing import Final

EVERY_RUN: Final = 20_261_115


def chosen_seed() -> int:
    wanted = os.environ.get("SEED", "")
    seed = random.SystemRandom().getrandbits(32) if wanted == "random" else int(wanted or EVERY_RUN)
    print(f"SEED={seed}")  # noqa: T201 - pytest shows it when the test fails
    return seed
