"""The fast path of basic.ack: neighbouring ack frames of one channel, read in one loop.

Consumers that acknowledge each message send tags in order, so most of a read is one run of tags.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from penstock.wire.amqp.codec import FRAME_END, FRAME_METHOD
from penstock.wire.amqp.methods import BasicAck

ACK_FRAME_BYTES: Final = 21
_ACK: Final = struct.Struct(">BHIIQBB")
_PAYLOAD_BYTES: Final = 13


class AckRun(NamedTuple):
    """Acks of the tags from `first_tag` up to and including `last_tag`, in this order.

    With `multiple` the run is one frame, and its tag is both.
    """

    first_tag: int
    last_tag: int
    multiple: bool


def read_acks(data: bytes, at: int, channel: int) -> tuple[AckRun, int] | None:
    """Return the longest run of ack frames of `channel` at `at`, and where it ends.

    `None` if there is no whole ack frame.
    """
    first_tag = last_tag = 0
    start = at
    last_at = len(data) - ACK_FRAME_BYTES
    while at <= last_at:
        kind, number, size, index, tag, bits, end = _ACK.unpack_from(data, at)
        if (
            index != BasicAck.index
            or number != channel
            or kind != FRAME_METHOD
            or size != _PAYLOAD_BYTES
            or end != FRAME_END
        ):
            break
        if at == start:
            first_tag = tag
            if bits & 1:
                return AckRun(tag, tag, True), at + ACK_FRAME_BYTES
        elif tag != last_tag + 1 or bits & 1:
            break
        last_tag = tag
        at += ACK_FRAME_BYTES
    return (AckRun(first_tag, last_tag, False), at) if at != start else None
