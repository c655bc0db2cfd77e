"""Logs for tests: small batches, a directory that goes away, and disks that fail or forget."""

import errno
import gc
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from penstock.model.configs import TopicConfig
from penstock.model.ids import TopicId
from penstock.records.batch import BatchHeader, iter_headers
from penstock.records.builder import build_batch
from penstock.records.record import Record, decode_records
from penstock.storage.files import Buffer, Disk, OpenFiles
from penstock.storage.log import Appended, Log
from penstock.storage.opening import open_log
from penstock.storage.recovery import Ending, Past

TOPIC_ID: Final = TopicId(bytes(range(16)))
NOW_MS: Final = 1_700_000_000_000
SMALL: Final = TopicConfig(segment_bytes=600, index_interval_bytes=100)
COMPACTED: Final = replace(SMALL, cleanup_policy=frozenset({"compact"}))
MIRROR: Final = replace(SMALL, penstock_mirror_source="other")
_FAST: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None


@contextmanager
def scratch() -> Iterator[str]:
    """A directory for one example of a property."""
    with TemporaryDirectory(dir=_FAST) as path:
        yield path


def batch(
    *values: bytes, time_ms: int = NOW_MS, times: Sequence[int] = (), **fields: Any
) -> memoryview:
    """A batch as a client sends it, one record for each value."""
    values = values or (b"v",)
    times = times or [time_ms] * len(values)
    made = [
        Record(offset, time, b"k", value)
        for offset, (time, value) in enumerate(zip(times, values, strict=True))
    ]
    return memoryview(build_batch(made, **fields))


def new_log(
    path: str | Path, config: TopicConfig = SMALL, disk: Disk | None = None, limit: int = 100
) -> Log:
    return Log(OpenFiles(limit, disk), f"{path}/t", 0, TOPIC_ID, config)


def reopened(
    path: str | Path,
    ending: Ending = Ending.PROCESS_CRASH,
    point: int | None = 0,
    *,
    start: int | None = None,
    config: TopicConfig = SMALL,
    disk: Disk | None = None,
    has_copies: bool = False,
) -> Log:
    past = Past(ending, point, start, has_copies=has_copies)
    return open_log(OpenFiles(100, disk), f"{path}/t", 0, TOPIC_ID, config, past)


def put(log: Log, *values: bytes, epoch: int = 1, now_ms: int = NOW_MS, **fields: Any) -> Appended:
    return log.append_as_leader(
        batch(*values, **fields),
        leader_epoch=epoch,
        now_ms=now_ms,
        transactional=fields.get("transactional", False),
    )


def fill(log: Log, count: int, size: int = 40) -> None:
    for number in range(count):
        put(log, b"%0*d" % (size, number))


def raw(log: Log, offset: int = 0, max_bytes: int = 1 << 30, upto: int | None = None) -> bytes:
    """Everything from `offset` on, read as a consumer would."""
    upto = log.next_offset if upto is None else upto
    data = b""
    while offset < upto:
        found = log.read(offset, max_bytes, upto_offset=upto)
        if not found.slices:
            break
        assert found.next_offset > offset, "a read makes progress"
        data += b"".join(piece.read() for piece in found.slices)
        offset = found.next_offset
    return data


def headers(data: bytes) -> list[BatchHeader]:
    found = list(iter_headers(memoryview(data)))
    assert sum(header.size_bytes for _, header in found) == len(data), "only whole batches"
    return [header for _, header in found]


def records(log: Log, offset: int = 0) -> list[Record]:
    data, found = raw(log, offset), []
    for position, header in iter_headers(memoryview(data)):
        found += decode_records(data[position : position + header.size_bytes])
    return found


def values(log: Log, offset: int = 0) -> list[bytes | None]:
    return [record.value for record in records(log, offset)]


def paths(log: Log, suffix: str = ".log") -> list[Path]:
    return sorted(path for path in Path(log.path).iterdir() if path.name.endswith(suffix))


def copy_of(source: str | Path, target: str | Path) -> str:
    """What another process would find there now."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    return str(target)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


Fault = Callable[[str, int], int | None]


class FaultyDisk(Disk):
    """Each call is first offered to `fault`, which may raise, or answer in its place."""

    __slots__ = ("calls", "fault")

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault: Fault = fault or (lambda _call, _size: None)
        self.calls: list[str] = []

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:  # type: ignore[override] # static there
        self.calls.append("write")
        given = self.fault("write", len(data))
        return os.pwrite(fd, data if given is None else memoryview(data)[:given], position)

    def pwritev(self, fd: int, parts: Sequence[Buffer], position: int) -> int:  # type: ignore[override] # static there
        return self.pwrite(fd, b"".join(parts), position)

    def ftruncate(self, fd: int, size: int) -> None:
        self.calls.append("truncate")
        self.fault("truncate", size)
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
        self.calls.append("sync")
        self.fault("sync", fd)

    def fsync_directory(self, path: str) -> None:
        self.calls.append(f"sync {os.path.basename(path)}")


def failing(call: str, code: int, after: int = 0) -> Fault:
    """A fault: the calls of that kind fail, once so many of them have gone well."""
    left = [after]

    def fault(made: str, _size: int) -> int | None:
        if made == call:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(code, os.strerror(code))
        return None

    return fault


class CountingDisk(Disk):
    """Knows how often it was read."""

    __slots__ = ("reads",)

    def __init__(self) -> None:
        self.reads = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return os.pread(fd, size, position)


class ForgetfulDisk(Disk):
    """Remembers what a power loss would leave of each file."""

    __slots__ = ("_names", "_paths", "durable")

    def __init__(self, path: str | None = None) -> None:
        """All that lies under `path` is durable."""
        self._paths: dict[int, str] = {}
        self._names: dict[str, set[str]] = {}  # in each directory, when it was last synced
        self.durable: dict[str, bytes] = {}
        for directory, _, names in os.walk(path) if path else ():
            self._names[directory] = set(names)
            for name in names:
                found = os.path.join(directory, name)
                self.durable[found] = Path(found).read_bytes()

    def opened(self, fd: int, path: str) -> None:
        self._paths[fd] = path

    def fdatasync(self, fd: int) -> None:  # type: ignore[override] # static there
        path = self._paths[fd]
        self.durable[path] = Path(path).read_bytes()

    def fsync_directory(self, path: str) -> None:
        self._names[path] = set(os.listdir(path))

    def after_power_loss(self, source: str, target: str, keep: Callable[[int], int]) -> str:
        """A copy of `source` in which each file has what was synced and, of what came after it, as
        many bytes as `keep` says. One that was never synced may be gone.

        The latest renames may be undone: a file system keeps those of a directory in their order.
        """
        for directory, _, names in os.walk(source):
            renamed = sorted(
                name
                for name in names
                if name.endswith(".deleted") and name not in self._names.get(directory, set())
            )
            undone = renamed[len(renamed) - keep(len(renamed)) :]
            for name in names:
                path = os.path.join(directory, name)
                before = path.removesuffix(".deleted")
                synced = self.durable.get(path, self.durable.get(before))
                left = self._left(Path(path).read_bytes(), synced, keep)
                if left is None and len(undone) < len(renamed):
                    left = b""  # it was made before a rename that is durable
                if left is not None:
                    copied = before if name in undone else path
                    place = Path(target) / os.path.relpath(copied, source)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(left)
        return target

    def _left(self, now: bytes, synced: bytes | None, keep: Callable[[int], int]) -> bytes | None:
        if synced is None:
            return now[: keep(len(now))] or None
        if now.startswith(synced):
            return now[: len(synced) + keep(len(now) - len(synced))]
        return now if keep(1) else synced


@contextmanager
def descriptors_left(count: int = 0) -> Iterator[None]:
    """The process can open so many files more, and then none. The kernel says so itself."""
    gc.collect()  # logs of earlier tests would close their files just now
    collects = gc.isenabled()
    gc.disable()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, before[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)
        if collects:
            gc.enable()


ENOSPC, EIO = errno.ENOSPC, errno.EIO
