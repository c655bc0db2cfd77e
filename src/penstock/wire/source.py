"""Python source under construction: its lines, and the objects that they name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from struct import Struct as Packing
from typing import Any, Final

from penstock.wire.fields import Field, Kind, StructType

FORMATS: Final = {  # fixed-size kinds, in the struct module's letters
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "uint32": "I",
    "float64": "d",
    "uuid": "16s",
}


class Source:
    """The body of one function. Names that it binds are its globals."""

    def __init__(self) -> None:
        self.scope: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 1
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        before = len(self._lines)
        self._depth += 1
        yield
        if len(self._lines) == before:
            self.line("pass")
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A name that no other line uses."""
        self._names += 1
        return f"{stem}_{self._names}"

    def bind(self, stem: str, value: object) -> str:
        """A name for `value`, the same one each time."""
        for name, bound in self.scope.items():
            if bound is value:
                return name
        name = self.name(stem)
        self.scope[name] = value
        return name

    def packing(self, codes: str) -> tuple[str, int]:
        """The stem of names for big-endian `codes` packed together, and their size."""
        stem = "run_" + codes.replace("?", "o")
        packing = Packing(">" + codes)
        self.scope[f"pack_{stem}"] = packing.pack
        self.scope[f"unpack_{stem}"] = packing.unpack_from
        return stem, packing.size

    def compile(self, signature: str, label: str) -> Callable[..., Any]:
        text = "\n".join([f"def {signature}:", *self._lines])
        exec(compile(text, f"<{label}>", "exec"), self.scope)
        function: Callable[..., Any] = self.scope[signature.partition("(")[0]]
        return function


def kind_of(field: Field) -> Kind[Any]:
    """The primitive kind of an array's elements."""
    assert isinstance(field.element, Kind), "only arrays of primitives"
    return field.element


def tagged_fields(struct: StructType, version: int) -> list[tuple[str, Field]]:
    """Those in this version's tag section, in the order in which they are written."""
    tagged = [
        (name, field)
        for name, field in struct.fields.items()
        if field.tag is not None and field.present_in(version)
    ]
    return sorted(tagged, key=lambda item: item[1].tag or 0)


def least_size(struct: StructType, version: int, flexible: bool) -> int:
    """The bytes that the smallest instance takes: it bounds an array's count before its elements are made."""
    size = 1 if flexible else 0  # of the tag section
    for field in struct.fields.values():
        if field.tag is None and field.present_in(version):
            size += _least_field_size(field, version, flexible)
    return max(size, 1)


def _least_field_size(field: Field, version: int, flexible: bool) -> int:
    if field.kind == "struct":
        nullable = field.nullable_in(version)
        return 1 if nullable else least_size(field.nested_struct, version, flexible)
    return least_kind_size(field.kind, flexible)


def least_kind_size(kind: str, flexible: bool) -> int:
    if kind in FORMATS:
        return Packing(">" + FORMATS[kind]).size
    if flexible:
        return 1
    return 2 if kind == "string" else 4
