"""What every codec shares: the error of a malformed frame, varints, and tag sections."""

from __future__ import annotations

from typing import Final

from penstock.model.errors import BrokerError, ErrorCode

MAX_UVARINT_BYTES: Final = 5  # lengths are 32 bits


class MalformedMessage(BrokerError):
    """The peer sent bytes that are not this message. Its connection cannot be trusted any more."""

    code = ErrorCode.INVALID_REQUEST


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits at `at`, and where it ends. IndexError beyond the data."""
    value = shift = 0
    for end in range(at, at + MAX_UVARINT_BYTES):
        byte = data[end]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end + 1
        shift += 7
    raise MalformedMessage(f"varint at byte {at} is longer than {MAX_UVARINT_BYTES} bytes")


def encode_uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
