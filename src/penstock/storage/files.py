"""The only module that touches files on the data path.

A slice keeps its file readable, come what may: eviction, deletion and renaming leave its descriptor open.
"""

import errno
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from typing import Any, Final, NoReturn

from penstock.model.errors import DiskFull, OutOfResources, StorageFault
from penstock.storage.syncs import Syncs

Buffer = bytes | bytearray | memoryview

OPEN_FILES_LIMIT: Final = 4096
QUEUED_FILES_LIMIT: Final = 1024
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
TOO_MANY_OPEN: Final = frozenset((errno.EMFILE, errno.ENFILE))
_GIVEN_BACK: Final = 64  # files that are closed at a time when descriptors run out
_NEEDED_BY_A_CHANGE: Final = (
    8  # a segment, its indexes, a small file and its directory, and some for threads beside
)
_PARTS_OF_A_CALL: Final = os.sysconf("SC_IOV_MAX")  # pwritev takes no more
_WARM_STEP_BYTES: Final = 1 << 20
_RESIDENCY_STEP_BYTES: Final = 128 << 10  # what the kernel reads ahead: one probe for each


class Disk:
    """The system calls that data depends on. Tests give one that fails, writes short or forgets."""

    __slots__ = ()

    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    fdatasync = staticmethod(os.fdatasync)

    def fsync_directory(self, path: str) -> None:
        """Makes the names in a directory durable: created, renamed and removed files."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def opened(self, fd: int, path: str) -> None:
        """Called with every descriptor before its first use."""


class Handle:
    """An open descriptor, closed when the last one who refers to it lets go."""

    __slots__ = ("fd", "kept", "queued", "tells_residency", "used")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.used = True
        self.queued = 0  # slices that wait for their readers
        self.tells_residency = True  # until its file system turns out not to
        self.kept: Any = None  # what a reader of the file remembers of it, as long as it is open

    def __del__(self, _close=os.close) -> None:  # type: ignore[no-untyped-def] # bound: os may be gone at exit
        with suppress(OSError):
            _close(self.fd)


class OpenFiles:
    """At most `limit` files stay open for later use; the least used are closed first (CLOCK).

    A slice keeps its file open beyond the limit. Of files whose slices are queued for slow readers there
    are not many more than `queued_max`: when there are, answers to fetches are short, and copied.
    """

    __slots__ = ("_open", "disk", "limit", "queued", "queued_max", "syncs")

    def __init__(self, limit: int = OPEN_FILES_LIMIT, disk: Disk | None = None) -> None:
        assert limit > 0
        self.limit = limit
        self.queued = 0  # files with queued slices
        self.queued_max = QUEUED_FILES_LIMIT
        self.disk = disk or Disk()
        self.syncs = Syncs()
        self._open: OrderedDict[SegmentFile, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def room_in_queues(self) -> int:
        """How many more files may be held open by queued slices."""
        return self.queued_max - self.queued

    def open(self, file: "SegmentFile", flags: int) -> Handle:
        while len(self._open) >= self.limit:
            self._evict()
        try:
            fd = os.open(file.path, flags, 0o644)
        except OSError as error:
            if error.errno in TOO_MANY_OPEN and self._open:
                self.close_all()
                return self.open(file, flags)
            refuse(error, f"{file.path}: cannot be opened")
        self.disk.opened(fd, file.path)
        self._open[file] = None
        return Handle(fd)

    def forget(self, file: "SegmentFile") -> None:
        self._open.pop(file, None)

    def close_all(self) -> None:
        while self._open:
            self._open.popitem()[0].handle = None

    def ensure(self, count: int = _NEEDED_BY_A_CHANGE) -> None:
        """Raise OutOfResources unless so many descriptors are free. A change that must not stop halfway begins with it."""
        found: list[int] = []
        try:
            while len(found) < count:
                try:
                    found.append(os.open(os.devnull, os.O_RDONLY))
                except OSError as error:
                    if error.errno not in TOO_MANY_OPEN or not self.give_back():
                        refuse(error, "a change of a log needs files")
        finally:
            for fd in found:
                os.close(fd)

    def give_back(self, count: int = _GIVEN_BACK) -> int:
        """Close up to so many of the least used files, for whoever else needs descriptors; how many."""
        before = len(self._open)
        for _ in range(min(count, before)):
            self._evict()
        return before - len(self._open)

    def _evict(self) -> None:
        """Close the first file that was not used since the hand last passed it."""
        while True:
            file, _ = self._open.popitem(last=False)
            handle = file.handle
            if handle is None or not handle.used:
                file.handle = None
                return
            handle.used = False
            self._open[file] = None


class SegmentFile:
    """A file that grows at its end, opened when needed. `size` is what is valid in it."""

    __slots__ = (
        "_lowest_size",
        "base_offset",
        "directory",
        "files",
        "generation",
        "handle",
        "size",
        "suffix",
    )

    def __init__(
        self, files: OpenFiles, directory: str, base_offset: int, suffix: str, size: int = 0
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self.suffix = suffix
        self.size = size
        self.handle: Handle | None = None
        self.generation = 0  # how often it was truncated
        self._lowest_size = 0  # the lowest of those truncations

    @property
    def path(self) -> str:
        return f"{self.directory}/{self.base_offset:020d}{self.suffix}"

    def measure(self) -> None:
        """Take all that the file holds as valid."""
        try:
            self.size = os.stat(self.path).st_size
        except OSError as error:
            refuse(error, f"{self.path}: cannot be measured")

    def modified_ms(self) -> int:
        try:
            return os.stat(self.path).st_mtime_ns // 1_000_000
        except OSError as error:
            refuse(error, f"{self.path}: its age cannot be read")

    def create(self) -> None:
        """Make the file, which must not be there yet."""
        self.handle = self.files.open(self, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def replace(self) -> None:
        """Make the file anew and empty, whatever was there."""
        self.close()
        self.handle = self.files.open(self, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.size = 0

    def open(self) -> Handle:
        handle = self.handle
        if handle is None:
            handle = self.handle = self.files.open(self, os.O_RDWR)
        handle.used = True
        return handle

    def fileno(self) -> int:
        return self.open().fd

    def append(self, data: Buffer) -> None:
        """All of `data`, or nothing and DiskFull, or StorageFault."""
        handle = self.handle or self.open()
        handle.used = True
        size = self.size
        try:
            written = self.files.disk.pwrite(handle.fd, data, size)
            if written != len(data):
                written = self._append_rest(handle.fd, data, written)
        except OSError as error:
            self._undo(handle.fd, error)
        self.size = size + written

    def append_all(self, parts: Sequence[Buffer], total: int) -> None:
        """Append all parts, of `total` bytes, or nothing: with one call, unless the kernel takes only some of them."""
        handle = self.handle or self.open()
        handle.used = True
        size = self.size
        try:
            written = self.files.disk.pwritev(handle.fd, parts[:_PARTS_OF_A_CALL], size)
            if written != total:
                written = self._append_rest(handle.fd, b"".join(parts), written)
        except OSError as error:
            self._undo(handle.fd, error)
        self.size = size + written

    def _append_rest(self, fd: int, data: Buffer, written: int) -> int:
        """The kernel took only a part: most often the disk is full, and the next write says so."""
        view = memoryview(data)
        while written < len(view):
            count = self.files.disk.pwrite(fd, view[written:], self.size + written)
            if count <= 0:
                raise OSError(errno.EIO, "write took nothing")
            written += count
        return written

    def _undo(self, fd: int, error: OSError) -> NoReturn:
        """Cut off what a failed write may have left past `size`."""
        what = f"{self.path}: write at {self.size} failed"
        try:
            self.files.disk.ftruncate(fd, self.size)
        except OSError as second:
            raise StorageFault(
                f"{what} ({error.strerror}), and cutting it off failed too"
            ) from second
        refuse(error, what)

    def read_at(self, position: int, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        try:
            return self.files.disk.pread(self.open().fd, size, position)
        except OSError as error:
            refuse(error, f"{self.path}: read of {size} bytes at {position} failed")

    def truncate(self, size: int) -> None:
        """Slices that reach past `size` become stale."""
        try:
            self.files.disk.ftruncate(self.open().fd, size)
        except OSError as error:
            raise StorageFault(f"{self.path}: cannot be cut to {size} bytes") from error
        self._lowest_size = min(size, self._lowest_size) if self.generation else size
        self.generation += 1
        self.size = size

    def lost(self, generation: int, end: int) -> bool:
        """Whether bytes below `end`, as of `generation`, may have been truncated since."""
        return generation != self.generation and end > self._lowest_size

    def rename(self, suffix: str) -> None:
        before = self.path
        self.suffix = suffix
        try:
            os.rename(before, self.path)
        except OSError as error:
            refuse(error, f"{before}: cannot be renamed to {self.path}")

    def unlink(self) -> None:
        """Remove the file; slices of it stay readable."""
        self.close()
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageFault(f"{self.path}: cannot be removed") from error

    def close(self) -> None:
        if self.handle is not None:
            self.handle = None
            self.files.forget(self)


class FileSlice:
    """A run of bytes of a file that stays readable until it is released, also after deletion."""

    __slots__ = ("_generation", "_handle", "_is_queued", "file", "position", "size")

    def __init__(self, file: SegmentFile, position: int, size: int) -> None:
        self._is_queued = False  # first: `__del__` looks at it also where `open` fails
        self.file = file
        self.position = position
        self.size = size
        self._handle: Handle | None = file.handle or file.open()
        self._generation = file.generation

    def __del__(self) -> None:
        if self._is_queued:
            self.release()

    def __len__(self) -> int:
        return self.size

    @property
    def handle(self) -> Handle:
        assert self._handle is not None, "the slice was released"
        return self._handle

    def fileno(self) -> int:
        return self.handle.fd

    @property
    def is_stale(self) -> bool:
        """The file was truncated below its end since: what is there now is something else."""
        file = self.file
        return self._generation != file.generation and file.lost(
            self._generation, self.position + self.size
        )

    def read(self) -> bytes:
        """Its bytes. Any thread may call this."""
        try:
            data = os.pread(self.fileno(), self.size, self.position)
        except OSError as error:
            refuse(error, f"{self.file.path}: read of {self.size} bytes at {self.position} failed")
        if len(data) != self.size:
            raise StorageFault(
                f"{self.file.path}: {len(data)} of {self.size} bytes at {self.position} are there"
            )
        return data

    def read_at(self, position: int, size: int) -> bytes:
        """A part of the file, whether in the slice or not. Any thread may call this."""
        try:
            return os.pread(self.fileno(), size, position)
        except OSError as error:
            refuse(error, f"{self.file.path}: read at {position} failed")

    def queue(self) -> None:
        """Count it until it is released: its reader may take its time."""
        handle = self.handle
        if not self._is_queued:
            self._is_queued = True
            handle.queued += 1
            if handle.queued == 1:
                self.file.files.queued += 1

    def release(self) -> None:
        handle, self._handle = self._handle, None
        if self._is_queued and handle is not None:
            self._is_queued = False
            handle.queued -= 1
            if handle.queued == 0:
                self.file.files.queued -= 1


def is_resident(piece: FileSlice) -> bool:
    """Whether sending it would find its pages in memory: one byte in each 128 KiB is asked for."""
    handle = piece.handle
    if not handle.tells_residency:
        return True
    fd, probe = handle.fd, [bytearray(1)]
    last = piece.position + piece.size - 1
    try:
        for position in range(last, piece.position - 1, -_RESIDENCY_STEP_BYTES):
            os.preadv(fd, probe, position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError as error:
        handle.tells_residency = error.errno != errno.EOPNOTSUPP  # tmpfs: it is all in memory
    return True


def warm(piece: FileSlice) -> None:
    """Read it through, so that it is in the page cache. Any thread may call this, and should."""
    fd, scratch = piece.fileno(), bytearray(_WARM_STEP_BYTES)
    for position in range(piece.position, piece.position + piece.size, _WARM_STEP_BYTES):
        try:
            os.preadv(fd, [scratch], position)
        except OSError as error:
            refuse(error, f"{piece.file.path}: read at {position} failed")


def write_atomically(path: str, data: bytes, *, disk: Disk | None = None) -> None:
    """Replace a small file: a reader sees the old or the new one whole. With `disk`, also after power loss."""
    temporary = f"{path}.tmp"
    try:
        with open(temporary, "wb", buffering=0) as file:
            if disk is not None:
                disk.opened(file.fileno(), temporary)
            _write_all(file, data)
            if disk is not None:
                disk.fdatasync(file.fileno())
        os.replace(temporary, path)
        if disk is not None:
            disk.fsync_directory(os.path.dirname(path))
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        refuse(error, f"{path}: cannot be written")


def _write_all(file: FileIO, data: bytes) -> None:
    """A write may take only a part, most often of a disk that is almost full; the next one says so."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def refuse(error: OSError, what: str) -> NoReturn:
    """Raise what the callers know. The call that failed must have left nothing behind.

    No room: DiskFull. No descriptor or no memory: OutOfResources. Both pass, and the client retries.
    Anything else, first of all EIO: StorageFault, which takes the data directory offline. So does every
    error of a sync, whatever its number: see FlushTicket. Python itself retries a call after EINTR, and
    EAGAIN does not occur for regular files.
    """
    message = f"{what}: {error.strerror}"
    if error.errno in _NO_ROOM:
        raise DiskFull(f"{message}; free some space") from error
    if error.errno in TOO_MANY_OPEN:
        raise OutOfResources(f"{message}; raise the limit of open files (ulimit -n)") from error
    if error.errno == errno.ENOMEM:
        raise OutOfResources(f"{message}; give the machine or the container more memory") from error
    raise StorageFault(message) from error


@contextmanager
def halfway(what: str) -> Iterator[None]:
    """Past the point of no return a lack of descriptors or memory is a fault: memory and files disagree."""
    try:
        yield
    except OutOfResources as error:
        raise StorageFault(f"{what} stopped halfway: {error}") from error


def read_small(path: str) -> bytes | None:
    """The contents of a small file; None if it is missing or cannot be read, so that it is made anew.

    A lack of descriptors or memory says nothing about the file, and is raised.
    """
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if error.errno in TOO_MANY_OPEN or error.errno == errno.ENOMEM:
            refuse(error, f"{path}: cannot be read")
        return None


def remove(paths: Iterable[str]) -> None:
    """Remove files that nobody needs. Any thread may call this, and should: large ones take their time."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            refuse(error, f"{path}: cannot be removed")
