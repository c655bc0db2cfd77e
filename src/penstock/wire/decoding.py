"""Compiles decoders: one straight-line function per message and version, every length checked before use.

A run of fixed-size fields, with the length that follows it, is one unpack. Whatever the bytes, only
MalformedMessage comes out, and an array is refused by its count before any element is made.
"""

from __future__ import annotations

import struct as packing
from typing import Any, Final

from penstock.wire import primitives
from penstock.wire.constructors import shared_default
from penstock.wire.fields import UNSET, Field, StructType
from penstock.wire.source import (
    FORMATS,
    Source,
    kind_of,
    least_kind_size,
    least_size,
    struct_of,
    tagged_fields,
)

_SCOPE: Final[dict[str, Any]] = {
    "new": object.__new__,
    "unpack_from": packing.unpack_from,
    "StructError": packing.error,
    "Malformed": primitives.MalformedMessage,
    "bad_length": primitives.bad_length,
    "bad_null": primitives.bad_null,
    "bad_tag_size": primitives.bad_tag_size,
    "uvarint": primitives.read_uvarint,
    "uvarint_rest": primitives.read_uvarint_rest,
}


def compile_decoder(struct: StructType, version: int, flexible: bool) -> Any:
    """`decode(data, at) -> (message, end)`."""
    label = f"{struct.__name__} v{version}"
    source = Source()
    source.scope.update(_SCOPE)
    source.line("size = len(data)")
    with source.block("try:"):
        writer = _DecoderWriter(source, version, flexible)
        writer.struct(struct, "message")
        writer.flush()
    with source.block("except (StructError, IndexError):"):
        source.line(f"raise Malformed(f'{label} goes on after byte {{size}}, the end') from None")
    with source.block("except UnicodeDecodeError as error:"):
        source.line(f"raise Malformed(f'{label} has text that is not UTF-8: {{error}}') from None")
    source.line("return message, at")
    return source.compile("decode(data, at)", f"decoder of {label}")


class _DecoderWriter:
    """Writes the lines that read structs. `at` is the position; `n` and `end` are scratch."""

    def __init__(self, source: Source, version: int, flexible: bool) -> None:
        self._source = source
        self._line = source.line
        self._version = version
        self._flexible = flexible
        self._run: list[
            tuple[str, str]
        ] = []  # (format, target) of fixed-size reads, not yet written

    def struct(self, struct: StructType, target: str) -> None:
        self._line(f"{target} = new({self._source.bind('Struct', struct)})")
        for name, field in struct.fields.items():
            slot = f"{target}.{name}"
            if not field.present_in(self._version) or field.tag is not None:
                self._line(f"{slot} = {self._default(field)}")
            else:
                self._value(field, slot, f"{struct.__name__}.{name}")
        if self._flexible:
            self._tags(struct, target)

    def flush(self) -> None:
        """Write the pending run as one read."""
        run, self._run = self._run, []
        if run and run[0][0] == "B" and len(run) == 1:
            self._line(f"{run[0][1]} = data[at]; at += 1")
        elif run:
            stem, size = self._source.packing("".join(code for code, _ in run))
            targets = ", ".join(target for _, target in run)
            comma = "," if len(run) == 1 else ""
            self._line(f"{targets}{comma} = unpack_{stem}(data, at); at += {size}")

    def _default(self, field: Field) -> str:
        if field.default is not UNSET:
            return repr(field.default)
        if field.kind == "array":
            return "[]"
        return self._source.bind("default", shared_default(struct_of(field)))

    def _value(self, field: Field, target: str, label: str) -> None:
        nullable = field.nullable_in(self._version)
        if field.kind in FORMATS:
            self._run.append((FORMATS[field.kind], target))
        elif field.kind == "struct":
            self._nested(field, target, nullable)
        elif field.kind == "array":
            self._length("i", target, label, nullable)
            self._array(field, target, label)
        else:
            self._length("h" if field.kind == "string" else "i", target, label, nullable)
            self._bytes(field.kind, target, label)

    def _nested(self, field: Field, target: str, nullable: bool) -> None:
        name = self._source.name("nested")
        if not nullable:
            self.struct(struct_of(field), name)
        else:
            self._run.append(("b", "n"))
            self.flush()
            with self._source.block("if n < 0:"):
                self._line(f"{name} = None")
            with self._source.block("else:"):
                self.struct(struct_of(field), name)
                self.flush()
        self._line(f"{target} = {name}")

    def _length(self, code: str, target: str, label: str, nullable: bool) -> None:
        """Read a length into `n`; what is written next runs only if there is a value."""
        if self._flexible:
            self._run.append(("B", "n"))
            self.flush()
            self._line("if n > 127: n, at = uvarint_rest(n, data, at)")
            self._line("n -= 1")
        else:
            self._run.append((code, "n"))
            self.flush()
        if nullable:
            self._line(f"if n == -1: {target} = None")
        else:
            self._line(f"if n == -1: raise bad_null({label!r}, at)")

    def _bytes(self, kind: str, target: str, label: str) -> None:
        value = {"string": "str(data[at:end], 'utf-8')", "bytes": "bytes(data[at:end])"}
        with self._source.block("else:"):
            self._line("end = at + n")
            self._line(f"if n < 0 or end > size: raise bad_length({label!r}, at, n, size)")
            self._line(f"{target} = {value.get(kind, 'data[at:end]')}; at = end")

    def _array(self, field: Field, target: str, label: str) -> None:
        with self._source.block("else:"):
            least = self._least_element_size(field)
            self._line(
                f"if n < 0 or n * {least} > size - at: raise bad_length({label!r}, at, n, size)"
            )
            if isinstance(field.element, StructType):
                self._struct_array(field.element, target)
            elif kind_of(field).name == "string":
                self._string_array(target, label)
            else:
                self._fixed_array(kind_of(field).name, target)

    def _least_element_size(self, field: Field) -> int:
        if isinstance(field.element, StructType):
            return least_size(field.element, self._version, self._flexible)
        return least_kind_size(kind_of(field).name, self._flexible)

    def _struct_array(self, struct: StructType, target: str) -> None:
        items, item = self._source.name("items"), self._source.name("item")
        self._line(f"{target} = {items} = []")
        with self._source.block("for _ in range(n):"):
            self.struct(struct, item)
            self.flush()
            self._line(f"{items}.append({item})")

    def _string_array(self, target: str, label: str) -> None:
        items = self._source.name("items")
        self._line(f"{target} = {items} = []")
        with self._source.block("for _ in range(n):"):
            self._length("h", "item", label, nullable=False)
            self._bytes("string", "item", label)
            self._line(f"{items}.append(item)")

    def _fixed_array(self, kind: str, target: str) -> None:
        size = least_kind_size(kind, self._flexible)
        if kind == "uuid":
            items = f"[bytes(data[p:p + {size}]) for p in range(at, at + n * {size}, {size})]"
        else:
            items = f"list(unpack_from(f'>{{n}}{FORMATS[kind]}', data, at))"
        self._line(f"{target} = {items}; at += n * {size}")

    def _tags(self, struct: StructType, target: str) -> None:
        self._run.append(("B", "n"))
        self.flush()
        tag, end = self._source.name("tag"), self._source.name("tag_end")
        with self._source.block("if n:"):
            self._line("if n > 127: n, at = uvarint_rest(n, data, at)")
            with self._source.block("for _ in range(n):"):
                self._line(f"{tag}, at = uvarint(data, at); n, at = uvarint(data, at)")
                self._line(f"{end} = at + n")
                self._line(f"if {end} > size: raise bad_length('a tagged field', at, n, size)")
                for name, field in tagged_fields(struct, self._version):
                    with self._source.block(f"if {tag} == {field.tag}:"):
                        self._tag(field, f"{target}.{name}", f"{struct.__name__}.{name}", end)
                self._line(f"at = {end}")

    def _tag(self, field: Field, target: str, label: str, end: str) -> None:
        self._value(field, target, label)
        self.flush()
        self._line(f"if at != {end}: raise bad_tag_size({label!r}, at, {end})")
