"""Frames come out whole and in order, however the network cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.fields import Chunk
from penstock.wire.framing import (
    FrameBuffer,
    FrameDecoder,
    FrameTooLarge,
    encode_frame,
    frame_chunks,
)


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


def put(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    """What an event loop does: as much as there is room for at a time."""
    frames: list[bytes] = []
    while data:
        room = buffer.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        frames += map(bytes, buffer.received(count))
        data = data[count:]
    return frames


@given(
    st.lists(st.one_of(st.integers(0, 50), st.integers(60_000, 300_000)), max_size=6),
    st.lists(st.one_of(st.integers(1, 50), st.integers(1, 200_000)), max_size=40),
)
def test_frames_are_received_in_place_however_they_are_cut(
    sizes: list[int], cuts: list[int]
) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(map(encode_frame, payloads))
    buffer = FrameBuffer(max_frame_bytes=300_000)
    received: list[bytes] = []
    position = 0
    for size in (*cuts, len(stream)):
        received += put(buffer, stream[position : position + size])
        position += size
        assert len(buffer.room()) > 0
    assert received == payloads


@pytest.mark.parametrize("size", [1000, -1])
def test_a_frame_beyond_the_limit_is_refused_when_it_is_announced(size: int) -> None:
    with pytest.raises(FrameTooLarge, match=f"frame of {size} bytes; the limit is 50"):
        put(FrameBuffer(max_frame_bytes=50), size.to_bytes(4, "big", signed=True))


def test_room_grows_with_what_has_come_and_not_with_what_was_announced() -> None:
    buffer = FrameBuffer(max_frame_bytes=1 << 30)
    usual = len(buffer.room())
    put(buffer, (1 << 29).to_bytes(4, "big"))
    assert len(buffer.room()) < usual
    put(buffer, bytes(usual))
    assert usual < len(buffer.room()) <= 16 * usual


def test_room_for_a_large_frame_is_given_back_when_only_small_ones_come() -> None:
    buffer = FrameBuffer(max_frame_bytes=1 << 30)
    usual = len(buffer.room())
    put(buffer, encode_frame(bytes(10 * usual)))
    assert len(buffer.room()) > usual
    for _ in range(1001):
        put(buffer, encode_frame(b"small"))
    assert len(buffer.room()) == usual


def test_a_frame_around_chunks_has_their_size_in_front_and_is_joined_where_it_can_be() -> None:
    elsewhere = range(300)  # has a length, is not bytes: a file slice
    chunks: list[Chunk] = [b"head", b"er", elsewhere, b"tail"]
    assert frame_chunks(chunks) == [(310).to_bytes(4, "big") + b"header", elsewhere, b"tail"]
