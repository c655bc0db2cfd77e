"""A checkpoint belongs to one job: a file in it says whose it is, and any other job is refused with what differs."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

from penstock.spark.errors import JobError

FILE_NAME: Final = "penstock.json"
_VERSION: Final = 1
_REMEDY: Final = "give another --checkpoint, or delete that one to begin anew"
_SHOWN: Final = 3  # names
_OF_DISKS: Final = "lost+found"  # where one is mounted
_SPARKS_OWN: Final = ("metadata", "offsets", "commits", "sources", "state")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Everything that, when it changes, makes what a checkpoint remembers wrong."""

    job: str
    topics: tuple[str, ...]  # or one pattern
    cluster_id: str
    options: Mapping[str, str]  # format, schema, target …; not what may change from run to run

    def facts(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "job": self.job,
            "topics": sorted(self.topics),
            "cluster": self.cluster_id,
            "options": dict(sorted(self.options.items())),
        }


class Directory(Protocol):
    """As much of a file system as this needs."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> str: ...

    def create(self, name: str, text: str) -> None:
        """Whole, and only if it is not there yet."""


def claim(place: str, identity: Identity, session: Any = None) -> None:
    """Makes the checkpoint at `place` this job's, or raises JobError if it is another's.

    `session`: needed where `place` is not on this machine's file system.
    """
    directory = open_directory(place, session)
    if not _is_continued(place, directory, identity):
        directory.create(FILE_NAME, json.dumps(identity.facts(), indent=1) + "\n")


def check(place: str, identity: Identity, session: Any = None) -> bool:
    """As `claim`, but changes nothing; whether the checkpoint exists. For --dry-run."""
    return _is_continued(place, open_directory(place, session), identity)


def _is_continued(place: str, directory: Directory, identity: Identity) -> bool:
    """False: it is new. JobError if somebody else has it, or if it holds something else, such as a table."""
    names = directory.names()
    if FILE_NAME in names:
        _compare(place, _read(place, directory.read(FILE_NAME)), identity.facts())
        return True
    if found := [name for name in _SPARKS_OWN if name in names]:
        raise JobError(
            f"checkpoint {place} has {', '.join(found)} but no {FILE_NAME}: a query of Spark's that is "
            f"no job of Penstock made it; {_REMEDY}"
        )
    if others := [name for name in names if not name.startswith(".") and name != _OF_DISKS]:
        more = " …" * (len(others) > _SHOWN)
        raise JobError(
            f"{place} is no checkpoint: it has {', '.join(others[:_SHOWN])}{more}; "
            "give --checkpoint a directory of its own"
        )
    return False


def open_directory(place: str, session: Any = None) -> Directory:
    parts = urlsplit(place)
    if parts.scheme in ("", "file"):
        return LocalDirectory(Path(unquote(parts.path) if parts.scheme else place))
    if session is None:
        raise JobError(f"checkpoint {place} can only be looked at by a running Spark")
    return HadoopDirectory(place, session)


def _compare(place: str, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    has, needs = _flat(found), _flat(wanted)
    names = [*needs, *(name for name in has if name not in needs)]
    differences = [
        f"{name} {_shown(has.get(name))} instead of {_shown(needs.get(name))}"
        for name in names
        if has.get(name) != needs.get(name)
    ]
    if differences:
        raise JobError(
            f"checkpoint {place} is not this job's: it has {', '.join(differences)}; {_REMEDY}"
        )


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    options = facts.get("options", {})
    return {name: value for name, value in facts.items() if name != "options"} | dict(options)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "nothing" if value is None else str(value)


def _read(place: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise JobError(f"checkpoint {place}: {FILE_NAME} is damaged; {_REMEDY}")
    return found


class LocalDirectory:
    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self._path.iterdir()) if self._path.is_dir() else []

    def read(self, name: str) -> str:
        return (self._path / name).read_text()

    def create(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        unfinished = self._path / f".{name}.new"
        unfinished.write_text(text)
        os.link(unfinished, self._path / name)  # unlike a rename, it never replaces
        unfinished.unlink()


class HadoopDirectory:
    """Any file system that Spark can reach: hdfs, s3a, …"""

    def __init__(self, place: str, session: Any) -> None:
        hadoop: Any = session._jvm.org.apache.hadoop.fs
        self._path = hadoop.Path(place)
        self._files = self._path.getFileSystem(session._jsc.hadoopConfiguration())
        self._child: Callable[[str], Any] = lambda name: hadoop.Path(self._path, name)
        self._io = session._jvm.org.apache.commons.io.IOUtils
        self._utf8 = session._jvm.java.nio.charset.StandardCharsets.UTF_8

    def names(self) -> list[str]:
        if not self._files.exists(self._path):
            return []
        return sorted(
            str(status.getPath().getName()) for status in self._files.listStatus(self._path)
        )

    def read(self, name: str) -> str:
        stream = self._files.open(self._child(name))
        try:
            return str(self._io.toString(stream, self._utf8))
        finally:
            stream.close()

    def create(self, name: str, text: str) -> None:
        stream = self._files.create(self._child(name), False)
        try:
            stream.write(text.encode())
        finally:
            stream.close()
