"""Compiles decoders: one straight-line function per message and version, every length checked before use.

A run of fixed-size fields, with the length that follows it, is one unpack. Whatever the bytes, only
MalformedMessage comes out, and an array is refused by its count before any element is made.
"""

from __future__ import annotations

import struct as packing
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from penstock.wire import primitives
from penstock.wire.constructors import is_shareable, shared_default
from penstock.wire.fields import UNSET, Field, StructType
from penstock.wire.source import (
    FORMATS,
    Source,
    kind_of,
    least_kind_size,
    least_size,
    tagged_fields,
)

_SCOPE: Final[dict[str, Any]] = {
    "new": object.__new__,
    "unpack_from": packing.unpack_from,
    "StructError": packing.error,
    "Malformed": primitives.MalformedMessage,
    "bad_length": primitives.bad_length,
    "bad_tag_size": primitives.bad_tag_size,
    "uvarint": primitives.read_uvarint,
    "uvarint_rest": primitives.read_uvarint_rest,
    "skip_tags": primitives.skip_tags,
    "check_tag_count": primitives.check_tag_count,
    "too_many": primitives.too_many,
}
_STEP_ELEMENTS: Final = 2000
_SLICES: Final = {
    "string": "str(data[at:end], 'utf-8')",
    "bytes": "bytes(data[at:end])",
    "records": "data[at:end]",
}


def compile_decoder(
    struct: StructType, version: int, flexible: bool, *, in_steps: bool = False
) -> Any:
    """`decode(data, at) -> (message, end)`.

    `in_steps`: `decode(data, at, limit)` is a generator that yields between elements and returns the same. It rejects
    a message with more than `limit` array elements and tagged fields, before it makes them.
    """
    label = f"{struct.__name__} v{version}"
    source = Source()
    source.scope.update(_SCOPE)
    source.line("size = len(data)")
    if in_steps:
        source.line(f"left, step = limit, {_STEP_ELEMENTS}")
        source.line("if False: yield")  # a generator also where there are no arrays
    with source.block("try:"):
        writer = _DecoderWriter(source, version, flexible, in_steps=in_steps)
        writer.struct(struct, "message")
        writer.flush()
    with source.block("except (StructError, IndexError):"):
        source.line(f"raise Malformed(f'{label} goes on after byte {{size}}, the end') from None")
    with source.block("except UnicodeDecodeError as error:"):
        source.line(f"raise Malformed(f'{label} has text that is not UTF-8: {{error}}') from None")
    source.line("return message, at")
    signature = "decode(data, at, limit)" if in_steps else "decode(data, at)"
    return source.compile(signature, f"decoder of {label}")


class _DecoderWriter:
    """Writes the lines that read structs. `at` is the position; `n` and `end` are scratch.

    A length is read into `n` as it was sent: flexible versions send one more, and 0 for null.
    """

    def __init__(self, source: Source, version: int, flexible: bool, *, in_steps: bool) -> None:
        self._source = source
        self._in_steps = in_steps
        self._line = source.line
        self._version = version
        self._flexible = flexible
        self._length = "n - 1" if flexible else "n"
        self._run: list[tuple[str, str]] = []  # (format, target) of fixed-size reads to come

    def struct(self, struct: StructType, target: str) -> None:
        self._line(f"{target} = new({self._source.bind('Struct', struct)})")
        for name, field in struct.fields.items():
            slot = f"{target}.{name}"
            if field.tag is not None or not field.present_in(self._version):
                self._line(f"{slot} = {self._default(field)}")
            else:
                self._value(field, slot, f"{struct.__name__}.{name}")
        if self._flexible:
            self._tags(struct, target)

    def flush(self) -> None:
        """Write the pending run as one read."""
        run, self._run = self._run, []
        if len(run) == 1 and run[0][0] == "B":
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
        if is_shareable(field.nested_struct):
            return self._source.bind("default", shared_default(field.nested_struct))
        return f"{self._source.bind('Struct', field.nested_struct)}()"

    def _value(self, field: Field, target: str, label: str) -> None:
        nullable = field.nullable_in(self._version)
        if field.kind in FORMATS:
            self._run.append((FORMATS[field.kind], target))
        elif field.kind == "struct":
            self._nested(field.nested_struct, target, nullable)
        elif field.kind == "array":
            self._array(field, target, label, nullable)
        else:
            self._slice(field.kind, target, label, nullable)

    def _nested(self, struct: StructType, target: str, nullable: bool) -> None:
        name = self._source.name("nested")
        if not nullable:
            self.struct(struct, name)
            self._line(f"{target} = {name}")
            return
        self._run.append(("b", "n"))
        self.flush()
        self._line(f"if n < 0: {target} = None")
        with self._source.block("else:"):
            self.struct(struct, name)
            self.flush()
            self._line(f"{target} = {name}")

    def _read_length(self, code: str) -> None:
        self._run.append(("B" if self._flexible else code, "n"))
        self.flush()
        if self._flexible:
            self._line("if n > 127: n, at = uvarint_rest(n, data, at)")

    @contextmanager
    def _unless_null(self, target: str, nullable: bool) -> Iterator[None]:
        """What is written inside runs only if there is a value."""
        if nullable:
            self._line(f"if n == {0 if self._flexible else -1}: {target} = None")
            with self._source.block("else:"):
                yield
        else:
            yield

    def _check_length(self, too_long: str, label: str, nullable: bool) -> None:
        tests = ["n < 0"] if not self._flexible else [] if nullable else ["n == 0"]
        condition = " or ".join([*tests, too_long])
        self._line(f"if {condition}: raise bad_length({label!r}, at, {self._length}, size)")

    def _slice(self, kind: str, target: str, label: str, nullable: bool) -> None:
        """Strings, bytes and records."""
        self._read_length("h" if kind == "string" else "i")
        too_long = "end > size"
        if kind == "string" and self._flexible:
            too_long += f" or n > {primitives.MAX_STRING_BYTES + 1}"
        with self._unless_null(target, nullable):
            self._line(f"end = at + {self._length}")
            self._check_length(too_long, label, nullable)
            self._line(f"{target} = {_SLICES[kind]}; at = end")

    def _array(self, field: Field, target: str, label: str, nullable: bool) -> None:
        self._read_length("i")
        least = self._least_element_size(field)
        with self._unless_null(target, nullable):
            self._check_length(f"({self._length}) * {least} > size - at", label, nullable)
            self._count(self._length, label)
            if isinstance(field.element, StructType):
                self._struct_array(field.element, target)
            elif kind_of(field).name in FORMATS:
                self._fixed_array(kind_of(field).name, target)
            else:
                self._slice_array(kind_of(field).name, target, label)

    def _count(self, count: str, label: str) -> None:
        """Charge elements to the limit, before they are made."""
        if self._in_steps:
            self._line(f"left -= {count}")
            self._line(f"if left < 0: raise too_many({label!r}, at, limit)")

    def _step(self, count: str = "1") -> None:
        """Let others go on after so many elements."""
        if self._in_steps:
            self._line(f"step -= {count}")
            with self._source.block("if step < 0:"):
                self._line(f"step = {_STEP_ELEMENTS}")
                self._line("yield")

    def _least_element_size(self, field: Field) -> int:
        if isinstance(field.element, StructType):
            return least_size(field.element, self._version, self._flexible)
        return least_kind_size(kind_of(field).name, self._flexible)

    def _struct_array(self, struct: StructType, target: str) -> None:
        items, item = self._source.name("items"), self._source.name("item")
        self._line(f"{target} = {items} = []")
        with self._source.block(f"for _ in range({self._length}):"):
            self.struct(struct, item)
            self.flush()
            self._line(f"{items}.append({item})")
            self._step()

    def _slice_array(self, kind: str, target: str, label: str) -> None:
        items = self._source.name("items")
        self._line(f"{target} = {items} = []")
        with self._source.block(f"for _ in range({self._length}):"):
            self._slice(kind, "item", label, nullable=False)
            self._line(f"{items}.append(item)")
            self._step()

    def _fixed_array(self, kind: str, target: str) -> None:
        size = least_kind_size(kind, self._flexible)
        self._line(f"end = at + ({self._length}) * {size}")
        if kind == "uuid":
            items = f"[bytes(data[p:p + {size}]) for p in range(at, end, {size})]"
        else:
            items = f"list(unpack_from(f'>{{{self._length}}}{FORMATS[kind]}', data, at))"
        self._line(f"{target} = {items}; at = end")
        if self._in_steps:
            self._line(f"n = len({target})")
            self._step("n // 8")  # they are made faster than others

    def _tags(self, struct: StructType, target: str) -> None:
        self._run.append(("B", "n"))
        self.flush()
        tagged = tagged_fields(struct, self._version)
        if not tagged:
            with self._source.block("if n:"):
                self._line("at = skip_tags(n, data, at)")
                self._count("n", f"tags of {struct.__name__}")
                self._step("n")
            return
        tag, end = self._source.name("tag"), self._source.name("tag_end")
        with self._source.block("if n:"):
            with self._source.block("if n > 127:"):
                self._line("n, at = uvarint_rest(n, data, at)")
                self._line("check_tag_count(n, at)")
            self._count("n", f"tags of {struct.__name__}")
            self._step("n")
            with self._source.block("for _ in range(n):"):
                self._line(f"{tag}, at = uvarint(data, at); n, at = uvarint(data, at)")
                self._line(f"{end} = at + n")
                self._line(f"if {end} > size: raise bad_length('a tagged field', at, n, size)")
                for name, field in tagged:
                    with self._source.block(f"if {tag} == {field.tag}:"):
                        self._tag(field, f"{target}.{name}", f"{struct.__name__}.{name}", end)
                self._line(f"at = {end}")

    def _tag(self, field: Field, target: str, label: str, end: str) -> None:
        self._value(field, target, label)
        self.flush()
        self._line(f"if at != {end}: raise bad_tag_size({label!r}, at, {end})")
