"""What every codec shares: the errors of malformed bytes, varints, and chunks."""

from __future__ import annotations

from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.wire.fields import Chunk

SMALL_UVARINTS: Final = tuple(bytes((value,)) for value in range(0x80))
MAX_TAGS: Final = 1000  # in one tag section; messages have a few
MAX_STRING_BYTES: Final = 0x7FFF  # in every version, although varints could say more


class MalformedMessage(BrokerError):
    """The peer sent bytes that are not this message. Its connection cannot be trusted any more."""

    code = ErrorCode.INVALID_REQUEST


def bad_length(field: str, at: int, length: int, size: int) -> MalformedMessage:
    if length == -1:
        return MalformedMessage(f"{field} before byte {at} is null; it must have a value")
    return MalformedMessage(
        f"{field} at byte {at} has length {length}; {size - at} bytes are left in the frame"
    )


def bad_tag_size(field: str, at: int, end: int) -> MalformedMessage:
    return MalformedMessage(f"tagged field {field} ends at byte {at}; its size says {end}")


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """The varint at `at`, and where it ends. IndexError beyond the data."""
    low = data[at]
    return (low, at + 1) if low < 0x80 else read_uvarint_rest(low, data, at + 1)


def read_uvarint_rest(low: int, data: memoryview, at: int) -> tuple[int, int]:
    """The varint whose first byte, `low`, ended before `at` and said that more follow."""
    value = low & 0x7F
    for shift in (7, 14, 21, 28):
        byte = data[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
    raise MalformedMessage(f"varint before byte {at} is longer than 5 bytes")


def skip_tags(count: int, data: memoryview, at: int) -> int:
    """Where a tag section ends whose `count`, or the first byte of it, ended before `at`."""
    if count > 0x7F:
        count, at = read_uvarint_rest(count, data, at)
        check_tag_count(count, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        length, at = read_uvarint(data, at)
        if length > len(data) - at:
            raise bad_length("a tagged field", at, length, len(data))
        at += length
    return at


def check_tag_count(count: int, at: int) -> None:
    if count > MAX_TAGS:
        raise MalformedMessage(f"{count} tagged fields at byte {at}; the limit is {MAX_TAGS}")


def too_many(label: str, at: int, limit: int) -> MalformedMessage:
    return MalformedMessage(
        f"{label} at byte {at}: the message has more than {limit} array elements"
    )


def encode_uvarint(value: int) -> bytes:
    if value < 0x80:
        return SMALL_UVARINTS[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    rest = encode_uvarint(value >> 21)
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80)) + rest


def encode_string_length(value: int) -> bytes:
    """The varint before a string: one more than its length."""
    if value > MAX_STRING_BYTES + 1:
        raise ValueError(f"string of {value - 1} bytes; the limit is {MAX_STRING_BYTES}")
    return encode_uvarint(value)


def finish(chunks: list[Chunk]) -> list[Chunk]:
    """The same bytes in as few chunks as can be: neighbours that are bytes are joined."""
    finished: list[Chunk] = []
    pieces: list[bytes | memoryview] = []
    for chunk in chunks:
        if isinstance(chunk, (bytes, memoryview)):
            pieces.append(chunk)
        elif pieces:
            finished += (b"".join(pieces), chunk)
            pieces.clear()
        else:
            finished.append(chunk)
    if pieces:
        finished.append(b"".join(pieces))
    return finished
