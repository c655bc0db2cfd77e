"""How the broker divides the file descriptors of its process, so that no use of them locks out another.

Segment files get at most half of what is not reserved, connections all of it. Where both want it, idle
segment files are closed, and opened again when they are needed.
"""

import logging
import resource
from contextlib import suppress
from typing import Final, NamedTuple

_log = logging.getLogger(__name__)

_RAISED_TO_MAX: Final = 1 << 20  # some systems allow a billion, for which programs make tables
_RESERVE: Final = 96  # locks, the metadata store, other brokers, HTTP, syncs, the worker
_ANSWERS_SHARE: Final = 3  # a third of the reserve
_RESERVE_SHARE: Final = 8  # of larger limits an eighth: brokers of large clusters have many peers


class Descriptors(NamedTuple):
    """Most descriptors for each use."""

    limit: int  # of the process
    segment_files: int
    connections: int
    answers: int  # files that queued answers hold open


def raise_limit() -> int:
    """Raise the soft limit of open files as far as the hard one allows; the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _RAISED_TO_MAX if hard == resource.RLIM_INFINITY else min(hard, _RAISED_TO_MAX)
    if soft == resource.RLIM_INFINITY:
        return _RAISED_TO_MAX
    if soft < wanted:
        with suppress(OSError, ValueError):  # a container may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return soft


def divide(limit: int, segment_files_max: int) -> Descriptors:
    """`segment_files_max`: as it is configured."""
    reserve = min(max(_RESERVE, limit // _RESERVE_SHARE), limit // 2)
    free = limit - reserve
    files = max(min(segment_files_max, free // 2), 1)
    shares = Descriptors(limit, files, max(free, 1), max(reserve // _ANSWERS_SHARE, 1))
    if shares.segment_files < segment_files_max:
        _log.warning(
            "open-files-limited limit=%d segment-files=%d wanted=%d connections=%d remedy=%s",
            limit, shares.segment_files, segment_files_max, shares.connections,
            "raise the hard limit of open files (ulimit -Hn, LimitNOFILE=)",
        )  # fmt: skip
    return shares
