"""Every message that the wire layer describes, and random instances of them."""

from importlib import import_module
from pkgutil import iter_modules
from random import Random
from typing import Any

from penstock.wire import messages
from penstock.wire.fields import Field, Kind, StructType
from penstock.wire.schema import Message

_RANGES = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def all_messages() -> list[type[Message]]:
    found: list[type[Message]] = []
    for module in iter_modules(messages.__path__):
        names = vars(import_module(f"{messages.__name__}.{module.name}"))
        found += (
            value
            for value in names.values()
            if isinstance(value, type) and issubclass(value, Message) and value is not Message
        )
    return found


API_MESSAGES = [message for message in all_messages() if message.api_key >= 0]


def module_name(message: type[Message]) -> str:
    return message.__module__.rpartition(".")[2]


def random_struct(struct: StructType, version: int, random: Random, longest: int = 20000) -> Any:
    """An instance whose every field of this version has a value that the version can carry."""
    values = {
        name: random_value(field, version, random, longest)
        for name, field in struct.fields.items()
        if field.present_in(version)
    }
    return struct(**values)


def random_value(field: Field, version: int, random: Random, longest: int) -> Any:
    if field.nullable_in(version) and random.random() < 0.3:
        return None
    if isinstance(field.element, StructType):
        if field.kind == "struct":
            return random_struct(field.element, version, random, longest)
        count = random.choice((0, 1, 1, 2, 3))
        return [random_struct(field.element, version, random, longest) for _ in range(count)]
    if isinstance(field.element, Kind):
        count = random.choice((0, 1, 3, min(20, longest)))
        return [random_primitive(field.element.name, random, longest) for _ in range(count)]
    return random_primitive(field.kind, random, longest)


def random_primitive(kind: str, random: Random, longest: int = 20000) -> Any:
    if kind in _RANGES:
        top = 1 << (_RANGES[kind] - 1)
        return random.choice((0, 1, -1, top - 1, -top, random.randrange(-top, top)))
    match kind:
        case "bool":
            return random.random() < 0.5
        case "uint16":
            return random.randrange(1 << 16)
        case "uint32":
            return random.randrange(1 << 32)
        case "float64":
            return random.uniform(-1e9, 1e9)
        case "uuid":
            return random.randbytes(16)
        case "string":
            text = random.choice(("", "orders", "größe-ключ-键", "x" * 126, "y" * 127, "z" * 300))
            return text[:longest]
        case "records":
            return memoryview(random.randbytes(min(random.choice((0, 61, 127, 20000)), longest)))
        case _:
            return random.randbytes(min(random.choice((0, 5, 126, 127, 128, 300)), longest))
