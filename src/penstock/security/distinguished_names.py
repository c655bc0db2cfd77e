"""The subject of a certificate as text, in the form that Java prints (RFC 2253).

ACLs and mapping rules of existing clusters are written with Java's form, so it is followed letter
by letter: most specific attribute first, nine short names, any other attribute as `1.2.3=#hex`.
Special characters are escaped, so a value never reads as two attributes.
"""

from typing import Final, NamedTuple

MAX_CERTIFICATE_BYTES: Final = 65_536
MAX_ATTRIBUTES: Final = 64
_SEQUENCE, _SET, _OID, _VERSION = 0x30, 0x31, 0x06, 0xA0
_SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
# UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString. Java reads the
# bytes of all of them as UTF-8; values of other types are printed in hex.
_TEXT_TAGS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
_ESCAPED: Final = ',=+<>#;"\\'


class InvalidCertificate(ValueError):
    """The certificate or its subject is not well-formed DER."""


class _Element(NamedTuple):
    tag: int
    content: bytes
    whole: bytes  # with tag and length


def certificate_subject(certificate: bytes) -> str:
    """Return the subject of a DER certificate, as `getpeercert(binary_form=True)` returns it."""
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        raise InvalidCertificate(f"certificate of {len(certificate)} bytes")
    (outer,) = _elements(certificate, limit=1)
    signed = _elements(_content(outer, _SEQUENCE), limit=3)[0]
    fields = _elements(_content(signed, _SEQUENCE), limit=16)
    if fields and fields[0].tag == _VERSION:
        fields = fields[1:]
    if len(fields) < 5:  # serial number, signature algorithm, issuer, validity, subject
        raise InvalidCertificate("the certificate ends before its subject")
    return distinguished_name(fields[4].whole)


def distinguished_name(name: bytes) -> str:
    """Return a DER name as text, the last attribute first."""
    (sequence,) = _elements(name, limit=1)
    parts = _elements(_content(sequence, _SEQUENCE), limit=MAX_ATTRIBUTES)
    return ",".join(_relative_name(part) for part in reversed(parts))


def _relative_name(part: _Element) -> str:
    attributes = _elements(_content(part, _SET), limit=MAX_ATTRIBUTES)
    if not attributes:
        raise InvalidCertificate("a part of the subject has no attribute")
    return "+".join(_attribute(_content(attribute, _SEQUENCE)) for attribute in attributes)


def _attribute(data: bytes) -> str:
    pair = _elements(data, limit=2)
    if len(pair) != 2:
        raise InvalidCertificate("an attribute has no type and value")
    oid = _oid(_content(pair[0], _OID))
    value = pair[1]
    if oid not in _SHORT_NAMES or value.tag not in _TEXT_TAGS:
        return f"{_SHORT_NAMES.get(oid, oid)}=#{value.whole.hex()}"
    text = value.content.decode(errors="replace")
    return f"{_SHORT_NAMES[oid]}={_escape(text)}"


def _escape(text: str) -> str:
    escaped = "".join(
        "\\00" if char == "\0" else f"\\{char}" if char in _ESCAPED else char for char in text
    )
    leading = len(escaped) - len(escaped.lstrip(" \r"))
    trailing = len(escaped) - len(escaped.rstrip(" \r")) if leading < len(escaped) else 0
    end = len(escaped) - trailing
    return (
        "".join(f"\\{char}" for char in escaped[:leading])
        + escaped[leading:end]
        + "".join(f"\\{char}" for char in escaped[end:])
    )


# DER ---------------------------------------------------------------------------------------------


def _elements(data: bytes, *, limit: int) -> list[_Element]:
    """Split DER elements that lie one after the other."""
    found: list[_Element] = []
    position = 0
    while position < len(data):
        if len(found) == limit:
            raise InvalidCertificate(f"more than {limit} elements")
        begin, end = _bounds(data, position)
        found.append(_Element(data[position], data[begin:end], data[position:end]))
        position = end
    if not found and limit == 1:
        raise InvalidCertificate("an element is missing")
    return found


def _bounds(data: bytes, position: int) -> tuple[int, int]:
    """Return where the content of the element at `position` begins and ends."""
    if data[position] & 0x1F == 0x1F or position + 1 >= len(data):
        raise InvalidCertificate("a tag is not supported, or the data ends after it")
    size = data[position + 1]
    begin = position + 2
    if size & 0x80:
        count = size & 0x7F
        if not 1 <= count <= 4:
            raise InvalidCertificate("a length is not supported")
        size = int.from_bytes(data[begin : begin + count], "big")
        begin += count
    if begin + size > len(data):
        raise InvalidCertificate("an element is longer than its data")
    return begin, begin + size


def _content(element: _Element, tag: int) -> bytes:
    if element.tag != tag:
        raise InvalidCertificate(f"tag {element.tag:#x} instead of {tag:#x}")
    return element.content


def _oid(data: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers or data[-1] & 0x80 or len(data) > 64:
        raise InvalidCertificate("an object identifier is damaged")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))
