"""Represent the state of a link to a cluster without mirror mode.

The state says which topic each copy belongs to, how far it is, and which offset is where. It is
stored in a compacted topic of the target, and written in the transactions that copy records: so it
is never ahead of them, and never behind. Keys and values are JSON.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.spark.jobs.mirror.names import LINK_LOG_PREFIX
from penstock.spark.jobs.mirror.translate.offset_map import OffsetMap, Row

_CLAIM: Final = "claim"
_MAP: Final = "map"

Entry = tuple[bytes, bytes | None]  # of the topic: key, and value or nothing any more


def log_name(source_id: str) -> str:
    return f"{LINK_LOG_PREFIX}{source_id}"


class Claim(NamedTuple):
    """Which topic of the source one of the target's gets its records from."""

    source: str
    source_id: str  # in hexadecimal: a topic that was created anew is another one
    is_merged: bool = False  # the target has records of its own there
    promoted_at_ms: int = 0  # 0: it is copied to

    @property
    def is_promoted(self) -> bool:
        return self.promoted_at_ms > 0


class Copy(NamedTuple):
    """A partition of the target; a topic that was created anew there begins from nothing."""

    topic: str
    topic_id: str  # in hexadecimal
    partition: int


class LinkState:
    """What the topic of a link has told so far."""

    def __init__(self) -> None:
        self.next_offset = 0  # of that topic
        self.claims: dict[str, Claim] = {}  # by the target's topic
        self.maps: dict[Copy, OffsetMap] = {}

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record of the topic. What a later version wrote, and this one does not know, is left out."""
        match json.loads(key):
            case ["claim", str(topic)]:
                if value is None:
                    self.claims.pop(topic, None)
                else:
                    self.claims[topic] = Claim(**json.loads(value))
            case ["map", str(topic), str(topic_id), int(partition), int(number)]:
                self.map_of(Copy(topic, topic_id, partition)).put(number, value)
            case _:
                pass

    def map_of(self, copy: Copy) -> OffsetMap:
        return self.maps.setdefault(copy, OffsetMap())

    def position(self, copy: Copy) -> int | None:
        found = self.maps.get(copy)
        return None if found is None else found.position

    def marks(self, copy: Copy) -> dict[int, int]:
        found = self.maps.get(copy)
        return {} if found is None else found.marks


def claim_entry(topic: str, claim: Claim) -> Entry:
    return _json([_CLAIM, topic]), _json(claim._asdict())


def map_entries(
    state: LinkState, copy: Copy, rows: Iterable[Row], next_offset: int, marks: Mapping[int, int]
) -> list[Entry]:
    """Rows that were copied, up to where, and by what the source is known again (see mirror/divergence.py)."""
    chunks = state.map_of(copy).extended(rows, next_offset, marks)
    return [(_map_key(copy, number), data) for number, data in chunks.items()]


def dead_entries(state: LinkState, starts: Mapping[Copy, int], *, at_most: int) -> list[Entry]:
    """What need not be known any more: of records that retention took (`starts`: of the target), and of topics that are gone."""
    alive = {(copy.topic, copy.topic_id) for copy in starts}
    names = {copy.topic for copy in starts}
    found: list[Entry] = []
    for copy, known in state.maps.items():
        if copy in starts:
            found += [(_map_key(copy, number), None) for number in known.dead(starts[copy])]
        elif copy.topic in names and (copy.topic, copy.topic_id) not in alive:
            found += [(_map_key(copy, number), None) for number in known.numbers()]
        if len(found) >= at_most:
            break
    return found[:at_most]


def _map_key(copy: Copy, number: int) -> bytes:
    return _json([_MAP, *copy, number])


def _json(facts: Any) -> bytes:
    return json.dumps(facts, separators=(",", ":")).encode()
