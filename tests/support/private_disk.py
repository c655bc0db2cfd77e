"""A small file system that only a broker under test sees: to be filled, or to lose its power."""

import contextlib
import errno
import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_EXT4_IOC_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2  # as when the power goes
_CHUNK_BYTES = 64 << 10


class PrivateDisk:
    """Mounted in a mount namespace of its own, which a waiting process keeps alive."""

    def __init__(self, home: Path, mount: str) -> None:
        """`mount`: the arguments of mount, without the place."""
        if os.geteuid() != 0:
            pytest.skip("only root may mount a disk")
        for program in ("unshare", "nsenter", "mount"):
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not installed")
        self.path = home / "disk"  # as the broker sees it
        self.path.mkdir()
        self._keeper = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-c", f'mount {mount} "$0" && echo mounted && exec cat', str(self.path)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stderr is not None
        if self._keeper.stdout.readline() != b"mounted\n":
            reason = self._keeper.stderr.read().decode().strip()
            self.close()
            pytest.skip(f"nothing can be mounted here: {reason}")

    @property
    def view(self) -> Path:
        """The same place as this process sees it."""
        return Path(f"/proc/{self._keeper.pid}/root{self.path}")

    @property
    def run_in(self) -> list[str]:
        """The front of a command that shall see the disk."""
        return ["nsenter", f"--mount=/proc/{self._keeper.pid}/ns/mnt", "--"]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Whoever runs in it must have ended."""
        for pipe in (self._keeper.stdin, self._keeper.stdout, self._keeper.stderr):
            if pipe is not None:
                pipe.close()
        self._keeper.wait()

    def mount_again(self, mount: str) -> None:
        for words in (["umount", str(self.path)], ["mount", *mount.split(), str(self.path)]):
            subprocess.run([*self.run_in, *words], check=True)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.view)
        return found.f_bavail * found.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Another program's file takes all the room, but for a little."""
        with open(self.view / "filler", "ab", buffering=0) as filler:
            for size in (_CHUNK_BYTES, 4096, 1):
                with contextlib.suppress(_Full):
                    while (room_bytes := self.free_bytes - leave_bytes) > 0:
                        _write(filler.fileno(), min(size, room_bytes))

    def make_room(self) -> None:
        (self.view / "filler").unlink(missing_ok=True)

    def cut_power(self) -> None:
        """What was not synced is gone; nothing works until it is mounted again. For ext4."""
        fd = os.open(self.view, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _EXT4_IOC_SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)


class _Full(Exception):
    pass


def _write(fd: int, size: int) -> None:
    try:
        os.write(fd, bytes(size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _Full from error


def ram_disk(home: Path, size: str, files: int | None = None) -> PrivateDisk:
    limit = f",nr_inodes={files}" if files is not None else ""
    return PrivateDisk(home, f"-t tmpfs -o size={size}{limit} none")


def ext4_disk(home: Path, size_mib: int) -> PrivateDisk:
    """On an image file. Nothing is written back by itself within the time of a test: what is there
    after `cut_power` and `mount_again` is what was synced."""
    image = home / "image"
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed")
    with open(image, "wb") as file:
        file.truncate(size_mib << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True, stdin=subprocess.DEVNULL)
    return PrivateDisk(home, f"-o loop,commit=300 {image}")
