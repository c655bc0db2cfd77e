"""Frames come out whole and in order, however the network cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.fields import Chunk
from penstock.wire.framing import FrameDecoder, FrameTooLarge, encode_frame, frame_chunks


@given(st.lists(st.binary(max_size=50), max_size=10), st.lists(st.integers(1, 30), min_size=1))
def test_frames_survive_any_cut(payloads: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    decoder = FrameDecoder(max_frame_bytes=50)
    received: list[bytes] = []
    position = turn = 0
    while position < len(stream):
        size = cuts[turn % len(cuts)]
        received += decoder.feed(stream[position : position + size])
        position, turn = position + size, turn + 1

    assert received == payloads


@pytest.mark.parametrize("size", [1000, -1])
def test_a_frame_beyond_the_limit_is_refused_before_it_is_buffered(size: int) -> None:
    with pytest.raises(FrameTooLarge, match=f"frame of {size} bytes; the limit is 50"):
        list(FrameDecoder(max_frame_bytes=50).feed(size.to_bytes(4, "big", signed=True)))


def test_a_frame_around_chunks_has_their_size_in_front_and_is_joined_where_it_can_be() -> None:
    elsewhere = range(300)  # has a length, is not bytes: a file slice
    chunks: list[Chunk] = [b"head", b"er", elsewhere, b"tail"]
    assert frame_chunks(chunks) == [(310).to_bytes(4, "big") + b"header", elsewhere, b"tail"]
