"""No mutated stream does harm: only AmqpError comes out, and memory stays near what was received.

`AMQP_MUTATIONS=1000000` mutates that many streams instead of 100,000.
"""

import os
import tracemalloc
from random import Random
from typing import Final

import pytest

from penstock.wire.amqp.codec import FRAME_BODY, FRAME_HEADER, decode_method, encode_method
from penstock.wire.amqp.connection_methods import ConnectionStartOk
from penstock.wire.amqp.errors import AmqpError
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    FrameSplitter,
    content_frames,
    decode_content_header,
    encode_frame,
)
from penstock.wire.amqp.methods import BasicAck, BasicConsume, BasicPublish, QueueDeclare
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.tables import MAX_ELEMENTS, as_table, decode_table
from tests.support.amqp_reading import events_of
from tests.support.mutations import mutate
from tests.support.seed import chosen_seed

MUTATIONS: Final = int(os.environ.get("AMQP_MUTATIONS", "100000"))
SHARES: Final = 20
FRAME_MAX: Final = 4096
_ARGUMENTS = as_table(
    {"x-message-ttl": 60000, "x-dead-letter-exchange": "dlx", "n": [1, {"a": None}], "d": 1.5}
)
_PROPERTIES = encode_properties(
    Properties(
        content_type="application/json",
        headers=_ARGUMENTS,
        delivery_mode=2,
        priority=5,
        timestamp=1_700_000_000,
        message_id="id",
    )
)
SEEDS: Final = [
    encode_method(0, ConnectionStartOk(_ARGUMENTS, "PLAIN", b"\0guest\0guest")),
    encode_method(1, QueueDeclare(queue="q", durable=True, arguments=_ARGUMENTS)),
    encode_method(1, BasicConsume(queue="q", arguments=_ARGUMENTS)),
    encode_method(1, BasicPublish(exchange="x", routing_key="k"))
    + b"".join(content_frames(1, _PROPERTIES, b"body" * 10, FRAME_MAX)),
    b"".join(encode_method(1, BasicAck(tag)) for tag in range(1, 5)),
    HEARTBEAT,
]


def mutated_stream(random: Random) -> bytes:
    """Return two to four valid pieces, most of them spoiled in one place or several."""
    pieces = []
    for _ in range(random.randint(1, 3)):
        piece = bytearray(random.choice(SEEDS))
        if random.random() < 0.8:
            mutate(piece, random)
        pieces.append(piece)
    return b"".join(pieces)


def read_all(stream: bytes) -> None:
    """Decode every frame by itself, so that an error does not hide the frames behind it."""
    splitter = FrameSplitter(FRAME_MAX)
    splitter.feed(stream)
    try:
        while (frame := splitter.next()) is not None:
            _read(frame.type, frame.data, frame.at, frame.end)
    except AmqpError:
        return


def _read(kind: int, data: bytes, at: int, end: int) -> None:
    try:
        if kind == FRAME_HEADER:
            header = decode_content_header(data, at, end)
            decode_properties(header.properties, 0, len(header.properties))
        elif kind != FRAME_BODY:
            decode_method(data, at, end)
    except AmqpError:
        return


@pytest.mark.parametrize("share", range(SHARES))
def test_mutated_streams_only_raise_amqp_errors(share: int) -> None:
    random = Random(chosen_seed() + share)
    for _ in range(MUTATIONS // SHARES):
        stream = mutated_stream(random)
        read_all(stream)
        cut = random.randrange(len(stream) + 1)
        reads = [stream[:cut], stream[cut:]]
        fast = events_of(reads, FRAME_MAX, fast=True)
        if random.random() < 0.1:
            assert fast == events_of(reads, FRAME_MAX, fast=False)


def test_hostile_tables_take_memory_in_proportion_to_their_bytes() -> None:
    for entries in (
        b"\x00V" * 60_000,
        b"\x00A" + (60_000).to_bytes(4, "big") + b"V" * 60_000,
        (b"\x00F" + bytes(4)) * 12_000,
        b"\x00S\xff\xff\xff\xff" + bytes(60_000),
    ):
        data = len(entries).to_bytes(4, "big") + entries
        tracemalloc.start()
        try:
            decode_table(data, 0, len(data))
        except AmqpError:
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < max(2 * len(data), 200 * MAX_ELEMENTS)


def test_frames_that_never_end_take_no_more_memory_than_was_received() -> None:
    splitter = FrameSplitter(1 << 30)
    splitter.feed(encode_frame(3, 1, b"")[:3] + (1 << 29).to_bytes(4, "big"))
    assert splitter.next() is None
    tracemalloc.start()
    for _ in range(1000):
        splitter.feed(bytes(100))
        assert splitter.next() is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert splitter.pending_bytes == 100_007
    assert peak < 300_000
