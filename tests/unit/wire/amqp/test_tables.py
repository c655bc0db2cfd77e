"""Field tables: every type of RabbitMQ, both ways, within limits of depth and number."""

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.amqp.errors import AmqpError, ReplyCode
from penstock.wire.amqp.tables import (
    MAX_DEPTH,
    MAX_ELEMENTS,
    FieldTable,
    Scaled,
    as_plain,
    as_table,
    check_table,
    decode_table,
    encode_table,
)
from tests.support.amqp_values import tables


def table_bytes(entries: bytes) -> bytes:
    return struct.pack(">I", len(entries)) + entries


def decode(data: bytes) -> FieldTable:
    return decode_table(data, 0, len(data))[0]


@given(tables, st.binary(max_size=8), st.binary(max_size=8))
def test_a_table_is_read_back_as_it_was_wherever_it_lies(
    table: FieldTable, before: bytes, after: bytes
) -> None:
    encoded = encode_table(table)
    data = before + encoded + after
    end = len(before) + len(encoded)
    assert decode_table(data, len(before), end) == (table, end)
    assert check_table(data, len(before), end) == end


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        (b"t\x01", ("t", True)),
        (b"t\x02", ("t", True)),
        (b"b\xff", ("b", -1)),
        (b"B\xff", ("B", 255)),
        (b"s\xff\xfe", ("s", -2)),
        (b"u\xff\xfe", ("u", 65534)),
        (b"I\xff\xff\xff\xff", ("I", -1)),
        (b"i\xff\xff\xff\xff", ("i", 4294967295)),
        (b"l" + b"\xff" * 8, ("l", -1)),
        (b"L" + b"\xff" * 8, ("l", -1)),
        (b"f\x3f\x80\0\0", ("f", 1.0)),
        (b"d\x3f\xf0\0\0\0\0\0\0", ("d", 1.0)),
        (b"D\x02\xff\xff\xff\xff", ("D", Scaled(2, 4294967295))),
        (b"S\0\0\0\x02hi", ("S", "hi")),
        (b"S\0\0\0\x01\xff", ("S", "\udcff")),
        (b"x\0\0\0\x02\0\xff", ("x", b"\0\xff")),
        (b"T" + b"\xff" * 8, ("T", (1 << 64) - 1)),
        (b"A\0\0\0\x03VVV", ("A", [("V", None)] * 3)),
        (b"F\0\0\0\x03\x01aV", ("F", {"a": ("V", None)})),
        (b"V", ("V", None)),
    ],
)
def test_each_type_is_read_as_rabbitmq_reads_it(entry: bytes, value: object) -> None:
    assert decode(table_bytes(b"\x01n" + entry)) == {"n": value}


def test_the_first_of_two_entries_with_one_name_counts() -> None:
    assert decode(table_bytes(b"\x01nB\x01\x01nB\x02")) == {"n": ("B", 1)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x01",
        table_bytes(b"\x01n"),
        table_bytes(b"\x05n"),
        table_bytes(b"\x01nZ"),
        table_bytes(b"\x01n\0"),
        table_bytes(b"\x01nS\0\0\0\x05hi"),
        table_bytes(b"\x01nx\xff\xff\xff\xffhi"),
        table_bytes(b"\x01nI\0"),
        table_bytes(b"\x01nF\0\0\0\x09"),
        table_bytes(b"\x01nA\0\0\0\x01l"),
        table_bytes(b"\x01nf\x7f\x80\0\0"),
        table_bytes(b"\x01nf\xff\xc0\0\0"),
        table_bytes(b"\x01nd\x7f\xf8\0\0\0\0\0\0"),
    ],
)
def test_malformed_tables_are_syntax_errors(data: bytes) -> None:
    for read in (decode_table, check_table):
        for behind in (b"", bytes(64)):  # what follows in the buffer must not be read
            with pytest.raises(AmqpError) as caught:
                read(data + behind, 0, len(data))
            assert caught.value.code is ReplyCode.SYNTAX_ERROR


def nested(depth: int) -> bytes:
    """Tables inside each other, `depth` in all."""
    data = table_bytes(b"")
    for _ in range(depth - 1):
        data = table_bytes(b"\0F" + data)
    return data


def test_tables_nest_as_deep_as_the_limit_and_no_deeper() -> None:
    allowed, forbidden = nested(MAX_DEPTH), nested(MAX_DEPTH + 1)
    decode(allowed)
    assert check_table(allowed, 0, len(allowed)) == len(allowed)
    for read in (decode_table, check_table):
        with pytest.raises(AmqpError, match="nested deeper than 32"):
            read(forbidden, 0, len(forbidden))


def test_elements_are_counted_over_all_levels() -> None:
    half = MAX_ELEMENTS // 2 - 1
    for more, allowed in ((0, True), (1, False)):
        arrays = [b"V" * half, b"V" * (half + more)]
        entries = b"".join(
            bytes((1, 97 + at)) + b"A" + table_bytes(array) for at, array in enumerate(arrays)
        )
        data = table_bytes(entries)
        for read in (decode_table, check_table):
            if allowed:
                read(data, 0, len(data))
            else:
                with pytest.raises(AmqpError, match="more than 10000"):
                    read(data, 0, len(data))


@given(tables, st.data())
def test_checking_a_table_gives_what_decoding_it_gives(
    table: FieldTable, data: st.DataObject
) -> None:
    spoiled = bytearray(encode_table(table))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at] = data.draw(st.integers(0, 255))
    assert verdict(decode_table, bytes(spoiled)) == verdict(check_table, bytes(spoiled))


def verdict(read: Callable[[bytes, int, int], object], data: bytes) -> tuple[str, object]:
    try:
        result = read(data, 0, len(data))
    except AmqpError as error:
        return "error", str(error)
    return "end", result[1] if isinstance(result, tuple) else result


def test_plain_values_get_the_letters_that_clients_use() -> None:
    plain = {"a": 1, "b": 1 << 40, "c": "x", "d": b"y", "e": [True, None], "f": {"g": 1.5}}
    table = as_table(plain)
    assert table == {
        "a": ("I", 1),
        "b": ("l", 1 << 40),
        "c": ("S", "x"),
        "d": ("x", b"y"),
        "e": ("A", [("t", True), ("V", None)]),
        "f": ("F", {"g": ("d", 1.5)}),
    }
    assert as_plain(("F", table)) == plain
    with pytest.raises(TypeError, match="no set"):
        as_table({"a": {1}})


def test_names_of_more_than_255_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="256 bytes; the limit is 255"):
        encode_table({"n" * 256: ("V", None)})
