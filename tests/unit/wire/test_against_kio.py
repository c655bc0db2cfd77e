"""Byte for byte what kio writes, for every message and version that both know."""

from dataclasses import MISSING, fields
from random import Random

import pytest
from kio.schema.request_header.v1.header import RequestHeader as KioRequestHeader1
from kio.schema.request_header.v2.header import RequestHeader as KioRequestHeader2
from kio.static.primitive import i16, i32

from penstock.wire.header import (
    RequestHeader,
    encode_request_header,
    request_header_version,
    response_header_version,
)
from penstock.wire.schema import Message
from tests.unit.wire.catalogue import API_MESSAGES
from tests.unit.wire.kio_mirror import (
    default_in_our_terms,
    kio_bytes,
    kio_class,
    pair,
    resolve_name,
)

INSTANCES = 3
OLDER_THAN_KIO = {  # test_schema.py has their bytes
    ("WriteTxnMarkers", 0),
    ("Produce", 0),
    ("Produce", 1),
    ("Produce", 2),
}

UNKNOWN_TO_KIO = {"GetReplicaLogInfo", "MirrorAppend"}  # so are these


def api_name(message: type[Message]) -> str:
    return message.__name__.removesuffix("Request").removesuffix("Response")


KNOWN = [message for message in API_MESSAGES if api_name(message) not in UNKNOWN_TO_KIO]


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.__name__)
def test_every_version_has_the_bytes_that_kio_writes(message: type[Message]) -> None:
    for version in message.versions:
        theirs = kio_class(message, version)
        if theirs is None:
            assert (api_name(message), version) in OLDER_THAN_KIO
            continue
        random = Random(version)
        for _ in range(INSTANCES):
            our_instance, their_instance = pair(message, theirs, version, random)
            expected = kio_bytes(their_instance)
            assert our_instance.encode(version) == expected, f"v{version}"
            assert message.decode(expected, version) == our_instance, f"v{version}"


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.__name__)
def test_nothing_that_kio_knows_is_left_out(message: type[Message]) -> None:
    newest = message.versions[-1]
    assert kio_class(message, newest) is not None
    assert kio_class(message, newest + 1) is None
    assert kio_class(message, message.versions[0] - 1) is None


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.__name__)
def test_defaults_are_those_of_kio(message: type[Message]) -> None:
    theirs = kio_class(message, message.versions[-1])
    ours = message()
    for field in fields(theirs):  # type: ignore[arg-type]  # a dataclass, or the test above fails
        expected = default_in_our_terms(field)
        if expected is not MISSING:
            assert getattr(ours, resolve_name(message, field)) == expected, field.name


@pytest.mark.parametrize("message", KNOWN, ids=lambda message: message.__name__)
def test_every_version_has_the_header_that_kio_gives_it(message: type[Message]) -> None:
    request = message.__name__.endswith("Request")
    header_version = request_header_version if request else response_header_version
    for version in message.versions:
        theirs = kio_class(message, version)
        if theirs is not None:
            expected = int(theirs.__header_schema__.__version__)
            assert header_version(message.api_key, version) == expected
            assert theirs.__flexible__ == (version >= message.flexible_from)
            assert theirs.__api_key__ == message.api_key


@pytest.mark.parametrize("client_id", [None, "", "größe"])
def test_request_headers_have_the_bytes_that_kio_writes(client_id: str | None) -> None:
    for version, theirs in ((8, KioRequestHeader1), (9, KioRequestHeader2)):
        expected = theirs(
            request_api_key=i16(0),
            request_api_version=i16(version),
            correlation_id=i32(7),
            client_id=client_id,
        )
        ours = encode_request_header(RequestHeader(0, version, 7, client_id))
        assert ours == kio_bytes(expected)
