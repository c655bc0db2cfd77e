"""A disk that a process crash leaves alone, and of which a loss of power takes what was not synced.

Pages of 4 KiB that were written since a file's last sync persist independently of each other: the disk has the new
page, the old one, zeros, or, seldom, garbage. A size persists without its pages. Names that were created, renamed or
removed since their directory was last synced persist in the order in which they changed, up to some change: that is
what ext4, XFS and btrfs do (docs/storage-format.md). A rename is atomic.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import ClassVar, Final, NoReturn

_mkdir, _rmdir, _unlink = os.mkdir, os.rmdir, os.unlink  # later, calls of these are simulated

PAGE_BYTES: Final = 4096
LOCK: Final = "lock"  # the file that only one process at a time may use
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_SECTOR_BYTES: Final = 512
_AMPLE_BYTES: Final = 1 << 40
_SHARED_BY: Final = 3
_OF_A_PROCESS: Final = 8  # descriptors that a new process finds free at least
_GARBAGE: Final = 0.1  # of the pages that did not persist, in the part by which the file grew


class File:
    """An inode: its durable content, and what was written since its last sync."""

    __slots__ = ("content", "cut_to", "dirty", "dropped", "durable", "modified_ms", "size")

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = bytearray(durable)
        self.size = len(durable)
        self.dirty: set[int] = set()  # numbers of pages
        self.dropped: set[int] = set()  # pages that the kernel could not write and takes for clean
        self.cut_to: int | None = None  # the smallest size since the last sync, if it was cut
        self.modified_ms = 0
        self.content: bytes | None = None  # once it has no name and no reader in the file system

    @property
    def is_clean(self) -> bool:
        return not self.dirty and self.cut_to is None and self.size == len(self.durable)

    def wrote(self, position: int, size_bytes: int) -> None:
        end = position + size_bytes
        pages = range(position // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES)
        self.dirty.update(pages)
        self.dropped.difference_update(pages)
        self.size = max(self.size, end)

    def cut(self, size: int) -> None:
        if size < self.size:
            self.cut_to = size if self.cut_to is None else min(self.cut_to, size)
            pages = (size + PAGE_BYTES - 1) // PAGE_BYTES
            self.dirty = {page for page in self.dirty if page < pages}
        self.size = size

    def sync(self, content: bytes) -> None:
        """Make `content` durable, apart from pages that an earlier sync failed to write."""
        durable = self.durable
        del durable[self.size if self.cut_to is None else self.cut_to :]
        durable.extend(bytes(self.size - len(durable)))
        for page in self.dirty:
            start = page * PAGE_BYTES
            durable[start : start + PAGE_BYTES] = content[start : start + PAGE_BYTES]
        self.dirty.clear()
        self.cut_to = None

    def fail_to_sync(self) -> None:
        """The kernel takes the pages for clean from now on, as Linux does, and they are not on the disk."""
        self.dropped |= self.dirty
        self.dirty.clear()
        self.cut_to = None

    def evict_dropped(self, content: bytes) -> bytes:
        """What a reader gets once the pages that could not be written have left the page cache."""
        left = bytearray(content)
        for page in self.dropped:
            start, end = page * PAGE_BYTES, min((page + 1) * PAGE_BYTES, self.size)
            on_disk = self.durable[start:end]
            left[start:end] = on_disk + bytes(max(end - start, 0) - len(on_disk))
        self.dropped.clear()
        return bytes(left)

    def after_power_loss(self, content: bytes, rng: Random | None) -> bytes:
        """What is left of `content`; without `rng` only what was synced."""
        if rng is None or self.is_clean:
            return bytes(self.durable)
        fate = rng.random()
        if fate < 0.2:
            return content
        if self.cut_to is not None and fate < 0.5:
            return bytes(self.durable)  # neither the cut nor what followed it
        kept = self.durable if self.cut_to is None else self.durable[: self.cut_to]
        return self._torn(bytes(kept), content, rng)

    def _torn(self, kept: bytes, content: bytes, rng: Random) -> bytes:
        size = rng.choice(
            (len(kept), self.size, self.size, rng.randint(min(len(kept), self.size), self.size))
        )
        left = bytearray(kept[:size])
        left.extend(bytes(size - len(left)))
        share = rng.choice((0.0, 0.5, 0.9))
        for page in sorted(self.dirty):
            start = page * PAGE_BYTES
            end = min(start + PAGE_BYTES, size)
            if start >= size:
                break
            if rng.random() < share:
                end = rng.choice((end, end, min(end, start + _sectors(rng))))
                left[start:end] = content[start:end]
            elif rng.random() < _GARBAGE and end > len(kept):
                start = max(start, len(kept))
                left[start:end] = rng.randbytes(end - start)
        return bytes(left)


def _sectors(rng: Random) -> int:
    return rng.randint(1, PAGE_BYTES // _SECTOR_BYTES) * _SECTOR_BYTES


class Folder:
    """A directory: its names, and those of them that are durable."""

    __slots__ = ("durable", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = File | Folder
Change = tuple[tuple[Folder, str, Node | None], ...]  # of names, all at once


class Faults:
    """What goes wrong with a disk, until it is healed. `has_failed`: an error that ends a data directory was raised."""

    are_off: ClassVar[bool] = False  # while the simulation looks at files
    is_in_worker: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)

    __slots__ = (
        "_given",
        "bad_reads",
        "bad_syncs",
        "bad_writes",
        "free_bytes",
        "free_descriptors",
        "has_failed",
        "is_read_only",
        "on_failure",
        "sync_error",
    )

    def __init__(self) -> None:
        self.free_bytes: int | None = None  # None: ample
        self.free_descriptors: int | None = None  # of the process; None: ample
        self._given = 0
        self.bad_reads = 0  # so many of the next calls fail
        self.bad_writes = 0
        self.bad_syncs = 0
        self.sync_error = errno.EIO
        self.is_read_only = False
        self.has_failed = False
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def is_sound(self) -> bool:
        """Whether nothing has failed, or is about to."""
        pending = self.bad_reads or self.bad_writes or self.bad_syncs or self.is_read_only
        return not (self.has_failed or pending)

    def check_read(self) -> None:
        if self.bad_reads and not Faults.are_off:
            self.bad_reads -= 1
            self._fail(errno.EIO)

    def check_sync(self) -> None:
        if self.bad_syncs:
            self.bad_syncs -= 1
            self._fail(self.sync_error)

    def check_change(self) -> None:
        """Before any change of a file or a name."""
        if self.is_read_only:
            self._fail(errno.EROFS)
        if self.bad_writes:
            self.bad_writes -= 1
            self._fail(errno.EIO)

    def _fail(self, number: int) -> NoReturn:
        self.has_failed = True
        # A small file that cannot be synced for lack of room is written anew later, and compaction is tried again.
        if number not in NO_ROOM and not Faults.is_in_worker():
            self.on_failure()
        raise os_error(number)

    def check_room(self) -> None:
        """Before a new name: it needs room in its directory."""
        if self.free_bytes is not None and self.free_bytes <= 0:
            raise os_error(errno.ENOSPC)

    def take_room(self, wanted_bytes: int) -> int:
        """As much of it as there is."""
        if self.free_bytes is None:
            return wanted_bytes
        given = min(wanted_bytes, self.free_bytes)
        self.free_bytes -= given
        return given

    def give_room(self, size_bytes: int) -> None:
        if self.free_bytes is not None:
            self.free_bytes += size_bytes

    def take_descriptor(self) -> None:
        if self.free_descriptors is not None:
            if self.free_descriptors <= 0 and not Faults.are_off:
                raise os_error(errno.EMFILE)
            self.free_descriptors -= 1

    def give_descriptor(self) -> None:
        """Connections take the greater part of what is given back, while there are few."""
        if self.free_descriptors is not None:
            self._given += 1
            if self._given % _SHARED_BY == 0:
                self.free_descriptors += 1


@contextmanager
def without_faults() -> Iterator[None]:
    """While the simulation itself reads files."""
    before, Faults.are_off = Faults.are_off, True
    try:
        yield
    finally:
        Faults.are_off = before


class SimDisk:
    """One machine's: a tree of files that mirrors the real ones below `root`, and what of it is durable.

    `syscalls.py` reports every call to it.
    """

    def __init__(self, root: str, now_ms: Callable[[], int]) -> None:
        self.root = root
        self.faults = Faults()
        self.lock_fd = -1  # that was opened last
        self.run = 0  # of the process that uses it: descriptors of earlier ones are closed
        self.before_call: Callable[[bool], None] = _nothing  # whether the call changes something
        self.now_ms = now_ms
        self._tree = Folder()
        self._changes: list[Change] = []  # of names, that are not durable

    @property
    def free_bytes(self) -> int:
        free = self.faults.free_bytes
        return _AMPLE_BYTES if free is None else free

    def restart(self) -> None:
        """Another process."""
        self.run += 1
        self._let_go_of_lock()
        if self.faults.free_descriptors is not None:
            self.faults.free_descriptors += _OF_A_PROCESS

    def _let_go_of_lock(self) -> None:
        """As the kernel does for a process that ended; also if that was before it knew that it had the lock."""
        with suppress(OSError):
            held, lock = os.fstat(self.lock_fd), os.stat(f"{self.root}/{LOCK}")
            if os.path.samestat(held, lock):  # else the number is another file's by now
                os.close(self.lock_fd)
        self.lock_fd = -1

    def evict(self) -> None:
        """Let go of pages that could not be written: whoever reads them gets what is on the disk."""
        for path, file in _files(self._tree, self.root):
            if file.dropped:
                left = file.evict_dropped(_read(path))
                with open(path, "r+b") as real:
                    real.write(left)

    # Names -----------------------------------------------------------------------------------------

    def node(self, path: str) -> Node | None:
        found: Node | None = self._tree
        for name in self._parts(path):
            if not isinstance(found, Folder):
                return None
            found = found.names.get(name)
        return found

    def _parts(self, path: str) -> list[str]:
        return [part for part in path[len(self.root) :].split("/") if part]

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = path.rpartition("/")
        folder = self.node(parent)
        assert isinstance(folder, Folder), f"{parent} is a directory"
        return folder, name

    def made(self, path: str, node: Node) -> None:
        self._change((*self._place(path), node))

    def removed(self, path: str) -> None:
        self._change((*self._place(path), None))

    def renamed(self, before: str, after: str) -> None:
        node = self.node(before)
        self._change((*self._place(before), None), (*self._place(after), node))

    def _change(self, *change: tuple[Folder, str, Node | None]) -> None:
        for folder, name, node in change:
            if node is None:
                del folder.names[name]
            else:
                folder.names[name] = node
        self._changes.append(change)

    def sync_folder(self, folder: Folder) -> None:
        """Make its names durable, and those elsewhere that had to change before them."""
        wanted, chosen, left = {id(folder)}, list[Change](), list[Change]()
        for change in reversed(self._changes):
            folders = {id(it) for it, _, _ in change}
            if wanted.isdisjoint(folders):
                left.append(change)
            else:
                wanted |= folders
                chosen.append(change)
        for change in reversed(chosen):
            _apply(change)
        self._changes = left[::-1]

    # Loss of power -----------------------------------------------------------------------------------

    def lose_power(self, rng: Random | None) -> None:
        """What was not synced is lost as `rng` has it; without one, all of it."""
        contents = {file: _read(path) for path, file in _files(self._tree, self.root)}
        for change in self._surviving(rng):
            _apply(change)
        self._changes.clear()
        _remove_all(self._tree, self.root)
        self._tree = self._rebuilt(self._tree, self.root, contents, rng)

    def _surviving(self, rng: Random | None) -> Iterator[Change]:
        """Of the names in each directory those that changed before some moment."""
        if rng is None:
            return
        lost = rng.choice((0.0, 0.1, 0.5))
        ended: list[Folder] = []
        for change in self._changes:
            folders = [it for it, _, _ in change]
            is_after = any(it is one for it in folders for one in ended)
            if is_after or rng.random() < lost:
                ended += folders
            else:
                yield change

    def _rebuilt(
        self, before: Folder, path: str, contents: dict[File, bytes], rng: Random | None
    ) -> Folder:
        after = Folder()
        for name, node in sorted(before.durable.items(), key=_name_of):
            if isinstance(node, Folder):
                _mkdir(f"{path}/{name}")
                after.names[name] = self._rebuilt(node, f"{path}/{name}", contents, rng)
            else:
                content = contents.get(node, node.content) or b""
                left = node.after_power_loss(content, rng)
                with open(f"{path}/{name}", "wb") as file:
                    file.write(left)
                after.names[name] = File(left)
        after.durable = dict(after.names)
        return after


def _nothing(_changes: bool) -> None:
    """Before a system call."""


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _apply(change: Change) -> None:
    for folder, name, node in change:
        if node is None:
            folder.durable.pop(name, None)
        else:
            folder.durable[name] = node


def _name_of(item: tuple[str, Node]) -> str:
    return item[0]


def _files(folder: Folder, path: str) -> Iterator[tuple[str, File]]:
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            yield from _files(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", node


def _remove_all(folder: Folder, path: str) -> None:
    for name, node in folder.names.items():
        if isinstance(node, Folder):
            _remove_all(node, f"{path}/{name}")
            _rmdir(f"{path}/{name}")
        else:
            _unlink(f"{path}/{name}")


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
