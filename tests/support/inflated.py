"""Requests with one array blown up: as many elements as the broker takes, each of a few bytes or like a client's."""

from collections.abc import Iterator
from random import Random
from typing import Any, NamedTuple

from penstock.wire.fields import Kind, StructType
from penstock.wire.schema import Message
from tests.support.plausible import World, plausible, plausible_struct

_DEEPEST = 4
_ZEROS: dict[str, Any] = {"string": "", "bytes": b"", "uuid": bytes(16), "bool": False}


class Inflated(NamedTuple):
    request: Message
    path: str  # to the array
    kind: str  # of its elements
    elements: int


def inflations(
    message: type[Message],
    version: int,
    world: World,
    random: Random,
    count: int,
    share: float = 1.0,
) -> Iterator[Inflated]:
    """One request for each array of the message and each kind of element, or a share of them."""
    for path in array_paths(message, version):
        for kind in ("empty", "plausible", "distinct"):
            if random.random() >= share:
                continue
            request = plausible(message, version, world, random)
            if _inflate(request, path, kind, count, version, world, random):
                yield Inflated(request, ".".join(path), kind, count)


def array_paths(struct: StructType, version: int, depth: int = 1) -> Iterator[tuple[str, ...]]:
    for name, field in struct.fields.items():
        if not field.present_in(version):
            continue
        if field.kind == "array":
            yield (name,)
        if isinstance(field.element, StructType) and depth < _DEEPEST:
            for rest in array_paths(field.element, version, depth + 1):
                yield (name, *rest)


def _inflate(
    struct: Any,
    path: tuple[str, ...],
    kind: str,
    count: int,
    version: int,
    world: World,
    random: Random,
) -> bool:
    name, *rest = path
    field = type(struct).fields[name]
    if rest:
        if field.kind == "struct":
            inner = getattr(struct, name)
            if inner is None:
                return False
        else:
            inner = _element(field.element, "plausible", 0, version, world, random)
            setattr(struct, name, [inner])
        return _inflate(inner, tuple(rest), kind, count, version, world, random)
    if isinstance(field.element, StructType) and kind == "plausible":
        some = [_element(field.element, kind, i, version, world, random) for i in range(20)]
        setattr(struct, name, (some * (count // 20 + 1))[:count])
    else:
        elements = [_element(field.element, kind, i, version, world, random) for i in range(count)]
        setattr(struct, name, elements)
    return True


def _element(
    element: Any, kind: str, number: int, version: int, world: World, random: Random
) -> Any:
    if isinstance(element, Kind):
        if kind == "empty":
            return _ZEROS.get(element.name, 0)
        if element.name == "string":
            return f"n-{number}" if kind == "distinct" else random.choice(list(world.topics))
        if element.name == "uuid":
            return random.choice(list(world.topics.values()))
        return _ZEROS.get(
            element.name, number % world.partitions if kind == "plausible" else number
        )
    if kind == "plausible":
        return plausible_struct(element, version, world, random)
    values: dict[str, Any] = {}
    for name, field in element.fields.items():
        if not field.present_in(version):
            continue
        if field.kind == "string":
            values[name] = f"n-{number}" if kind == "distinct" else ""
        elif kind == "distinct" and field.kind in ("int32", "int64"):
            values[name] = number
    return element(**values)
