"""System calls on the files of simulated machines: reported to the machine's disk, which may fail them.

They are replaced in the module `os` and where the product opens files otherwise, so that no call goes by the disk.
"""

import errno
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final, NamedTuple
from unittest import mock
from weakref import WeakKeyDictionary

from penstock.storage import worker
from penstock.storage.files import Buffer, Disk, Handle, SegmentFile
from penstock.storage.worker import Worker, WorkerFailed
from tests.simulation.disk import LOCK, PAGE_BYTES, Faults, File, Folder, SimDisk, os_error
from tests.simulation.threads import SimThread, WorkerEnded

_close, _ftruncate, _listdir, _mkdir = os.close, os.ftruncate, os.listdir, os.mkdir
_open, _pread, _preadv, _pwrite = os.open, os.pread, os.preadv, os.pwrite
_rename, _rmdir, _statvfs = os.rename, os.rmdir, os.statvfs
_fallocate, _fsync, _unlink = os.posix_fallocate, os.fsync, os.unlink
_open_file, _remove_tree = open, shutil.rmtree
_threads_of_workers: Final[WeakKeyDictionary[Worker, SimThread | None]] = WeakKeyDictionary()
_BLOCK_BYTES: Final = 4096
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Opened(NamedTuple):
    disk: SimDisk
    node: File | Folder
    run: int


class Syscalls:
    def __init__(self, disks: Mapping[str, SimDisk]) -> None:
        """`disks` by their roots, which lie in one directory."""
        self._base = f"{os.path.dirname(next(iter(disks)))}/"
        self._disks = dict(disks)
        self._opened: dict[int, Opened] = {}

    def _disk_of(self, path: Any) -> SimDisk | None:
        if not isinstance(path, str) or not path.startswith(self._base):
            return None
        end = path.find("/", len(self._base))
        return self._disks.get(path if end < 0 else path[:end])

    # Descriptors -------------------------------------------------------------------------------------

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        disk = self._disk_of(path)
        if disk is None:
            return _open(path, flags, mode, dir_fd=dir_fd)
        disk.before_call(bool(flags & _WRITING))
        known = disk.node(path)
        if flags & _WRITING:
            disk.faults.check_change()
            if known is None and flags & os.O_CREAT:
                disk.faults.check_room()
        disk.faults.take_descriptor()
        try:
            fd = _open(path, flags, mode)
        except OSError:
            disk.faults.give_descriptor()
            raise
        if known is None:
            known = File()
            disk.made(path, known)
        elif flags & os.O_TRUNC and isinstance(known, File):
            disk.faults.give_room(known.size)
            known.cut(0)
        self._opened[fd] = Opened(disk, known, disk.run)
        if path == f"{disk.root}/{LOCK}":
            disk.lock_fd = fd
        return fd

    def close(self, fd: int) -> None:
        opened = self._opened.pop(fd, None)
        if opened is not None and opened.run == opened.disk.run:
            opened.disk.faults.give_descriptor()
        _close(fd)

    def open_file(self, path: Any, mode: str = "r", buffering: int = -1, **more: Any) -> IO[Any]:
        """As the builtin `open`."""
        disk = self._disk_of(path)
        if disk is None:
            return _open_file(path, mode, buffering, **more)
        if "w" not in mode and "x" not in mode:
            disk.faults.take_descriptor()  # bad sectors are not in these: the product makes them anew
            disk.faults.give_descriptor()  # the caller closes it before anything else happens
            return _open_file(path, mode, buffering, **more)
        flags = os.O_RDWR | os.O_CREAT | (os.O_EXCL if "x" in mode else os.O_TRUNC)
        raw: Any = Writer(self, self.open(path, flags, 0o644))
        return raw if buffering == 0 else io.BufferedWriter(raw, buffering)

    # Contents ----------------------------------------------------------------------------------------

    def pwrite(self, fd: int, data: Buffer, position: int) -> int:
        opened = self._opened.get(fd)
        if opened is None or not isinstance(opened.node, File):
            return _pwrite(fd, data, position)
        disk, file = opened.disk, opened.node
        disk.before_call(True)
        disk.faults.check_change()
        size_bytes = self._room_for(disk, file, position, len(data))
        written = _pwrite(fd, memoryview(data)[:size_bytes], position)
        file.wrote(position, written)
        file.modified_ms = disk.now_ms()
        return written

    @staticmethod
    def _room_for(disk: SimDisk, file: File, position: int, size_bytes: int) -> int:
        """How much can be written: a disk that fills up takes a part of it."""
        more_bytes = max(position + size_bytes - file.size, 0)
        lacking = more_bytes - disk.faults.take_room(more_bytes)
        if lacking and lacking >= size_bytes:
            raise os_error(errno.ENOSPC)
        return size_bytes - lacking

    def pwritev(self, fd: int, parts: Sequence[Buffer], position: int) -> int:
        return self.pwrite(fd, b"".join(parts), position)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._check_read(fd)
        return _pread(fd, size, position)

    def preadv(self, fd: int, buffers: Sequence[Any], position: int, flags: int = 0) -> int:
        if not flags & os.RWF_NOWAIT:  # which sees the page cache alone
            self._check_read(fd)
        return _preadv(fd, buffers, position, flags)

    def _check_read(self, fd: int) -> None:
        opened = self._opened.get(fd)
        if opened is not None:
            opened.disk.before_call(False)
            opened.disk.faults.check_read()

    def ftruncate(self, fd: int, size: int) -> None:
        opened = self._opened.get(fd)
        if opened is not None and isinstance(opened.node, File):
            opened.disk.before_call(True)
            opened.disk.faults.check_change()
            opened.disk.faults.give_room(max(opened.node.size - size, 0))
            opened.node.cut(size)
        _ftruncate(fd, size)

    def fallocate(self, fd: int, offset: int, size_bytes: int) -> None:
        opened = self._opened.get(fd)
        if opened is not None and isinstance(opened.node, File):
            opened.disk.before_call(True)
            opened.disk.faults.check_change()
            if self._room_for(opened.disk, opened.node, offset, size_bytes) < size_bytes:
                raise os_error(errno.ENOSPC)
            opened.node.size = max(opened.node.size, offset + size_bytes)
        _fallocate(fd, offset, size_bytes)

    def sync(self, fd: int) -> None:
        opened = self._opened.get(fd)
        if opened is None:
            _fsync(fd)
            return
        disk, node, _ = opened
        disk.before_call(True)
        self._sync(fd, disk, node)
        disk.before_call(False)  # what is written until it returns may be durable or not

    @staticmethod
    def _sync(fd: int, disk: SimDisk, node: File | Folder) -> None:
        try:
            disk.faults.check_sync()
        except OSError:
            if isinstance(node, File):
                node.fail_to_sync()
            raise
        if isinstance(node, Folder):
            disk.sync_folder(node)
        elif not node.is_clean:
            node.sync(_changed_pages(fd, node))

    # Names -------------------------------------------------------------------------------------------

    def rename(self, before: Any, after: Any, **more: Any) -> None:
        disk = self._disk_of(before)
        if disk is None:
            _rename(before, after, **more)
            return
        disk.before_call(True)
        disk.faults.check_change()
        replaced = disk.node(after)
        self._keep_content(replaced, after)
        _rename(before, after)
        disk.renamed(before, after)
        if isinstance(replaced, File):
            disk.faults.give_room(replaced.size)

    def unlink(self, path: Any, **more: Any) -> None:
        disk = self._disk_of(path)
        if disk is None:
            _unlink(path, **more)
            return
        disk.before_call(True)
        disk.faults.check_change()
        node = disk.node(path)
        self._keep_content(node, path)
        _unlink(path)
        disk.removed(path)
        if isinstance(node, File):
            disk.faults.give_room(node.size)

    @staticmethod
    def _keep_content(node: File | Folder | None, path: str) -> None:
        """Until its name is durably gone, a loss of power may bring the file back."""
        if isinstance(node, File) and not node.is_clean:
            with _open_file(path, "rb") as file:
                node.content = file.read()

    def mkdir(self, path: Any, mode: int = 0o777, **more: Any) -> None:
        disk = self._disk_of(path)
        if disk is not None:
            disk.before_call(True)
            disk.faults.check_change()
            disk.faults.check_room()
        _mkdir(path, mode, **more)
        if disk is not None:
            disk.made(path, Folder())

    def rmdir(self, path: Any, **more: Any) -> None:
        disk = self._disk_of(path)
        if disk is not None:
            disk.before_call(True)
            disk.faults.check_change()
        _rmdir(path, **more)
        if disk is not None:
            disk.removed(path)

    def remove_tree(self, path: str) -> None:
        """As shutil.rmtree."""
        disk = self._disk_of(path)
        if disk is None:
            _remove_tree(path)
            return
        for name in self.listdir(path):
            if isinstance(disk.node(f"{path}/{name}"), Folder):
                self.remove_tree(f"{path}/{name}")
            else:
                self.unlink(f"{path}/{name}")
        self.rmdir(path)

    def listdir(self, path: Any = ".") -> list[str]:
        """In an order that does not hang on the file system."""
        found: list[str] = _listdir(path)
        return sorted(found) if self._disk_of(path) is not None else found

    def statvfs(self, path: Any) -> Any:
        disk = self._disk_of(path)
        if disk is None:
            return _statvfs(path)
        blocks = disk.free_bytes // _BLOCK_BYTES
        return os.statvfs_result((_BLOCK_BYTES, _BLOCK_BYTES, 1 << 40, blocks, blocks, *[0] * 5))

    def modified_ms(self, path: str) -> int | None:
        disk = self._disk_of(path)
        node = None if disk is None else disk.node(path)
        return node.modified_ms if isinstance(node, File) else None

    # In place of the real ones -----------------------------------------------------------------------

    @contextmanager
    def replaced(self) -> Iterator[None]:
        modified_ms = SegmentFile.modified_ms

        def simulated_ms(file: SegmentFile) -> int:
            found = self.modified_ms(file.path)
            return modified_ms(file) if found is None else found

        def close_handle(handle: Handle) -> None:
            self.close(handle.fd)

        on_disk: dict[str, Callable[..., Any]] = {
            "pread": self.pread,
            "pwrite": self.pwrite,
            "pwritev": self.pwritev,
            "ftruncate": self.ftruncate,
            "fdatasync": self.sync,
        }
        in_os: dict[str, Callable[..., Any]] = on_disk | {
            "open": self.open,
            "close": self.close,
            "preadv": self.preadv,
            "posix_fallocate": self.fallocate,
            "fsync": self.sync,
            "rename": self.rename,
            "replace": self.rename,
            "unlink": self.unlink,
            "mkdir": self.mkdir,
            "rmdir": self.rmdir,
            "listdir": self.listdir,
            "statvfs": self.statvfs,
        }
        with ExitStack() as stack:
            for name, call in in_os.items():
                stack.enter_context(mock.patch.object(os, name, call))
            for name, call in on_disk.items():
                stack.enter_context(mock.patch.object(Disk, name, staticmethod(call)))
            for module in ("files", "markers", "cleaner"):
                where = f"penstock.storage.{module}.open"
                stack.enter_context(mock.patch(where, self.open_file, create=True))
            stack.enter_context(mock.patch.object(shutil, "rmtree", self.remove_tree))
            stack.enter_context(mock.patch.object(SegmentFile, "modified_ms", simulated_ms))
            stack.enter_context(mock.patch.object(Handle, "__del__", close_handle))
            stack.enter_context(mock.patch.object(Faults, "is_in_worker", _is_in_worker))
            stack.enter_context(mock.patch.object(Worker, "_call", _work))
            stack.enter_context(mock.patch.object(Worker, "close", _end_worker))
            stack.enter_context(mock.patch("penstock.storage.directory.DaemonThreads", Inline))
            yield


class Inline(Executor):
    """Executes at once what the product gives to threads and waits for."""

    def __init__(self, _limit: int, _name: str) -> None: ...

    def submit(self, work: Any, /, *args: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(work(*args, **more))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)
        return future


def _work(process: Worker, task: str, argument: Sequence[Any]) -> Any:
    """Do what the worker process does, by the same code and through the same JSON."""
    _threads_of_workers[process] = SimThread.current
    try:
        answer = worker._answer(json.dumps([task, argument]).encode())
    except WorkerEnded:
        raise WorkerFailed(f"{task}: the worker was ended") from None
    finally:
        del _threads_of_workers[process]
    error, result = json.loads(answer)
    if error is not None:
        raise WorkerFailed(f"{task}: {error}")
    return result


def _is_in_worker() -> bool:
    """Whether what runs now is a worker process."""
    return any(it is SimThread.current for it in _threads_of_workers.values())


def _end_worker(process: Worker) -> None:
    """End the worker process, if it is at work."""
    thread = _threads_of_workers.get(process)
    if thread is not None and thread is not SimThread.current:
        thread.resume(WorkerEnded())


class Writer(io.RawIOBase):
    """A new file, to be written from its start."""

    def __init__(self, calls: Syscalls, fd: int) -> None:
        self._calls = calls
        self._fd = fd
        self._position = 0

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def write(self, data: Any) -> int:
        written = self._calls.pwrite(self._fd, bytes(data), self._position)
        self._position += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._calls.close(self._fd)


def _changed_pages(fd: int, file: File) -> bytes:
    """The content of a file, of which only the pages that changed are read."""
    content = bytearray(file.size)
    if file.dirty:
        start = min(file.dirty) * PAGE_BYTES
        data = _pread(fd, (max(file.dirty) + 1) * PAGE_BYTES - start, start)
        content[start : start + len(data)] = data
    return bytes(content)
