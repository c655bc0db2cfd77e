"""Every method, the properties and the tables agree with pamqp, byte for byte and both ways."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.wire.amqp.codec import decode_method, encode_method
from penstock.wire.amqp.frames import (
    HEARTBEAT,
    PROTOCOL_HEADER,
    content_frames,
    decode_content_header,
)
from penstock.wire.amqp.method import ACCESS, Method
from penstock.wire.amqp.properties import Properties, decode_properties, encode_properties
from penstock.wire.amqp.tables import FieldTable, Scaled, as_plain, decode_table, encode_table
from tests.support.amqp_values import ALL_METHODS, FRAME_MAX, methods_of, split, tables

pytest.importorskip("pamqp", reason="an oracle of the dev extra")

import pamqp.body
import pamqp.commands
import pamqp.common
import pamqp.decode
import pamqp.encode
import pamqp.frame
import pamqp.header
import pamqp.heartbeat

MIRRORED = [method for method in ALL_METHODS if method.index >> 16 != ACCESS]  # pamqp has no access
_plain_values = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.text(max_size=10),
        st.none(),
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        st.binary(max_size=10).map(bytearray),
        st.integers(0, 0xFFFFFFFF).map(
            lambda seconds: datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
        ),
        st.decimals(0, 1_000_000, places=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
_plain_tables: st.SearchStrategy[pamqp.common.FieldTable] = st.dictionaries(
    st.text(max_size=10), _plain_values, max_size=5
)
_shared_tables = _plain_tables.map(
    lambda plain: decode_table(*_bounds(pamqp.encode.field_table(plain)))[0]
)  # tables that both write with the same letters, in the same order


def _bounds(data: bytes) -> tuple[bytes, int, int]:
    return data, 0, len(data)


def as_pamqp(value: tuple[str, Any]) -> Any:
    """Return what pamqp makes of a value."""
    letter, content = value
    match letter:
        case "x":
            return bytearray(content)
        case "T":
            seconds = content / 1000.0 if content > 0xFFFFFFFF else content
            return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
        case "D":
            (signed,) = struct.unpack(">i", struct.pack(">I", content.unscaled))
            return decimal.Decimal(signed) * (decimal.Decimal(10) ** -content.scale)
        case "S":
            encoded = content.encode(errors="surrogateescape")
            try:
                return encoded.decode()
            except UnicodeDecodeError:
                return encoded
        case "A":
            return [as_pamqp(element) for element in content]
        case "F":
            return {name: as_pamqp(element) for name, element in content.items()}
        case _:
            return content


def _loose(known: Any) -> Any:
    """Return pamqp's class without its checks and its required arguments."""
    overridden = {"validate": lambda _: None, "__init__": lambda _: None}
    return type(known.__name__, (known,), {**overridden, "__slots__": known.__slots__})


def mirror(method: Method) -> Any:
    """Return pamqp's object for a method, without its own limits on names and reserved fields."""
    known: Any = pamqp.commands.INDEX_MAPPING[method.index]
    mirrored: Any = _loose(known)()
    ours = dataclasses.fields(method)  # type: ignore[arg-type]  # the decorator makes each a dataclass
    for field, name in zip(ours, known.__slots__, strict=True):
        value = getattr(method, field.name)
        if field.type == "Table":
            value = as_pamqp(("F", value))
        setattr(mirrored, name, value.decode() if field.type == "LongStr" else value)
    return mirrored


def _in_its_range(method: Method) -> Method:
    """Replace long strings by ASCII, as pamqp only writes text, and halve its signed tags."""
    for field in dataclasses.fields(method):  # type: ignore[arg-type]  # the decorator makes each a dataclass
        if field.type == "LongStr":
            setattr(method, field.name, getattr(method, field.name).hex().encode())
        if field.type == "LongLong":
            setattr(method, field.name, getattr(method, field.name) >> 1)
    return method


def _unmarshal(frame: bytes) -> tuple[int, int, Any]:
    unmarshalled: tuple[int, int, Any] = pamqp.frame.unmarshal(frame)
    return unmarshalled


@pytest.mark.parametrize("kind", MIRRORED, ids=lambda method: method.name)
@pytest.mark.filterwarnings("ignore:This command is deprecated:DeprecationWarning")
@settings(max_examples=15)
@given(data=st.data(), channel=st.integers(0, 0xFFFF))
def test_methods_have_the_bytes_that_pamqp_writes(
    kind: type[Method], data: st.DataObject, channel: int
) -> None:
    method = _in_its_range(data.draw(methods_of(kind, _shared_tables)))
    mirrored = mirror(method)
    frame = encode_method(channel, method)
    assert frame == pamqp.frame.marshal(mirrored, channel)
    size, number, read = _unmarshal(frame)
    assert (size, number, read.name) == (len(frame), channel, mirrored.name)
    assert dict(read) == dict(mirrored)
    [(_, read_channel, _, at, end)] = split(frame)
    assert read_channel == channel
    assert decode_method(frame, at, end) == method


def test_no_method_of_pamqp_is_missing() -> None:
    assert {method.index for method in MIRRORED} == set(pamqp.commands.INDEX_MAPPING)


@given(tables)
def test_pamqp_reads_tables_of_every_type(table: FieldTable) -> None:
    readable = _in_the_range_of_pamqp(table)
    encoded = encode_table(readable)
    assert pamqp.decode.field_table(encoded) == (len(encoded), as_pamqp(("F", readable)))


def _in_the_range_of_pamqp(table: FieldTable) -> FieldTable:
    """Drop names that are not UTF-8, and keep dates and decimals in Python's range."""

    def value(pair: tuple[str, Any]) -> tuple[str, Any]:
        match pair:
            case ("F", content):
                return "F", _in_the_range_of_pamqp(content)
            case ("A", content):
                return "A", [value(element) for element in content]
            case ("T", seconds):
                return "T", seconds % (1 << 32)
            case ("D", Scaled(scale, unscaled)):
                return "D", Scaled(scale % 20, unscaled)
            case _:
                return pair

    return {
        name: value(element) for name, element in table.items() if name.isascii() or name.isalpha()
    }


@given(_plain_tables)
def test_tables_of_pamqp_are_read_and_written_back(plain: pamqp.common.FieldTable) -> None:
    encoded = pamqp.encode.field_table(plain)
    table, end = decode_table(*_bounds(encoded))
    assert end == len(encoded)
    assert encode_table(table) == encoded
    assert as_pamqp(("F", table)) == pamqp.decode.field_table(encoded)[1]
    assert set(as_plain(("F", table))) == set(plain)


_PLAIN_PROPERTIES = {
    "headers": _plain_tables,
    "delivery_mode": st.integers(1, 2),
    "priority": st.integers(0, 255),
    "timestamp": st.integers(0, 0xFFFFFFFF).map(
        lambda seconds: datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)
    ),
}
_pamqp_properties = st.fixed_dictionaries(
    {},
    optional={
        field.name: _PLAIN_PROPERTIES.get(field.name, st.text(min_size=1, max_size=30))
        for field in dataclasses.fields(Properties)
        if field.name != "cluster_id"  # pamqp refuses it
    },
)


@given(_pamqp_properties, st.integers(0, 0xFFFF), st.integers(0, 1 << 40))
def test_content_headers_have_the_bytes_that_pamqp_writes(
    chosen: dict[str, Any], channel: int, body_bytes: int
) -> None:
    theirs = pamqp.commands.Basic.Properties(
        **{name.replace("type", "message_type") if name == "type" else name: value
           for name, value in chosen.items()}
    )  # fmt: skip
    frame = pamqp.frame.marshal(
        pamqp.header.ContentHeader(body_size=body_bytes, properties=theirs), channel
    )
    [(_, _, _, at, end)] = split(frame)
    header = decode_content_header(frame, at, end)
    assert header.body_bytes == body_bytes
    ours = decode_properties(*_bounds(header.properties))
    assert encode_properties(ours) == header.properties
    present = {name for name in chosen if getattr(ours, name) is not None}
    assert present == set(chosen)
    for name in set(chosen) - {"headers", "timestamp"}:
        assert getattr(ours, name) == chosen[name]


@given(st.binary(max_size=300), st.integers(9, 100))
def test_content_frames_are_read_by_pamqp(body: bytes, frame_max_bytes: int) -> None:
    stream = b"".join(content_frames(3, b"\x10\0\x02", body, frame_max_bytes))
    at, header, bodies = 0, None, []
    while at < len(stream):
        size, channel, read = pamqp.frame.unmarshal(stream[at:])
        assert channel == 3
        assert size <= frame_max_bytes or isinstance(read, pamqp.header.ContentHeader)
        if isinstance(read, pamqp.header.ContentHeader):
            header = read
        else:
            assert isinstance(read, pamqp.body.ContentBody)
            bodies.append(read.value)
        at += size
    assert header is not None
    assert header.body_size == len(body)
    assert header.properties.delivery_mode == 2
    assert b"".join(part for part in bodies if part) == body


def test_heartbeat_and_protocol_header_are_those_of_pamqp() -> None:
    assert pamqp.heartbeat.Heartbeat().marshal() == HEARTBEAT
    assert pamqp.header.ProtocolHeader().marshal() == PROTOCOL_HEADER
    assert FRAME_MAX == 131072
