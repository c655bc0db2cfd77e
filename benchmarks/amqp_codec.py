"""AMQP frames per second of CPU, beside pamqp in the same run: `python -m benchmarks.amqp_codec`.

Each row reads or writes the same bytes with both codecs. A message is three frames: method, header
and a body of 1 KB. Rounds of the two codecs alternate, and the best of each counts.
"""

from collections.abc import Callable
from time import process_time
from timeit import Timer
from typing import NamedTuple

import pamqp.body
import pamqp.commands
import pamqp.frame
import pamqp.header

from penstock.wire.amqp.acks import read_acks
from penstock.wire.amqp.codec import decode_method, encode_method
from penstock.wire.amqp.deliveries import DeliveryWriter
from penstock.wire.amqp.frames import (
    FrameSplitter,
    content_frames,
    decode_content_header,
)
from penstock.wire.amqp.methods import BasicAck, BasicDeliver, BasicPublish
from penstock.wire.amqp.properties import Properties, encode_properties
from penstock.wire.amqp.publishes import PublishReader
from penstock.wire.amqp.tables import as_table

CHANNEL = 1
FRAME_MAX = 131072
BODY = bytes(1024)
MESSAGES = 200
ROUNDS = 7
FRAMES_OF_A_MESSAGE = 3


class Row(NamedTuple):
    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    frames: int


def properties(message_id: str, *, headers: int = 0) -> bytes:
    table = as_table({f"header-{number}": f"value {number}" for number in range(headers)})
    return encode_properties(
        Properties(
            content_type="application/json",
            headers=table or None,
            delivery_mode=2,
            message_id=message_id,
        )
    )


def publishes(ids: int, headers: int = 0) -> bytes:
    method = encode_method(CHANNEL, BasicPublish(exchange="orders", routing_key="orders.created"))
    messages = []
    for number in range(MESSAGES):
        raw = properties(f"{number % ids:036}", headers=headers)
        messages += [method, *content_frames(CHANNEL, raw, BODY, FRAME_MAX)]
    return b"".join(messages)


def read_publishes(stream: bytes) -> None:
    reader, at = PublishReader(CHANNEL), 0
    while at < len(stream):
        published = reader.read(stream, at, FRAME_MAX)
        assert published is not None
        at = published[1]


def read_publishes_plainly(stream: bytes) -> None:
    splitter = FrameSplitter(FRAME_MAX)
    splitter.feed(stream)
    while (frame := splitter.next()) is not None:
        kind, _, data, at, end = frame
        if kind == 1:
            decode_method(data, at, end)
        elif kind == 2:
            decode_content_header(data, at, end)


def read_runs_of_acks(stream: bytes) -> None:
    at = 0
    while at < len(stream):
        run = read_acks(stream, at, CHANNEL)
        assert run is not None
        at = run[1]


def read_with_pamqp(stream: bytes) -> None:
    at = 0
    while at < len(stream):
        size, _, _ = pamqp.frame.unmarshal(stream[at : at + 2048])
        at += size


def write_deliveries() -> bytes:
    writer, raw = DeliveryWriter(CHANNEL, "ctag1.1", FRAME_MAX), properties("m")
    out: list[bytes | memoryview] = []
    for tag in range(MESSAGES):
        writer.write(
            out,
            tag,
            redelivered=False,
            exchange="orders",
            routing_key="orders.created",
            properties=raw,
            body=BODY,
        )
    return b"".join(out)


def write_deliveries_plainly() -> bytes:
    out: list[bytes | memoryview] = []
    raw = properties("m")
    for tag in range(MESSAGES):
        method = BasicDeliver("ctag1.1", tag, False, "orders", "orders.created")
        out.append(encode_method(CHANNEL, method))
        out += content_frames(CHANNEL, raw, BODY, FRAME_MAX)
    return b"".join(out)


def write_with_pamqp() -> bytes:
    out = []
    for tag in range(MESSAGES):
        deliver = pamqp.commands.Basic.Deliver("ctag1.1", tag, False, "orders", "orders.created")
        theirs = pamqp.commands.Basic.Properties(
            content_type="application/json", delivery_mode=2, message_id="m"
        )
        header = pamqp.header.ContentHeader(body_size=len(BODY), properties=theirs)
        out += [
            pamqp.frame.marshal(deliver, CHANNEL),
            pamqp.frame.marshal(header, CHANNEL),
            pamqp.frame.marshal(pamqp.body.ContentBody(BODY), CHANNEL),
        ]
    return b"".join(out)


def rows() -> list[Row]:
    equal, with_ids, with_headers = publishes(1), publishes(MESSAGES), publishes(MESSAGES, 10)
    acks = b"".join(encode_method(CHANNEL, BasicAck(tag)) for tag in range(MESSAGES))
    frames = MESSAGES * FRAMES_OF_A_MESSAGE
    assert write_deliveries() == write_deliveries_plainly() == write_with_pamqp()

    def reads(name: str, read: Callable[[bytes], None], stream: bytes, count: int) -> Row:
        return Row(name, lambda: read(stream), lambda: read_with_pamqp(stream), count)

    return [
        reads("publish, all equal", read_publishes, equal, frames),
        reads("publish, an id each", read_publishes, with_ids, frames),
        reads("publish, an id and 10 headers", read_publishes, with_headers, frames),
        reads("publish, frame by frame", read_publishes_plainly, with_ids, frames),
        reads("ack, in order", read_runs_of_acks, acks, MESSAGES),
        Row("deliver", write_deliveries, write_with_pamqp, frames),
        Row("deliver, frame by frame", write_deliveries_plainly, write_with_pamqp, frames),
    ]


def best_seconds(calls: list[Callable[[], object]]) -> list[float]:
    """Return the best round of each call, the rounds of all in turn."""
    timers = [Timer(call, timer=process_time) for call in calls]
    return [min(times) for times in zip(*(
        [timer.timeit(10) / 10 for timer in timers] for _ in range(ROUNDS)
    ), strict=True)]  # fmt: skip


def main() -> None:
    print(f"{'':30} {'penstock':>12} {'pamqp':>12} {'µs a message':>22}")
    for row in rows():
        ours, theirs = best_seconds([row.ours, row.theirs])
        print(
            f"{row.name:30} {row.frames / ours:10,.0f}/s {row.frames / theirs:10,.0f}/s "
            f"{ours / MESSAGES * 1e6:8.2f} : {theirs / MESSAGES * 1e6:5.2f}  {theirs / ours:5.1f}x"
        )


if __name__ == "__main__":
    main()
