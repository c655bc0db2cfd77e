"""Methods, properties and frames: both ways, and the errors of malformed ones."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.amqp.codec import decode_method, encode_method
from penstock.wire.amqp.errors import AmqpError, ReplyCode, octets
from penstock.wire.amqp.frames import (
    EMPTY_FRAME_BYTES,
    ContentHeader,
    FrameSplitter,
    content_frames,
    decode_content_header,
    encode_content_header,
    encode_frame,
)
from penstock.wire.amqp.method import Method
from penstock.wire.amqp.methods import BasicAck, BasicPublish, QueueDeclare
from penstock.wire.amqp.properties import (
    Properties,
    check_properties,
    decode_properties,
    encode_properties,
)
from tests.support.amqp_values import ALL_METHODS, methods_of, properties, split, taken


@pytest.mark.parametrize("kind", ALL_METHODS, ids=lambda method: method.name)
@settings(max_examples=10)
@given(data=st.data(), channel=st.integers(0, 0xFFFF))
def test_a_method_is_read_back_as_it_was(
    kind: type[Method], data: st.DataObject, channel: int
) -> None:
    method = data.draw(methods_of(kind))
    frame = encode_method(channel, method)
    [(number, read_channel, _, at, end)] = split(frame)
    assert (number, read_channel) == (1, channel)
    assert decode_method(b"??" + frame + b"??", at + 2, end + 2) == method


@pytest.mark.parametrize("kind", ALL_METHODS, ids=lambda method: method.name)
def test_a_method_frame_that_is_shorter_or_longer_is_a_frame_or_syntax_error(
    kind: type[Method],
) -> None:
    method = _filled(kind)
    frame = encode_method(1, method)
    start, end = 7, len(frame) - 1
    for cut in [*range(start, end), end + 1]:
        with pytest.raises(AmqpError) as caught:
            decode_method(frame + bytes(300), start, cut)
        assert caught.value.code in (ReplyCode.FRAME_ERROR, ReplyCode.SYNTAX_ERROR)


def _filled(kind: type[Method]) -> Method:
    """Return an instance with text and numbers in every field."""
    values = {"Bit": True, "ShortStr": "text", "LongStr": b"long", "Table": {"n": ("S", "v")}}
    fields = kind.__dataclass_fields__  # type: ignore[attr-defined]  # the decorator makes each a dataclass
    return kind(**{name: values.get(field.type, 7) for name, field in fields.items()})


def test_unknown_methods_are_not_implemented() -> None:
    with pytest.raises(
        AmqpError, match="NOT_IMPLEMENTED - unknown method 99 of class 60"
    ) as caught:
        decode_method(struct.pack(">HH", 60, 99), 0, 4)
    assert caught.value.code is ReplyCode.NOT_IMPLEMENTED
    assert caught.value.code.closes_connection


def test_short_strings_that_are_not_utf8_are_frame_errors() -> None:
    frame = encode_method(1, QueueDeclare(queue="abc")).replace(b"abc", b"a\xffc")
    with pytest.raises(AmqpError, match="FRAME_ERROR - Malformed UTF-8 in shortstr"):
        decode_method(frame, 7, len(frame) - 1)


def test_short_strings_of_more_than_255_bytes_are_not_written() -> None:
    with pytest.raises(ValueError, match="queue has 256 bytes"):
        encode_method(1, QueueDeclare(queue="é" * 128))


def test_reply_texts_name_the_code_and_fit_a_short_string() -> None:
    assert AmqpError(ReplyCode.NOT_FOUND, "no queue").reply_text == "NOT_FOUND - no queue"
    long = AmqpError(ReplyCode.NOT_FOUND, "é" * 200).reply_text
    assert len(long.encode()) <= 255
    assert long.startswith("NOT_FOUND - ééé")
    assert octets(b"\1\2") == "all octets = <<1,2>>"
    assert octets(bytes(17)).startswith("first 16 octets = <<0,")


def test_soft_errors_close_a_channel_and_hard_errors_the_connection() -> None:
    soft = {code for code in ReplyCode if not code.closes_connection}
    assert sorted(soft) == [200, 311, 312, 313, 403, 404, 405, 406]


@given(properties, st.binary(max_size=4))
def test_properties_are_read_back_as_they_were(chosen: Properties, around: bytes) -> None:
    encoded = encode_properties(chosen)
    data = around + encoded + around
    end = len(around) + len(encoded)
    assert decode_properties(data, len(around), end) == chosen
    check_properties(data, len(around), end)


@given(properties, st.data())
def test_checking_properties_gives_what_decoding_them_gives(
    chosen: Properties, data: st.DataObject
) -> None:
    spoiled = bytearray(encode_properties(chosen))
    for _ in range(data.draw(st.integers(0, 3))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))])
    verdicts: list[ReplyCode | None] = []
    for read in (decode_properties, check_properties):
        try:
            read(cut, 0, len(cut))
            verdicts.append(None)
        except AmqpError as error:
            verdicts.append(error.code)
    assert verdicts[0] == verdicts[1]
    assert verdicts[0] in (None, ReplyCode.SYNTAX_ERROR)


@pytest.mark.parametrize("flags", [1, 2, 3])
def test_flags_without_a_property_are_syntax_errors(flags: int) -> None:
    with pytest.raises(AmqpError, match="SYNTAX_ERROR"):
        check_properties(struct.pack(">H", flags), 0, 2)


def test_a_content_header_carries_the_size_and_the_raw_properties() -> None:
    raw = encode_properties(Properties(content_type="a", delivery_mode=2))
    frame = encode_content_header(4, raw, 1 << 40)
    [(kind, channel, _, at, end)] = split(frame)
    assert (kind, channel) == (2, 4)
    assert decode_content_header(frame, at, end) == ContentHeader(1 << 40, raw)


@pytest.mark.parametrize(
    ("class_id", "weight", "code"),
    [(50, 0, ReplyCode.UNEXPECTED_FRAME), (60, 1, ReplyCode.UNEXPECTED_FRAME)],
)
def test_a_content_header_of_another_class_or_weight_is_unexpected(
    class_id: int, weight: int, code: ReplyCode
) -> None:
    payload = struct.pack(">HHQH", class_id, weight, 0, 0)
    with pytest.raises(AmqpError) as caught:
        decode_content_header(payload, 0, len(payload))
    assert caught.value.code is code


def test_a_content_header_that_is_cut_is_a_frame_error() -> None:
    with pytest.raises(AmqpError, match="FRAME_ERROR"):
        decode_content_header(bytes(40), 0, 13)


STREAM = b"".join(
    (
        encode_method(1, BasicPublish(exchange="x", routing_key="k")),
        *content_frames(1, b"\0\0", b"body" * 50, 100),
        encode_frame(8, 0, b""),
        encode_method(65535, BasicAck(7, True)),
    )
)


@given(st.lists(st.integers(1, len(STREAM) - 1)))
def test_frames_do_not_depend_on_how_their_bytes_arrive(cuts: list[int]) -> None:
    splitter = FrameSplitter(4096)
    frames = []
    for start, end in pairwise([0, *sorted(cuts), len(STREAM)]):
        splitter.feed(memoryview(STREAM)[start:end])
        frames += [
            (kind, channel, data[at:end]) for kind, channel, data, at, end in taken(splitter)
        ]
    assert frames == [(kind, ch, data[at:end]) for kind, ch, data, at, end in split(STREAM, 4096)]
    assert splitter.pending_bytes == 0
    assert splitter.data == b""  # an idle connection holds no buffer


def test_a_frame_may_exceed_frame_max_by_its_own_eight_bytes() -> None:
    assert len(split(encode_frame(3, 1, bytes(4096)), 4096)) == 1
    with pytest.raises(AmqpError, match=r"FRAME_ERROR - type 3: frame_too_large, 4097 bytes"):
        split(encode_frame(3, 1, bytes(4097))[:EMPTY_FRAME_BYTES], 4096)


def test_a_frame_without_its_end_octet_is_a_frame_error() -> None:
    frame = encode_frame(3, 1, b"abc")[:-1] + b"\xcd"
    with pytest.raises(AmqpError, match="FRAME_ERROR - type 3: invalid_frame_end_marker 205"):
        split(frame)


def test_an_announced_frame_reserves_no_memory() -> None:
    splitter = FrameSplitter(1 << 30)
    splitter.feed(struct.pack(">BHI", 3, 1, 1 << 29))
    assert splitter.next() is None
    assert splitter.pending_bytes == 7


def test_a_frame_that_comes_byte_by_byte_is_joined_once() -> None:
    """Joining anew at each read would copy the frame as often as it has bytes."""
    frame = encode_frame(3, 1, bytes(3000))
    splitter = FrameSplitter(4096)
    joined = 0
    for at in range(len(frame) - 1):
        splitter.feed(frame[at : at + 1])
        joined += splitter.data != b""
        assert splitter.next() is None
    assert joined == 2, "once for the first byte, once when the head is there"
    splitter.feed(frame[-1:])
    assert splitter.next() is not None
