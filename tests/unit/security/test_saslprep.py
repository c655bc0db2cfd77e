"""SASLprep: the examples of RFC 4013, section 3, and what follows for names and passwords."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.security.credentials import password_problem, user_name_problem
from penstock.security.saslprep import is_portable, saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        ("I\u00adX", "IX"),  # soft hyphen maps to nothing
        ("user", "user"),  # no transformation
        ("USER", "USER"),  # case preserved
        ("\u00aa", "a"),  # NFKC
        ("\u2168", "IX"),  # NFKC
        ("a\u00a0b", "a b"),  # a space that is not ASCII
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_the_examples_of_the_rfc(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize(
    "text",
    [
        "\u0007",  # prohibited character
        "\u06271",  # bidirectional check
        "a\u0627",
        "\u0627a\u0627",
        "\ud800",  # surrogate
        "\u0378",  # not assigned
        "\x7f",
    ],
)
def test_prohibited_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"character|right-to-left"):
        saslprep(text)
    assert not is_portable(text)


@given(st.text(max_size=30))
def test_preparing_twice_is_preparing_once(text: str) -> None:
    try:
        prepared = saslprep(text)
    except ValueError:
        return
    try:
        assert saslprep(prepared) == prepared
    except ValueError:
        assert not is_portable(prepared)  # mapped to characters with other directions


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40))
def test_printable_ascii_is_portable(text: str) -> None:
    assert is_portable(text)
    assert password_problem(text) is None
    assert user_name_problem(text) is None


def test_what_clients_encode_differently_makes_no_credential() -> None:
    assert password_problem("pass\u00adword") is not None
    assert user_name_problem("\u2168") is not None
    assert password_problem("") == "the password is empty"
    assert user_name_problem("") == "Username must not be empty"
    assert password_problem("x" * 1025) is not None
    assert user_name_problem("é" * 129) is not None
    assert user_name_problem("é" * 128) is None
