import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.formats import Consumed, as_json, compile_format

MESSAGE = Consumed("orders", 3, 42, 1_700_000_000_000, b"k1", b"v1", [("a", b"1"), ("b", None)])
EMPTY = Consumed("orders", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%s\n", b"v1\n"),
        (r"%t-%p@%o %T", b"orders-3@42 1700000000000"),
        (r"%k\t%K %S", b"k1\t2 2"),
        (r"%h", b"a=1,b=NULL"),
        (r"100%% \x41\\", b"100% A\\"),
        (r"\q", rb"\q"),
        ("größe", "größe".encode()),
        ("", b""),
    ],
)
def test_tokens_stand_for_the_parts_of_a_message(text: str, expected: bytes) -> None:
    assert compile_format(text)(MESSAGE) == expected


def test_null_is_empty_with_length_minus_one() -> None:
    assert compile_format("[%k|%s] %K %S %T")(EMPTY) == b"[|] -1 -1 -1"


@pytest.mark.parametrize("text", ["%z", "%", r"\xZZ"])
def test_an_unknown_token_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"unknown token|two hex digits"):
        compile_format(text)


@given(st.text(alphabet=st.characters(exclude_characters="%\\", exclude_categories=["Cs"])))
def test_text_without_tokens_is_printed_as_it_is(text: str) -> None:
    assert compile_format(text)(MESSAGE) == text.encode()


@given(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=30))
def test_json_is_one_line_whatever_the_bytes(key: bytes | None, value: bytes | None) -> None:
    line = as_json(EMPTY._replace(key=key, value=value))
    assert line.count(b"\n") == 1
    facts = json.loads(line)
    for name, data in (("key", key), ("value", value)):
        if name in facts:
            assert facts[name] == (None if data is None else data.decode())
        else:
            assert f"{name}_base64" in facts
