"""What lies on a disk, told from the names and sizes of its files alone. Any thread may ask."""

import os
from typing import NamedTuple

from penstock.storage.files import refuse
from penstock.storage.segment import LOG_SUFFIX


class Room(NamedTuple):
    total_bytes: int
    usable_bytes: int


def room(directory: str) -> Room:
    """The size of the file system, and what we may still write to it."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        refuse(error, f"{directory}: cannot be measured")
    return Room(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def log_size_bytes(directory: str) -> int:
    """The segments in a partition's directory; 0 when it has none, or has just been deleted."""
    try:
        with os.scandir(directory) as files:
            return sum(file.stat().st_size for file in files if file.name.endswith(LOG_SUFFIX))
    except FileNotFoundError:
        return 0
    except OSError as error:
        refuse(error, f"{directory}: cannot be listed")
