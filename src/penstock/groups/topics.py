"""The topics of the cluster, as groups see them: names, ids, partition counts, and what a pattern matches."""

from collections.abc import Iterable
from typing import NamedTuple

from penstock.groups.patterns import Pattern
from penstock.model.ids import TopicId

_PATTERNS_KEPT = 256  # whose matches are remembered


class TopicShape(NamedTuple):
    id: TopicId
    partition_count: int


class Topics:
    """`version` grows with every change that can concern a group, and with no other."""

    __slots__ = ("_by_id", "_by_name", "_matches", "version")

    def __init__(self) -> None:
        self.version = 0
        self._by_name: dict[str, TopicShape] = {}
        self._by_id: dict[bytes, str] = {}
        self._matches: dict[str, tuple[int, frozenset[str]]] = {}

    def put(self, name: str, topic_id: TopicId, partition_count: int) -> None:
        shape = TopicShape(topic_id, partition_count)
        known = self._by_name.get(name)
        if known == shape:
            return
        if known is not None:
            self._by_id.pop(known.id, None)
        self._by_name[name] = shape
        self._by_id[topic_id] = name
        self.version += 1

    def drop(self, name: str) -> None:
        shape = self._by_name.pop(name, None)
        if shape is not None:
            self._by_id.pop(shape.id, None)
            self.version += 1

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> TopicShape | None:
        return self._by_name.get(name)

    def id_of(self, name: str) -> TopicId | None:
        shape = self._by_name.get(name)
        return None if shape is None else shape.id

    def partition_count(self, name: str) -> int:
        """None of a topic that is not there."""
        shape = self._by_name.get(name)
        return 0 if shape is None else shape.partition_count

    def name_of(self, topic_id: bytes) -> str | None:
        return self._by_id.get(topic_id)

    def names(self) -> Iterable[str]:
        return self._by_name.keys()

    def matching(self, pattern: Pattern) -> frozenset[str]:
        """The topics whose whole name the pattern matches; looked for once per version."""
        known = self._matches.get(pattern.text)
        if known is not None and known[0] == self.version:
            return known[1]
        found = frozenset(name for name in self._by_name if pattern.matches(name))
        if len(self._matches) >= _PATTERNS_KEPT:
            self._matches.clear()
        self._matches[pattern.text] = (self.version, found)
        return found
