"""Disk space that is reserved for the broker's own small writes: a full disk must not keep it from freeing space."""

import os
from contextlib import suppress
from typing import Final

from penstock.model.errors import StorageFault
from penstock.storage.usage import room

FILE: Final = "ballast"


class DiskReserve:
    """A file of `size_bytes`, removed when the disk is full. Any thread may call this."""

    def __init__(self, directory: str, size_bytes: int) -> None:
        self._path = f"{directory}/{FILE}"
        self.size_bytes = size_bytes

    def take(self) -> None:
        """Make the file, if as much space again is left."""
        if not self.size_bytes or not self._is_there_room():
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                os.posix_fallocate(fd, 0, self.size_bytes)
            finally:
                os.close(fd)
        except OSError:
            self.release()

    def _is_there_room(self) -> bool:
        try:
            return room(os.path.dirname(self._path)).usable_bytes >= 2 * self.size_bytes
        except StorageFault:
            return False

    def release(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            os.unlink(self._path)
