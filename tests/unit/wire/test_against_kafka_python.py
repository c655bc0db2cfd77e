"""kafka-python reads our bytes as the same values under the same names, and writes them back unchanged."""

from importlib import import_module
from random import Random
from typing import Any
from uuid import UUID
from warnings import catch_warnings, simplefilter

import pytest

from penstock.wire.fields import Field, StructType
from penstock.wire.messages.api_versions import ApiVersionsResponse
from penstock.wire.schema import Message, Struct
from tests.unit.wire.catalogue import all_messages, random_struct

MODULES = (
    *("producer.produce", "producer.transaction", "consumer.fetch", "consumer.group"),
    *("consumer.offsets", "consumer.metadata", "metadata.api_versions", "metadata.metadata"),
    *("metadata.find_coordinator", "admin.acl", "admin.client_quotas", "admin.cluster"),
    *("admin.configs", "admin.groups", "admin.topics", "admin.transactions", "admin.users", "sasl"),
)
INSTANCES = 2


def their_classes() -> dict[str, Any]:
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # it reads its schemas with importlib.resources
        modules = [import_module(f"kafka.protocol.{module}") for module in MODULES]
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if hasattr(value, "_struct") and hasattr(value, "_json")
    }


THEIRS = their_classes()
SHARED = [message for message in all_messages() if message.__name__ in THEIRS]


def plain(value: Any) -> Any:
    """A value of either codec, as kafka-python's `to_dict(json=False)` gives it."""
    match value:
        case Struct():
            fields = type(value).fields
            return {
                name: plain(unless_absent(fields[name], getattr(value, name))) for name in fields
            }
        case list() | tuple():
            return [plain(item) for item in value]
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case memoryview():
            return bytes(value)
        case UUID():
            return value.bytes
        case _:
            return value


def unless_absent(field: Field, value: Any) -> Any:
    """To kafka-python a struct that was not sent is None, not its default."""
    nested = field.element if field.kind == "struct" and field.tag is not None else None
    return None if isinstance(nested, StructType) and value == nested() else value


def reduced(ours: Any, theirs: Any) -> Any:
    """Ours with the fields that theirs has: those of the version. It renames sets of operations."""
    match ours, theirs:
        case dict(), dict():
            return {
                name: theirs[name]
                if name == "authorized_operations"
                else reduced(ours[name], theirs[name])
                for name in theirs
            }
        case list(), list():
            return [reduced(our, their) for our, their in zip(ours, theirs, strict=True)]
        case _:
            return ours


def test_kafka_python_shares_most_messages() -> None:
    assert len(SHARED) > 100


@pytest.mark.parametrize("message", SHARED, ids=lambda message: message.__name__)
def test_kafka_python_agrees_in_every_version(message: type[Message]) -> None:
    theirs = THEIRS[message.__name__]
    for version in message.versions:
        if version > theirs.max_version:
            continue
        random = Random(version)
        for _ in range(INSTANCES):
            ours = random_struct(message, version, random)
            if message is ApiVersionsResponse:
                ours.error_code = 0  # any error makes kafka-python read the rest as v0
            encoded = ours.encode(version)
            decoded = theirs.decode(encoded, version=version, header=False)
            if message.api_key >= 0:
                decoded._header = None  # its encoder looks at it
            their_values = plain(decoded.to_dict(json=False))
            assert reduced(plain(ours), their_values) == their_values, f"v{version}"
            assert decoded.encode(header=False) == encoded, f"v{version}"
