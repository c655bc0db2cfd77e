"""Request and response headers: which version belongs to which API, and their bytes.

A flexible request has header v2 and its response v1; others have v1 and v0. ApiVersions' response
is always v0, so that a client can read it before it knows what the broker speaks.
"""

from __future__ import annotations

from struct import Struct as Packing
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.wire.fields import NEVER
from penstock.wire.primitives import MalformedMessage, bad_length, skip_tags

_API_VERSIONS: Final = 18
_REQUEST: Final = Packing(">hhih")  # api key, api version, correlation id, length of the client id
_CORRELATION_ID: Final = Packing(">i")

_FLEXIBLE_FROM: Final = {  # where it is not 0
    **{0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3},
    **{17: NEVER, 18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4, 24: 3, 25: 3, 26: 3, 27: 1, 28: 3},
    **{29: 2, 30: 2, 31: 2, 32: 4, 33: 2, 34: 2, 35: 2, 36: 2, 37: 2, 38: 2, 39: 2, 40: 2, 41: 2},
    **{42: 2, 43: 2, 44: 1, 47: NEVER, 48: 1, 49: 1, 53: 1, 54: 1},
    **{4: 4, 5: 2, 6: 6, 7: 3},  # between brokers of the ZooKeeper age
}


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def is_flexible(api_key: int, api_version: int) -> bool:
    """Are lengths varints, and do tagged fields follow?"""
    return api_version >= _FLEXIBLE_FROM.get(api_key, 0)


def request_header_version(api_key: int, api_version: int) -> int:
    return 2 if is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    return 1 if api_key != _API_VERSIONS and is_flexible(api_key, api_version) else 0


def decode_request_header(frame: memoryview, at: int = 0) -> tuple[RequestHeader, int]:
    """The header of a request, and where its body begins."""
    try:
        api_key, api_version, correlation_id, length = _REQUEST.unpack_from(frame, at)
        at += _REQUEST.size
        client_id = None
        if length != -1:
            end = at + length
            if length < 0 or end > len(frame):
                raise bad_length("client_id", at, length, len(frame))
            client_id = str(frame[at:end], "utf-8")
            at = end
        if api_version >= _FLEXIBLE_FROM.get(api_key, 0):
            count = frame[at]
            at = skip_tags(count, frame, at + 1) if count else at + 1
    except (StructError, IndexError):
        raise MalformedMessage(f"request header goes on after byte {len(frame)}, the end") from None
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"client_id is not UTF-8: {error}") from None
    return RequestHeader(api_key, api_version, correlation_id, client_id), at


def encode_request_header(header: RequestHeader) -> bytes:
    client_id = header.client_id.encode() if header.client_id is not None else b""
    length = -1 if header.client_id is None else len(client_id)
    tags = b"\0" if is_flexible(header.api_key, header.api_version) else b""
    return _REQUEST.pack(*header[:3], length) + client_id + tags


def encode_response_header(correlation_id: int, api_key: int, api_version: int) -> bytes:
    head = _CORRELATION_ID.pack(correlation_id)
    return head + b"\0" if response_header_version(api_key, api_version) else head


def decode_response_header(frame: memoryview, api_key: int, api_version: int) -> tuple[int, int]:
    """The correlation id of a response, and where its body begins."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        at = _CORRELATION_ID.size
        if response_header_version(api_key, api_version):
            at = skip_tags(frame[at], frame, at + 1)
    except (StructError, IndexError):
        raise MalformedMessage(
            f"response header goes on after byte {len(frame)}, the end"
        ) from None
    return correlation_id, at
