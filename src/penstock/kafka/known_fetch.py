"""Fetches of one topic that a connection sends again and again: all but their partitions is decoded, and looked up, once.

Readers without sessions (librdkafka and what is built on it) name every partition in each request, in changing order. The
second request in a row for a topic is taken to pieces: what comes before its partitions, and what comes after them. While
those stay, the next ones are read as a list of numbers, and partitions keep what was found for them. Anything else is a
new request, decoded as ever. The benchmark is `compare`, its rows that consume.
"""

from struct import Struct, pack
from typing import Final, NamedTuple

from penstock.kafka.fetch_sessions import (
    NO_REPLICA,
    FetchPartition,
    is_without_session,
    replica_of,
)
from penstock.wire.header import RequestHeader
from penstock.wire.messages.fetch import FetchRequest


class _Form(NamedTuple):
    """How partitions are written: their number, and of each its index, leader epoch, offset and limit."""

    number: Struct
    none: int  # the number that says that there are none
    most: int  # others are decoded
    entry: Struct
    tags_at: int | None  # in an entry: how many tagged fields follow


_MOST_INDEXES: Final = 1000  # of which something is remembered
_FRONT: Final = Struct(">hhi")  # api, version, correlation id
_PLAIN: Final = _Form(Struct(">i"), 0, _MOST_INDEXES, Struct(">iiq8xi"), None)
_FLEXIBLE: Final = _Form(Struct(">B"), 1, 126, Struct(">iiq12xix"), 32)  # a varint of one byte
_PLAIN_FROM: Final = 9
_FLEXIBLE_FROM: Final = 12
_OFFSET_AT: Final = 8  # in an entry of either form
_MARK: Final = 0x5EED_0FF5_E700_0001  # in the place of the first offset, to find it


class KnownFetch:
    """Of one connection, which takes a fetch only when the last one is answered: so they may share what they want."""

    __slots__ = (
        "_after",
        "_before",
        "_by_index",
        "_form",
        "_header",
        "_last_topic",
        "request",
        "wanted",
    )

    def __init__(self) -> None:
        self.request = FetchRequest()
        self.wanted: list[FetchPartition] = []  # by the request that was just recognised
        self._header = RequestHeader(-1, -1, -1, None)
        self._form: _Form | None = None  # None: nothing is known
        self._before = self._after = b""  # what surrounds number and partitions
        self._by_index: dict[int, FetchPartition] = {}
        self._last_topic: tuple[str, bytes] = ("", b"")  # of the last one that was not recognised

    def recognise(self, frame: memoryview) -> RequestHeader | None:
        """The header, if this is the known request but for its partitions, which are in `wanted` then."""
        form, before, after = self._form, self._before, self._after
        number_at = _FRONT.size + len(before)
        if form is None or len(frame) < number_at + form.number.size + len(after):
            return None
        api_key, version, correlation_id = _FRONT.unpack_from(frame)
        known, end = self._header, len(frame) - len(after)
        if (
            version != known.api_version
            or api_key != known.api_key
            or frame[_FRONT.size : number_at] != before
            or frame[end:] != after
        ):
            return None
        count = form.number.unpack_from(frame, number_at)[0] - form.none
        entries = frame[number_at + form.number.size : end]
        if not 0 < count <= form.most or not self._read(form, count, entries):
            return None
        return RequestHeader(api_key, version, correlation_id, known.client_id)

    def _read(self, form: _Form, count: int, entries: memoryview) -> bool:
        """Whether that is what is there, and nothing else."""
        if len(entries) != count * form.entry.size:
            return False
        if form.tags_at is not None and any(entries[form.tags_at :: form.entry.size]):
            return False
        by_index = self._by_index
        found: dict[int, FetchPartition] = {}
        for index, leader_epoch, offset, max_bytes in form.entry.iter_unpack(entries):
            wanted = by_index.get(index)
            if wanted is None:
                wanted = by_index[index] = self._new(index)
            wanted.leader_epoch = leader_epoch
            wanted.offset = offset
            wanted.max_bytes = max_bytes
            found[index] = wanted
        self.wanted = list(found.values())
        if len(by_index) > _MOST_INDEXES:
            self._by_index = found
        return True

    def _new(self, index: int) -> FetchPartition:
        (topic,) = self.request.topics
        return FetchPartition(topic.topic, topic.topic_id, index)

    def learn(
        self, header: RequestHeader, request: FetchRequest, frame: memoryview, body_at: int
    ) -> None:
        """A fetch that was not recognised."""
        version = header.api_version
        if version < _PLAIN_FROM or len(request.topics) != 1 or not is_without_session(request):
            return
        (topic,) = request.topics
        form = _FLEXIBLE if version >= _FLEXIBLE_FROM else _PLAIN
        is_replica = replica_of(request, version) != NO_REPLICA
        if is_replica or not 0 < len(topic.partitions) <= form.most:
            return
        name = (topic.topic, topic.topic_id)
        if name != self._last_topic:
            self._last_topic = name
            return
        place = _first_offset_at(request, version, frame[body_at:])
        if place is not None:
            self._know(form, header, request, frame, body_at + place - _OFFSET_AT)

    def _know(
        self,
        form: _Form,
        header: RequestHeader,
        request: FetchRequest,
        frame: memoryview,
        entries_at: int,
    ) -> None:
        entries_end = entries_at + len(request.topics[0].partitions) * form.entry.size
        self._before = bytes(frame[_FRONT.size : entries_at - form.number.size])
        self._after = bytes(frame[entries_end:])
        self._form, self._header, self.request = form, header, request
        self._by_index = {}


def _first_offset_at(request: FetchRequest, version: int, body: memoryview) -> int | None:
    """Where in the body; None: it is not written as we would write it."""
    if request.encode(version) != body:
        return None
    first = request.topics[0].partitions[0]
    offset, first.fetch_offset = first.fetch_offset, _MARK
    marked = request.encode(version)
    first.fetch_offset = offset
    return marked.index(pack(">q", _MARK))
