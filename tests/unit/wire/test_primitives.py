"""Varints: seven bits a byte, the lowest first, five bytes at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.primitives import MalformedMessage, encode_uvarint, read_uvarint

EDGES = [
    edge for shift in (7, 14, 21, 28, 32) for edge in ((1 << shift) - 1, (1 << shift) % (1 << 32))
]


@given(st.integers(0, (1 << 32) - 1) | st.sampled_from(EDGES), st.binary(max_size=3))
def test_a_varint_is_read_up_to_its_end(value: int, rest: bytes) -> None:
    encoded = encode_uvarint(value)
    assert read_uvarint(memoryview(b"x" + encoded + rest), 1) == (value, 1 + len(encoded))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (1 << 31, "8080808008")],
)
def test_varints_have_the_bytes_that_kafka_writes(value: int, encoded: str) -> None:
    assert encode_uvarint(value).hex() == encoded


def test_a_varint_of_six_bytes_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="longer than 5 bytes"):
        read_uvarint(memoryview(bytes.fromhex("808080808001")), 0)
