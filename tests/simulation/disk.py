"""A disk that a process crash leaves alone, and of which a loss of power takes what was not synced.

Files are real, in a directory of their own. A file keeps what it had at its last sync and of what came
after that a part that the seed chooses; one that was never synced may be gone.
"""

import os
from collections.abc import Sequence
from random import Random

from penstock.storage.files import Buffer, Disk


class SimDisk(Disk):
    """One machine's. Files are known by their inodes: a rename changes nothing."""

    __slots__ = ("_durable", "_lowest", "root")

    def __init__(self, root: str) -> None:
        self.root = root
        self._durable: dict[int, bytearray] = {}
        self._lowest: dict[int, int] = {}  # where the first byte was changed since the last sync

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:  # type: ignore[override] # static there
        self._changed(fd, position)
        return os.pwrite(fd, data, position)

    def pwritev(self, fd: int, parts: Sequence[Buffer], position: int) -> int:  # type: ignore[override] # static there
        return self.pwrite(fd, b"".join(parts), position)

    def ftruncate(self, fd: int, size: int) -> None:
        self._changed(fd, size)
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
        inode = os.fstat(fd).st_ino
        kept = self._durable.setdefault(inode, bytearray())
        lowest = min(self._lowest.pop(inode, 0), len(kept))
        size = os.fstat(fd).st_size
        kept[lowest:] = _read(fd, max(size - lowest, 0), lowest)

    def fsync_directory(self, path: str) -> None:
        """Names are kept as they are."""

    def _changed(self, fd: int, position: int) -> None:
        inode = os.fstat(fd).st_ino
        self._lowest[inode] = min(self._lowest.get(inode, position), position)

    def lose_power(self, rng: Random | None) -> None:
        """What was not synced is lost as `rng` has it; without one, all of it."""
        for directory, folders, names in os.walk(self.root):
            folders.sort()
            for name in sorted(names):
                self._lose(os.path.join(directory, name), rng)
        self._lowest.clear()

    def _lose(self, path: str, rng: Random | None) -> None:
        with open(path, "rb") as file:
            now, inode = file.read(), os.fstat(file.fileno()).st_ino
        kept = self._durable.get(inode)
        if kept is None:
            left = None if rng is None or rng.random() < 0.5 else now[: _part(rng, len(now))]
        elif now.startswith(kept):
            left = now[: len(kept) + _part(rng, len(now) - len(kept))]
        else:  # it was cut, and written anew
            left = now if rng is not None and rng.random() < 0.5 else bytes(kept)
        if left is None:
            os.unlink(path)
            return
        with open(path, "wb") as file:
            file.write(left)
            self._durable[os.fstat(file.fileno()).st_ino] = bytearray(left)


def _part(rng: Random | None, size: int) -> int:
    """Nothing, all, or something between."""
    return 0 if rng is None else rng.choice((0, 0, size, rng.randint(0, size)))


def _read(fd: int, size: int, position: int) -> bytes:
    try:
        return os.pread(fd, size, position)
    except OSError:  # it was opened to be written to only
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            return os.pread(file.fileno(), size, position)
