"""The fast paths give what frames one by one give, for any bytes and wherever reads end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.amqp.acks import ACK_FRAME_BYTES, AckRun, read_acks
from penstock.wire.amqp.codec import encode_method
from penstock.wire.amqp.deliveries import DeliveryWriter
from penstock.wire.amqp.frames import content_frames
from penstock.wire.amqp.methods import BasicAck, BasicDeliver, BasicPublish, QueueDeclare
from penstock.wire.amqp.properties import Properties, encode_properties
from tests.support.amqp_reading import CHANNEL, StreamReader, events_of
from tests.support.amqp_values import properties, short_strings

FRAME_MAX = 300
PROPERTIES = [
    encode_properties(Properties()),
    encode_properties(Properties(delivery_mode=2)),
    encode_properties(Properties(delivery_mode=2, message_id="a", headers={"h": ("S", "v")})),
    encode_properties(Properties(delivery_mode=2, message_id="b", headers={"h": ("S", "v")})),
]
METHODS = [
    BasicPublish(),
    BasicPublish(exchange="x", routing_key="key"),
    BasicPublish(exchange="x", routing_key="kez", mandatory=True),
]


def message(method: BasicPublish, raw: bytes, body: bytes, channel: int = CHANNEL) -> bytes:
    return encode_method(channel, method) + b"".join(content_frames(channel, raw, body, FRAME_MAX))


_messages = st.builds(
    message,
    st.sampled_from(METHODS),
    st.sampled_from(PROPERTIES),
    st.one_of(st.just(b"body"), st.binary(max_size=3), st.binary(min_size=250, max_size=700)),
    st.sampled_from([CHANNEL, CHANNEL, CHANNEL, 2]),
)
_acks = st.builds(
    lambda tag, multiple: encode_method(CHANNEL, BasicAck(tag, multiple)),
    st.integers(1, 3),
    st.booleans(),
)
_other = st.just(encode_method(CHANNEL, QueueDeclare(queue="q")))
_streams = st.lists(st.one_of(_messages, _messages, _acks, _other), max_size=8).map(b"".join)


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


@given(_streams, st.lists(st.integers(0, 5000), max_size=6))
def test_fast_reading_gives_the_events_of_plain_reading(stream: bytes, cuts: list[int]) -> None:
    plain = events_of([stream], FRAME_MAX, fast=False)
    assert events_of(cut(stream, cuts), FRAME_MAX, fast=True) == plain
    assert not plain or plain[-1][0] != "error"


@given(_streams.filter(bool), st.lists(st.integers(0, 5000), max_size=3), st.data())
def test_fast_and_plain_reading_fail_in_the_same_way(
    stream: bytes, cuts: list[int], data: st.DataObject
) -> None:
    spoiled = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(st.integers(0, 255))
    reads = cut(bytes(spoiled), cuts)
    assert events_of(reads, FRAME_MAX, fast=True) == events_of(reads, FRAME_MAX, fast=False)


def test_equal_and_similar_messages_take_the_fast_path() -> None:
    reader = StreamReader(FRAME_MAX, fast=True)
    stream = b"".join(
        message(METHODS[1], raw, body)
        for raw in (PROPERTIES[1], PROPERTIES[1], PROPERTIES[2], PROPERTIES[3])
        for body in (b"one", b"two")
    )
    reader.read(stream)
    assert reader.fast_messages == 8


def test_a_frame_of_type_0_is_no_message() -> None:
    assert events_of([bytes(6) + b"\xce" * 9], FRAME_MAX, fast=True) == events_of(
        [bytes(6) + b"\xce" * 9], FRAME_MAX, fast=False
    )


def test_neighbouring_acks_are_one_run() -> None:
    stream = b"".join(encode_method(1, BasicAck(tag)) for tag in (5, 6, 7, 9))
    assert read_acks(stream, 0, 1) == (AckRun(5, 7, False), 3 * ACK_FRAME_BYTES)
    assert read_acks(stream, 3 * ACK_FRAME_BYTES, 1) == (AckRun(9, 9, False), len(stream))
    assert read_acks(stream, 0, 2) is None
    assert read_acks(stream[:-1], 3 * ACK_FRAME_BYTES, 1) is None
    multiple = encode_method(1, BasicAck(8, True)) + stream
    assert read_acks(multiple, 0, 1) == (AckRun(8, 8, True), ACK_FRAME_BYTES)
    assert read_acks(stream + multiple, 3 * ACK_FRAME_BYTES, 1) == (AckRun(9, 9, False), 84)


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(["", "x"]),
            short_strings,
            st.one_of(st.sampled_from(PROPERTIES), properties.map(encode_properties)),
            st.one_of(st.just(b"body"), st.binary(max_size=700)),
        ),
        max_size=5,
    ),
    short_strings,
)
def test_deliveries_have_the_bytes_of_plain_encoding(
    messages: list[tuple[bool, str, str, bytes, bytes]], consumer_tag: str
) -> None:
    writer = DeliveryWriter(CHANNEL, consumer_tag, FRAME_MAX)
    out: list[bytes | memoryview] = []
    plain = b""
    for tag, (redelivered, exchange, key, raw, body) in enumerate(messages, 1 << 40):
        writer.write(
            out,
            tag,
            redelivered=redelivered,
            exchange=exchange,
            routing_key=key,
            properties=raw,
            body=body,
        )
        method = BasicDeliver(consumer_tag, tag, redelivered, exchange, key)
        plain += encode_method(CHANNEL, method)
        plain += b"".join(content_frames(CHANNEL, raw, body, FRAME_MAX))
    assert b"".join(out) == plain


def test_a_writer_remembers_a_bounded_number_of_routes() -> None:
    writer = DeliveryWriter(CHANNEL, "c", FRAME_MAX)
    for key in range(1000):
        writer.write(
            [],
            1,
            redelivered=False,
            exchange="",
            routing_key=str(key),
            properties=b"\0\0",
            body=b"b",
        )
    assert len(writer._routes) <= 256
