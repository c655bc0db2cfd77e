"""Produce requests that arrive together and differ in nothing but their records and their numbers.

A producer that keeps several requests for a partition in flight sends such ones all the time: the first is
decoded, and of those after it only the records have to be found.
"""

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.wire.header import is_flexible
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.primitives import MalformedMessage, encode_uvarint, read_uvarint

MAX_TWINS: Final = 31
_BY_ID_SINCE_VERSION: Final = 13
_INT: Final = Struct(">i")
_NUMBER_AT, _CLIENT_AT = 4, 8  # in a frame: the correlation id, and what comes after it
_NO_TAGS: Final = bytes(3)  # of the partition, the topic and the request


class Twin(NamedTuple):
    correlation_id: int
    records: memoryview
    end: int  # of its frame, in what follows the first


def twins(
    request: ProduceRequest, version: int, frame: memoryview, body_at: int, rest: memoryview
) -> list[Twin]:
    """Of the frames in `rest`, those right at its front that are like `frame`, whose body begins at `body_at`."""
    flexible = is_flexible(request.api_key, version)
    at = _length_at(request, version, frame, body_at, flexible=flexible)
    if at is None:
        return []
    head, middle = bytes(frame[:_NUMBER_AT]), bytes(frame[_CLIENT_AT:at])
    tail = len(_NO_TAGS) if flexible else 0
    found: list[Twin] = []
    start = 0
    while len(found) < MAX_TWINS and len(rest) - start > _INT.size:
        stop = start + _INT.size + _INT.unpack_from(rest, start)[0]
        frame = rest[start + _INT.size : stop]
        if (
            not start + at < stop <= len(rest)
            or bytes(frame[:_NUMBER_AT]) != head
            or bytes(frame[_CLIENT_AT:at]) != middle
        ):
            break
        records = _records_at(frame, at, tail)
        if records is None:
            break
        found.append(Twin(_INT.unpack_from(frame, _NUMBER_AT)[0], records, stop))
        start = stop
    return found


def _length_at(
    request: ProduceRequest, version: int, frame: memoryview, body_at: int, *, flexible: bool
) -> int | None:
    """Where the frame says how long its records are: the same from its front and from its end, or None."""
    topic = request.topic_data[0]
    records = topic.partition_data[0].records
    assert records is not None
    name = b"" if version >= _BY_ID_SINCE_VERSION else topic.name.encode()
    if (
        flexible
    ):  # no transactional id, acks, timeout, one topic, its name or id, one partition, its number
        named = len(encode_uvarint(len(name) + 1)) + len(name) if name else len(topic.topic_id)
        at = body_at + 1 + 2 + 4 + 1 + named + 1 + 4
        length, tail = encode_uvarint(len(records) + 1), _NO_TAGS
    else:
        at = body_at + 2 + 2 + 4 + 4 + 2 + len(name) + 4 + 4
        length, tail = _INT.pack(len(records)), b""
    end = at + len(length) + len(records)
    if bytes(frame[at : at + len(length)]) == length and bytes(frame[end:]) == tail:
        return at
    return None


def _records_at(frame: memoryview, at: int, tail: int) -> memoryview | None:
    """What the frame has in the place of records; None unless it ends right after them."""
    try:
        if tail:
            length, at = read_uvarint(frame, at)
            length -= 1
        else:
            (length,) = _INT.unpack_from(frame, at)
            at += _INT.size
    except (MalformedMessage, IndexError, StructError):
        return None
    end = at + length
    if length < 0 or end + tail != len(frame) or any(frame[end:]):
        return None
    return frame[at:end]
