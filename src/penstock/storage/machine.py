"""What a data directory has to do with the machine and the process that use it: one process at a time, of one boot."""

import fcntl
import os
import uuid
from contextlib import suppress
from typing import Final

from penstock.model.errors import StorageFault

_LOCK: Final = "lock"
_PID_WIDTH: Final = 10
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


def lock(path: str) -> int:
    try:
        os.makedirs(path, exist_ok=True)
        fd = os.open(f"{path}/{_LOCK}", os.O_RDWR | os.O_CREAT, 0o644)
    except (FileExistsError, NotADirectoryError) as error:
        raise StorageFault(f"{path}: cannot be used: not a directory") from error
    except OSError as error:
        raise StorageFault(f"{path}: cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 20, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise StorageFault(
            f"{path} is in use by another broker (process {holder}); give this one its own directory"
        ) from error
    with suppress(OSError):  # it only tells others who we are
        os.pwrite(fd, f"{os.getpid():<{_PID_WIDTH}}\n".encode(), 0)
    return fd


def read_boot_id() -> str:
    """What tells one boot of this machine from the next."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return uuid.uuid4().hex  # not known: take every crash for a power loss
