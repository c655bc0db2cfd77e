"""Making a log durable in three steps, so that the event loop never waits for the disk.

`Log.flush_begin` on the loop, `FlushTicket.sync` in a thread, `Log.flush_end` on the loop.
"""

import os
from collections.abc import Sequence

from penstock.model.errors import DiskFull, StorageFault
from penstock.storage.files import TOO_MANY_OPEN, Handle, OpenFiles, SegmentFile, refuse
from penstock.storage.segment import Segment


class FlushTicket:
    """What was not durable when a flush began. Its descriptors stay open until it is gone."""

    __slots__ = (
        "_directories",
        "_disk",
        "_handles",
        "_paths",
        "_syncs",
        "is_complete",
        "missing",
        "next_offset",
        "size_bytes",
        "truncations",
    )

    def __init__(
        self, files: OpenFiles, next_offset: int, size_bytes: int, truncations: int
    ) -> None:
        self._disk = files.disk
        self._syncs = files.syncs
        self._handles: list[tuple[Handle, str]] = []
        self._paths: list[str] = []
        self._directories: list[str] = []
        self.next_offset = next_offset  # all below it is durable after `sync`
        self.size_bytes = size_bytes
        self.truncations = truncations
        self.is_complete = True  # no file had to be left for the next flush
        self.missing: str | None = None  # a directory that was not there any more

    def add_files(self, files: list[SegmentFile]) -> None:
        self._handles += [(file.open(), file.path) for file in files]

    def add_names(self, paths: list[str], directories: list[str]) -> None:
        """Files that grow no more, and the directories whose names changed."""
        self._paths += reversed(paths)  # `sync` begins at the end
        self._directories += reversed(directories)

    @property
    def left(self) -> tuple[list[str], list[str]]:
        """Files that grow no more, and directories, that `sync` has not reached."""
        return self._paths, self._directories

    def sync(self) -> None:
        """For a thread. A StorageFault is final: after a sync that failed nobody knows what is on the disk.

        After OutOfResources nothing that is left was tried: call it again, or give the rest back with
        `Log.flush_put_off`. Until then nothing of the ticket counts as durable.
        """
        path = ""
        try:
            for handle, path in self._handles:
                with self._syncs.of(path):
                    self._disk.fdatasync(handle.fd)
            self._handles = []
            while self._paths:
                path = self._paths[-1]
                self._sync_path(path)
                self._paths.pop()
            while self._directories:
                path = self._directories[-1]
                self._sync_directory(path)
                self._directories.pop()
        except OSError as error:
            raise StorageFault(f"{path}: cannot be made durable: {error.strerror}") from error

    def _sync_path(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return  # replaced again or removed since: the next flush has it
        except OSError as error:
            refuse(error, f"{path}: cannot be opened to be made durable")
        try:
            self._disk.opened(fd, path)
            with self._syncs.of(path):
                self._disk.fdatasync(fd)
        finally:
            os.close(fd)

    def _sync_directory(self, path: str) -> None:
        try:
            with self._syncs.of(path):
                self._disk.fsync_directory(path)
        except FileNotFoundError:
            # with its topic, which was deleted meanwhile; else `flush_end` objects
            self.missing = path
        except OSError as error:
            if error.errno in TOO_MANY_OPEN:  # only opening it fails with these
                refuse(error, f"{path}: cannot be opened to be made durable")
            raise


class Unsynced:
    """What of a log beside the active segment may not be on the disk yet."""

    __slots__ = ("_names_changed", "_paths", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments  # closed, or truncated, since the last flush
        self._paths: list[str] = []
        self._names_changed = True  # those that an earlier run gave may not be durable either

    def add_segment(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._names_changed = True

    def add_path(self, path: str) -> None:
        self._paths.append(path)
        self._names_changed = True

    def keep(self, segments: Sequence[Segment]) -> None:
        """Only these are still of the log."""
        self._segments = [segment for segment in self._segments if segment in segments]
        self._names_changed = True

    def take_back(self, ticket: FlushTicket) -> None:
        """What a flush has not reached is part of the next one."""
        paths, directories = ticket.left
        self._paths += reversed(paths)
        self._names_changed = self._names_changed or bool(paths or directories)

    def fill(self, ticket: FlushTicket, active: Segment, directories: list[str]) -> None:
        """Hand all of it to a flush. The batches always: only indexes that there is no room to write down are left
        for the next one. Files of closed segments are opened one after the other: there may be more than descriptors."""
        left, paths = [], list(self._paths)
        for segment in self._segments:
            if segment is active:
                continue
            paths.append(segment.file.path)
            try:
                paths += [file.path for file in segment.seal()]
            except DiskFull:
                left.append(segment)
        try:
            ticket.add_files([active.file, *active.save_indexes()])
        except DiskFull:
            ticket.add_files([active.file])
            ticket.is_complete = False
        if left:
            ticket.is_complete = False
        ticket.add_names(paths, directories if self._names_changed else [])
        self._segments, self._paths, self._names_changed = left, [], False
