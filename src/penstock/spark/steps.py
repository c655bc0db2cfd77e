"""Named steps of the jobs' protocols, so that a test can kill a job at each of them.

`PENSTOCK_PIPELINE_STOP_AT=lake:staged` kills the process, as `kill -9` does, when it first reaches that step;
`lake:staged#3` when it does so for the third time.
"""

import os
import signal
from collections import Counter
from typing import Final

VARIABLE: Final = "PENSTOCK_PIPELINE_STOP_AT"
_times: Final[Counter[str]] = Counter()


def reached(step: str) -> None:
    """Does nothing, unless a test wants the process to end here."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, which = wanted.partition("#")
    if step == name:
        _times[step] += 1
        if _times[step] == int(which or 1):
            os.kill(os.getpid(), signal.SIGKILL)
