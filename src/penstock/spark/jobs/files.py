"""Access the file systems of tables and checkpoints: local files, or any file system of Spark's.

Every operation may be repeated after a crash. Python handles local files: it can create a file
atomically, only if it is absent, and make it durable. Spark's own classes reach all other file
systems (hdfs, s3a, …).
"""

import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from penstock.spark.errors import JobError


class Stored(NamedTuple):
    path: str  # below the directory that was asked for
    size_bytes: int


class Files(Protocol):
    def exists(self, path: str) -> bool: ...

    def names(self, directory: str) -> list[str]:
        """Sorted; none if there is no such directory."""

    def walk(self, directory: str) -> list[Stored]:
        """Every visible file of data below a directory, sorted."""

    def read(self, path: str) -> str: ...

    def create(self, path: str, text: str) -> bool:
        """Whole, and only if it is not there yet: False if it was."""

    def move(self, source: str, target: str) -> None:
        """Nothing, if it was moved before."""

    def delete(self, path: str) -> None:
        """With all that is in it; nothing, if it is gone."""

    def sync(self, path: str) -> None:
        """The file outlives a loss of power."""


def normal(place: str) -> str:
    """One spelling for each place: an absolute path for this machine's files, else a URL."""
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return os.path.abspath(unquote(parts.path) if parts.scheme else place)
    return place.rstrip("/")


def is_local(place: str) -> bool:
    return place.startswith("/")


def for_spark(place: str) -> str:
    """Spark may have another file system as its default."""
    return f"file:{place}" if is_local(place) else place


def open_files(place: str, session: Any) -> Files:
    return LocalFiles() if is_local(place) else HadoopFiles(place, session)


class LocalFiles:
    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def names(self, directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except FileNotFoundError:
            return []

    def walk(self, directory: str) -> list[Stored]:
        found = []
        for folder, below, names in os.walk(directory):
            below[:] = [name for name in below if _is_visible(name)]
            paths = [os.path.join(folder, name) for name in names if _is_visible(name)]
            found += [Stored(os.path.relpath(p, directory), os.path.getsize(p)) for p in paths]
        return sorted(found)

    def read(self, path: str) -> str:
        return Path(path).read_text()

    def create(self, path: str, text: str) -> bool:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        unfinished = _unfinished(path)
        Path(unfinished).write_text(text)
        self.sync(unfinished)
        try:
            os.link(unfinished, path)  # unlike a rename, it never replaces
        except FileExistsError:
            return False
        finally:
            os.unlink(unfinished)
        _sync(os.path.dirname(path))
        return True

    def move(self, source: str, target: str) -> None:
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        try:
            os.rename(source, target)
        except FileNotFoundError:
            return
        _sync(folder)

    def delete(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        _sync(path)


class HadoopFiles:
    """Any file system that Spark can reach. Used by the driver alone."""

    def __init__(self, place: str, session: Any) -> None:
        self._hadoop: Any = session._jvm.org.apache.hadoop.fs
        conf = session._jsc.hadoopConfiguration()
        root = self._path(place)
        self._files = root.getFileSystem(conf)
        self._context = self._hadoop.FileContext.getFileContext(root.toUri(), conf)
        self._io = session._jvm.org.apache.commons.io.IOUtils
        self._utf8 = session._jvm.java.nio.charset.StandardCharsets.UTF_8
        gateway = session.sparkContext._gateway
        self._no_options = gateway.new_array(self._hadoop.Options.Rename, 0)

    def exists(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def names(self, directory: str) -> list[str]:
        path = self._path(directory)
        if not self._files.exists(path):
            return []
        return sorted(str(found.getPath().getName()) for found in self._files.listStatus(path))

    def walk(self, directory: str) -> list[Stored]:
        path = self._path(directory)
        if not self._files.exists(path):
            return []
        found = []
        for status in self._files.listStatus(path):
            name = str(status.getPath().getName())
            if not _is_visible(name):
                continue
            if status.isDirectory():
                below = self.walk(f"{directory}/{name}")
                found += [stored._replace(path=f"{name}/{stored.path}") for stored in below]
            else:
                found.append(Stored(name, int(status.getLen())))
        return sorted(found)

    def read(self, path: str) -> str:
        stream = self._files.open(self._path(path))
        try:
            return str(self._io.toString(stream, self._utf8))
        finally:
            stream.close()

    def create(self, path: str, text: str) -> bool:
        if self.exists(path):
            return False
        unfinished = self._path(_unfinished(path))
        stream = self._files.create(unfinished, False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
        try:
            self._context.rename(unfinished, self._path(path), self._no_options)
        except Exception:
            if self.exists(path):
                return False
            raise
        return True

    def move(self, source: str, target: str) -> None:
        if not self.exists(source):
            return
        if self.exists(target):  # a store that renames by copying was interrupted
            self.delete(source)
            return
        self._files.mkdirs(self._path(target).getParent())
        if not self._files.rename(self._path(source), self._path(target)) and self.exists(source):
            raise JobError(f"{source} could not be renamed to {target}; run the job again")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), True)

    def sync(self, path: str) -> None:
        """Whoever closed it on such a file system has made it durable."""

    def _path(self, path: str) -> Any:
        return self._hadoop.Path(path)


def _unfinished(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}.{uuid.uuid4().hex}.new"


def _is_visible(name: str) -> bool:
    """As Spark and most readers of directories see it."""
    return not name.startswith(("_", "."))


def _sync(path: str) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
