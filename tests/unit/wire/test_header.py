"""Headers say who asks what; every API and version has the one that its flexibility implies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.api_keys import ApiKey
from penstock.wire.header import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
    is_flexible,
    response_header_version,
)
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message
from tests.unit.wire.catalogue import API_MESSAGES, module_name

HEADERS = st.builds(
    RequestHeader,
    api_key=st.integers(0, 92),
    api_version=st.integers(0, 20),
    correlation_id=st.integers(-(1 << 31), (1 << 31) - 1),
    client_id=st.none() | st.text(max_size=20),
)


@given(HEADERS, st.binary(max_size=10))
def test_a_request_header_is_read_up_to_the_body(header: RequestHeader, body: bytes) -> None:
    frame = encode_request_header(header) + body
    decoded, at = decode_request_header(memoryview(frame))
    assert (decoded, frame[at:]) == (header, body)


@given(HEADERS, st.binary(max_size=10))
def test_a_response_header_is_read_up_to_the_body(header: RequestHeader, body: bytes) -> None:
    frame = encode_response_header(header.correlation_id, *header[:2]) + body
    correlation_id, at = decode_response_header(memoryview(frame), *header[:2])
    assert (correlation_id, frame[at:]) == (header.correlation_id, body)


def test_tags_in_a_request_header_are_skipped() -> None:
    frame = encode_request_header(RequestHeader(0, 9, 1, "c"))[:-1] + b"\x01\x00\x02ab" + b"body"
    header, at = decode_request_header(memoryview(frame))
    assert (header.client_id, frame[at:]) == ("c", b"body")


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        ("0000 0008 00000001", "goes on after byte 8"),
        ("0000 0008 00000001 0005 61", "client_id at byte 10 has length 5; 1 bytes are left"),
        ("0000 0008 00000001 fffe", "client_id at byte 10 has length -2"),
        ("0000 0008 00000001 0001 ff", "client_id is not UTF-8"),
        ("0000 0009 00000001 ffff", "goes on after byte 10"),
        ("0000 0009 00000001 ffff 01 00 09", "a tagged field at byte 13 has length 9"),
    ],
)
def test_a_malformed_request_header_is_named(frame: str, problem: str) -> None:
    with pytest.raises(MalformedMessage, match=problem):
        decode_request_header(memoryview(bytes.fromhex(frame)))


def test_a_response_header_cut_short_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="goes on after byte 4"):
        decode_response_header(memoryview(bytes(4)), 0, 9)


@pytest.mark.parametrize("message", API_MESSAGES, ids=lambda message: message.__name__)
def test_headers_and_descriptions_agree_on_flexibility(message: type[Message]) -> None:
    for version in message.versions:
        assert is_flexible(message.api_key, version) == (version >= message.flexible_from)


@pytest.mark.parametrize("message", API_MESSAGES, ids=lambda message: message.__name__)
def test_modules_are_named_after_their_api_key(message: type[Message]) -> None:
    assert ApiKey(message.api_key).name.lower() == module_name(message)


def test_the_response_to_api_versions_is_never_flexible_in_its_header() -> None:
    assert [response_header_version(ApiKey.API_VERSIONS, version) for version in range(5)] == [
        0
    ] * 5
