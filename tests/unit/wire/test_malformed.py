"""Whatever the bytes, a decoder gives a message or MalformedMessage, and takes no more memory than they deserve."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import ErrorCode
from penstock.wire.header import decode_request_header, decode_response_header
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.messages.describe_groups import DescribeGroupsRequest
from penstock.wire.messages.fetch import FetchRequest
from penstock.wire.messages.find_coordinator import FindCoordinatorRequest
from penstock.wire.messages.metadata import MetadataRequest, MetadataResponse
from penstock.wire.messages.offset_commit import OffsetCommitRequest
from penstock.wire.messages.produce import ProduceRequest
from penstock.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from penstock.wire.primitives import MalformedMessage
from penstock.wire.schema import Message, decode_for
from tests.unit.wire.catalogue import all_messages, random_struct

MESSAGES = all_messages()
LONGEST = 8


def survives(message: type[Message], data: bytes | bytearray, version: int) -> bool:
    """Did it decode? Anything but MalformedMessage fails the test."""
    try:
        decode_for(message, version)(memoryview(data), 0)
    except MalformedMessage:
        return False
    return True


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_cut_anywhere_is_malformed(message: type[Message]) -> None:
    for version in message.versions:
        encoded = random_struct(message, version, Random(version), LONGEST).encode(version)
        for size in range(len(encoded)):
            assert not survives(message, encoded[:size], version), f"v{version} at {size}"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_flipped_bytes_do_no_harm(message: type[Message]) -> None:
    for version in message.versions:
        random = Random(version)
        encoded = random_struct(message, version, random, LONGEST).encode(version)
        for at in range(len(encoded)):
            for byte in (0xFF, 0x80, 0x7F, random.randrange(256)):
                flipped = bytearray(encoded)
                flipped[at] = byte
                survives(message, flipped, version)


@given(st.sampled_from(MESSAGES), st.data(), st.binary(max_size=200))
def test_noise_does_no_harm(message: type[Message], data: st.DataObject, noise: bytes) -> None:
    survives(message, noise, data.draw(st.sampled_from(message.versions)))


@given(st.sampled_from(MESSAGES), st.integers(0, 1 << 32), st.binary(min_size=1, max_size=5))
def test_bytes_after_the_message_are_malformed(
    message: type[Message], seed: int, rest: bytes
) -> None:
    version = Random(seed).choice(message.versions)
    encoded = random_struct(message, version, Random(seed), LONGEST).encode(version)
    with pytest.raises(MalformedMessage, match="ends at byte"):
        message.decode(encoded + rest, version)


@given(st.binary(max_size=40))
def test_noise_in_headers_does_no_harm(noise: bytes) -> None:
    for decode in (
        lambda: decode_request_header(memoryview(noise)),
        lambda: decode_response_header(memoryview(noise), 0, 9),
    ):
        try:
            decode()
        except MalformedMessage:
            continue


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (MetadataRequest, 1, "7fffffff"),
        (MetadataRequest, 12, "ffffffff0f"),
        (MetadataResponse, 12, "00000000 ffffffff07"),
        (ProduceRequest, 3, "ffff 0001 00000000 7fffffff"),
        (ProduceRequest, 9, "00 0001 00000000 ffffffff0f"),
        (OffsetCommitRequest, 8, "01 00000000 01 00 80808004 01"),
        (FetchRequest, 4, "ffffffff 00000000 00000000 00000000 00 7fffffff"),
        (FetchRequest, 7, "ffffffff" + "00" * 25 + "00000001 0000 7fffffff"),
        (DescribeGroupsRequest, 0, "7fffffff"),
    ],
)
def test_a_huge_count_is_refused_before_memory_is_taken(
    message: type[Message], version: int, data: str
) -> None:
    frame = bytes.fromhex(data) + bytes(1000)
    decode = decode_for(message, version)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedMessage, match="has length"):
            decode(memoryview(frame), 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100 * len(frame)


@pytest.mark.parametrize(
    ("message", "version", "data", "problem"),
    [
        (FindCoordinatorRequest, 0, "ffff", "FindCoordinatorRequest.key before byte 2 is null"),
        (FindCoordinatorRequest, 3, "00 00 00", "FindCoordinatorRequest.key before byte 1 is null"),
        (FindCoordinatorRequest, 0, "fffe", "key at byte 2 has length -2; 0 bytes are left"),
        (FindCoordinatorRequest, 0, "0009 41", "key at byte 2 has length 9; 1 bytes are left"),
        (FindCoordinatorRequest, 0, "0001 ff", "not UTF-8"),
        (FindCoordinatorRequest, 3, "02 c3 00 00", "not UTF-8"),
        (FindCoordinatorRequest, 3, "ffffffffff0f 00", "varint before byte 5 is longer than 5"),
        (SaslAuthenticateRequest, 0, "ffffffff", "auth_bytes before byte 4 is null"),
        (SaslAuthenticateRequest, 0, "fffffffe", "auth_bytes at byte 4 has length -2"),
        (ProduceRequest, 3, "fffe 0001 00000000 00000000", "transactional_id at byte 2"),
        (ProduceRequest, 3, "ffff 0001 00000000 ffffffff", "topic_data before byte 12 is null"),
        (ProduceRequest, 3, "ffff 0001 00000000 fffffffe", "topic_data at byte 12 has length -2"),
        (MetadataRequest, 0, "ffffffff", "MetadataRequest.topics before byte 4 is null"),
        (MetadataRequest, 1, "fffffffe", "MetadataRequest.topics at byte 4 has length -2"),
        (MetadataRequest, 9, "00 01 00 00 01 05 09 00", "a tagged field at byte 7 has length 9"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 0a 09", "a tagged field at byte 10"),
        (ApiVersionsResponse, 3, "0000 01 00000000 01 03 02 0101", "zk_migration_ready ends at"),
        (MetadataRequest, 9, "00 01 00", "MetadataRequest v9 goes on after byte 3, the end"),
    ],
)
def test_the_error_names_field_place_and_numbers(
    message: type[Message], version: int, data: str, problem: str
) -> None:
    with pytest.raises(MalformedMessage, match=problem) as raised:
        message.decode(bytes.fromhex(data), version)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_a_string_beyond_kafkas_limit_is_malformed_even_where_varints_could_say_more() -> None:
    longest = FindCoordinatorRequest(key="x" * 0x7FFF).encode(3)
    assert FindCoordinatorRequest.decode(longest, 3).key == "x" * 0x7FFF
    longer = b"\x81\x80\x02" + b"x" * 0x8000 + b"\0\0"
    with pytest.raises(MalformedMessage, match="length 32768"):
        FindCoordinatorRequest.decode(longer, 3)
