"""SASLprep (RFC 4013): the form of a name or password in which all clients agree.

Some clients prepare names and passwords (sarama, xdg-go), most do not (Java, librdkafka,
kafka-python). A name or password that equals its prepared form works with all of them.
Python's `stringprep` implements Unicode 3.2, as RFC 3454 requires.
"""

import stringprep
import unicodedata
from typing import Final

_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


def saslprep(text: str) -> str:
    """Return the prepared form of a stored string. Raise ValueError if a character is prohibited."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char
        for char in text
        if not stringprep.in_table_b1(char)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for char in prepared:
        if any(is_in(char) for is_in in _PROHIBITED):
            raise ValueError(f"character U+{ord(char):04X} is not allowed")
        if stringprep.in_table_a1(char):
            raise ValueError(f"character U+{ord(char):04X} is not assigned in Unicode 3.2")
    _check_direction(prepared)
    return prepared


def is_portable(text: str) -> bool:
    """Whether clients with and without SASLprep use the same bytes for `text`."""
    try:
        return saslprep(text) == text
    except ValueError:
        return False


def _check_direction(text: str) -> None:
    """Check the rules for right-to-left text (RFC 3454, section 6)."""
    if not any(stringprep.in_table_d1(char) for char in text):
        return
    if any(stringprep.in_table_d2(char) for char in text):
        raise ValueError("left-to-right and right-to-left characters are mixed")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise ValueError("right-to-left text must begin and end with a right-to-left character")
