"""What compaction must keep: of each key the latest committed record, at its offset, in order; and tombstones for a while.

`Pass` is one reading from the log start to some end. Whether a record was the latest is known only later, from all
that was ever acknowledged or read: passes are judged in the end.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.records.record import Record
from tests.simulation.clients.keyed import ID, Written
from tests.support.checker import Outcome


class Version(NamedTuple):
    """A record of a key."""

    offset: int
    name: str
    is_tombstone: bool


@dataclass
class Pass:
    """A reading from the start; `seen` has the last offset of each key, `end` is where it ended."""

    reader: str
    begun_s: float
    seen: dict[bytes, int] = field(default_factory=dict)
    end: int = 0
    ended_s: float = 0.0


class Truth:
    """All versions of all keys that are known to be committed."""

    def __init__(self) -> None:
        self.versions: dict[int, tuple[bytes, Version]] = {}  # by offset
        self.acked_s: dict[int, float] = {}
        self.aborted: set[str] = set()
        self.problems: list[str] = []

    def read(self, record: Record) -> None:
        """A reader of committed records got this."""
        self._add(record.offset, record.key or b"", name_of(record), record.value is None)

    def told(self, written: Written) -> None:
        """What the producer knows in the end."""
        if written.outcome is Outcome.FAILED:
            self.aborted.add(written.name)
        elif written.outcome is Outcome.DONE and written.offset is not None:
            self.acked_s[written.offset] = written.acked_s
            self._add(written.offset, written.key, written.name, written.value is None)

    def _add(self, offset: int, key: bytes, name: str, is_tombstone: bool) -> None:
        found = key, Version(offset, name, is_tombstone)
        known = self.versions.setdefault(offset, found)
        if known != found:
            self.problems.append(f"offset {offset} is {known[1].name} and {name}")

    def check(self, passes: list[Pass], tombstones_kept_s: float) -> Iterator[str]:
        yield from self.problems
        for offset, (_, version) in self.versions.items():
            if version.name in self.aborted:
                yield f"{version.name} at {offset} was read, and aborted"
        by_key: defaultdict[bytes, list[Version]] = defaultdict(list)
        for _, (key, version) in sorted(self.versions.items()):
            by_key[key].append(version)
        for one in passes:
            for key, versions in by_key.items():
                yield from self._check_key(one, key, versions, tombstones_kept_s)

    def _check_key(
        self, one: Pass, key: bytes, versions: list[Version], kept_s: float
    ) -> Iterator[str]:
        below = [it for it in versions if it.offset < one.end]
        if not below or versions[-1].offset >= one.end:
            return  # not there yet, or superseded while the reader was on its way
        latest, seen = below[-1], one.seen.get(key)
        if seen == latest.offset:
            return
        what = f"{one.reader} read up to {one.end}, of {key!r} {seen} and not {latest}"
        acked_s = self.acked_s.get(latest.offset)
        if not latest.is_tombstone:
            yield what
        elif acked_s is not None and one.ended_s - acked_s < kept_s:
            yield f"{what}, a tombstone of {one.ended_s - acked_s:.1f} s before"
        elif seen is not None and one.ended_s - one.begun_s < kept_s:
            yield f"{what}: its tombstone went before it"


def name_of(record: Record) -> str:
    return next((value or b"" for name, value in record.headers if name == ID), b"").decode()
