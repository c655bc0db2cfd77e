"""The same message in kio's terms: kio has one class per version, and its own types for times and errors."""

from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from importlib import import_module
from io import BytesIO
from random import Random
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from penstock.wire.fields import StructType
from penstock.wire.schema import Message
from tests.unit.wire.catalogue import module_name, random_primitive

_ERROR_CODES = [code.value for code in ErrorCode]
_OWN_TAGS = 10_000  # from here on fields are not Kafka's
_PLAIN = {"timedelta_i32": "int32", "timedelta_i64": "int64", "datetime_i64": "int64"}


def kio_class(message: type[Message], version: int) -> Any | None:
    """kio's class for this version, or None where it has none."""
    kind = "request" if message.__name__.endswith("Request") else "response"
    try:
        module = import_module(f"kio.schema.{module_name(message)}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(module, message.__name__)


def kio_bytes(instance: Any) -> bytes:
    buffer = BytesIO()
    entity_writer(type(instance))(buffer, instance)
    return buffer.getvalue()


def our_name(field: Field[Any]) -> str:
    """kio drops the unit from the names of times, and steers clear of Python's own names."""
    kind = field.metadata.get("kafka_type", "")
    name = field.name.removesuffix("_")
    return f"{name}_ms" if kind in _PLAIN else name


def pair(ours: StructType, theirs: Any, version: int, random: Random) -> tuple[Any, Any]:
    """One random instance, built field by field for both codecs. The fields must be the same ones."""
    names = {resolve_name(ours, field): field for field in fields(theirs)}
    present = {
        name
        for name, field in ours.fields.items()
        if field.present_in(version) and (field.tag or 0) < _OWN_TAGS
    }
    assert set(names) == present, f"{ours.__name__} v{version}"
    hints = get_type_hints(theirs)
    our_values: dict[str, Any] = {}
    their_values: dict[str, Any] = {}
    for name, field in names.items():
        nullable, is_array, element = unfold(hints[field.name], field)
        assert nullable == ours.fields[name].nullable_in(version), f"{name} of {ours.__name__}"
        if nullable and random.random() < 0.3:
            our_values[name] = their_values[field.name] = None
            continue
        count = random.choice((0, 1, 3)) if is_array else 1
        items = [_item(ours, name, field, element, version, random) for _ in range(count)]
        our_values[name] = [item for item, _ in items] if is_array else items[0][0]
        their_values[field.name] = tuple(item for _, item in items) if is_array else items[0][1]
    return ours(**our_values), theirs(**their_values)


def resolve_name(ours: StructType, field: Field[Any]) -> str:
    name = our_name(field)
    return name if name in ours.fields else field.name


def unfold(hint: Any, field: Field[Any]) -> tuple[bool, bool, Any]:
    """Whether the field may be null, whether it is an array, and the type inside. (kio's null UUID is the zero one.)"""
    nullable = False
    if get_origin(hint) in (Union, UnionType):
        inner = next(kind for kind in get_args(hint) if kind is not type(None))
        is_array = get_origin(inner) is tuple
        kind = field.metadata.get("kafka_type")
        nullable = is_array or kind not in ("uuid", "datetime_i64")
        hint = inner
    if get_origin(hint) is tuple:
        return nullable, True, get_args(hint)[0]
    return nullable, False, hint


def _item(
    ours: StructType, name: str, field: Field[Any], element: Any, version: int, random: Random
) -> tuple[Any, Any]:
    kind = field.metadata.get("kafka_type")
    if kind is None:
        struct = ours.fields[name].element
        assert isinstance(struct, StructType)
        return pair(struct, element, version, random)
    if kind == "error_code":
        code = random.choice(_ERROR_CODES)
        return code, ErrorCode(code)
    if kind in ("timedelta_i64", "datetime_i64"):
        time_ms = random.randrange(1, 1 << 41)
        return time_ms, from_plain(kind, time_ms)
    value = random_primitive(_PLAIN.get(kind, kind), random)
    return value, from_plain(kind, value)


def from_plain(kind: str, value: Any) -> Any:
    match kind:
        case "timedelta_i32" | "timedelta_i64":
            return timedelta(milliseconds=value)
        case "datetime_i64":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
        case "uuid":
            return UUID(bytes=value)
        case "records":
            return bytes(value)
        case _:
            return value


def default_in_our_terms(field: Field[Any]) -> Any:
    """kio's default as a plain value, or MISSING where it has none that says anything."""
    default, kind = field.default, field.metadata.get("kafka_type")
    if default is MISSING or kind is None:
        return MISSING
    if default is None and kind in ("uuid", "datetime_i64") and "tuple" not in str(field.type):
        return bytes(16) if kind == "uuid" else -1
    if isinstance(default, timedelta):
        return default // timedelta(milliseconds=1)
    if isinstance(default, tuple):
        return list(default)
    return default.value if isinstance(default, ErrorCode) else default
