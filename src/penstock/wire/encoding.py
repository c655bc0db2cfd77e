"""Compiles encoders: one straight-line function per message and version.

A run of fixed-size fields, with the length that follows it, is one pack. Records are never copied:
their chunks go into the output as they are, between the bytes of the message.
"""

from __future__ import annotations

import struct as packing
from typing import Any, Final

from penstock.wire import primitives
from penstock.wire.constructors import shared_default
from penstock.wire.fields import UNSET, Field, StructType
from penstock.wire.source import FORMATS, Source, kind_of, tagged_fields

_STEP_ELEMENTS: Final = 1000
_SCOPE: Final[dict[str, Any]] = {
    "pack": packing.pack,
    "StructError": packing.error,
    "small_uvarint": primitives.SMALL_UVARINTS,
    "uvarint": primitives.encode_uvarint,
    "string_length": primitives.encode_string_length,
    "join": b"".join,
}


def compile_encoder(
    struct: StructType, version: int, flexible: bool, *, in_steps: bool = False
) -> Any:
    """`encode(message, out)`, which appends chunks to `out`.

    `in_steps`: a generator that yields between elements of arrays.
    """
    label = f"{struct.__name__} v{version}"
    source = _begin()
    if in_steps:
        source.line(f"step = {_STEP_ELEMENTS}")
        source.line("if False: yield")  # a generator also where there are no arrays
    with source.block("try:"):
        writer = _EncoderWriter(source, version, flexible, in_steps=in_steps)
        writer.struct(struct, "message")
        writer.flush()
    with source.block("except StructError as error:"):
        source.line(f"raise ValueError(f'{label}: {{error}}') from None")
    source.line("if parts: out.append(join(parts))")
    return source.compile("encode(message, out)", f"encoder of {label}")


def _begin() -> Source:
    source = Source()
    source.scope.update(_SCOPE)
    source.line("parts = []; put = parts.append")
    return source


def _compile_tag_section(struct: StructType, version: int) -> Any:
    """`encode_tags(message) -> bytes`, for the rare message that has tagged fields."""
    source = _begin()
    source.line("sections = []")
    writer = _EncoderWriter(source, version, flexible=True)
    for name, field in tagged_fields(struct, version):
        slot = f"message.{name}"
        with source.block(f"if {writer.differs(field, slot)}:"):
            writer.value(field, slot, f"{struct.__name__}.{name}")
            writer.flush()
            source.line("body = join(parts); parts.clear()")
            source.line(f"sections.append(uvarint({field.tag}) + uvarint(len(body)) + body)")
    source.line("return uvarint(len(sections)) + join(sections)")
    return source.compile("encode_tags(message)", f"tags of {struct.__name__} v{version}")


class _EncoderWriter:
    """Writes the lines that encode structs into `parts`. `n` and `v` are scratch."""

    def __init__(
        self, source: Source, version: int, flexible: bool, *, in_steps: bool = False
    ) -> None:
        self._source = source
        self._in_steps = in_steps
        self._line = source.line
        self._version = version
        self._flexible = flexible
        self._run: list[tuple[str, str]] = []  # (format, expression), not yet written

    def struct(self, struct: StructType, target: str) -> None:
        for name, field in struct.fields.items():
            slot, label = f"{target}.{name}", f"{struct.__name__}.{name}"
            if not field.present_in(self._version):
                self._refuse_if_lost(field, slot, label)
            elif field.tag is None:
                self.value(field, slot, label)
        if self._flexible:
            self._tags(struct, target)

    def flush(self) -> None:
        """Write the pending run as one pack."""
        run, self._run = self._run, []
        if run:
            self._line(self._put(run))

    def differs(self, field: Field, slot: str) -> str:
        """An expression: does this field hold anything but its default?"""
        if field.default is None:
            return f"{slot} is not None"
        if field.default is not UNSET:
            return f"{slot} != {field.default!r}"
        if field.kind == "array":
            return f"({slot} is None or {slot})" if field.nullable else slot
        default = self._source.bind("default", shared_default(field.nested_struct))
        return f"({slot} is not {default} and {slot} != {default})"

    def value(self, field: Field, slot: str, label: str) -> None:
        if field.kind in FORMATS:
            self._run.append((FORMATS[field.kind], slot))
            return
        nullable = field.nullable_in(self._version)
        value = self._source.name("v")
        self._line(f"{value} = {slot}")
        if field.nullable and not nullable:
            problem = self._problem(label, "be null")
            self._line(f"if {value} is None: raise ValueError({problem})")
        if field.kind == "struct":
            self._nested(field.nested_struct, value, nullable)
        elif field.kind == "array":
            self._array(field, value, nullable)
        elif field.kind == "records":
            self._records(value, nullable)
        else:
            self._bytes(field.kind, value, nullable)

    def _put(self, run: list[tuple[str, str]]) -> str:
        """The line that packs a run."""
        if len(run) == 1 and run[0][0] == "B":
            return f"put(small_uvarint[{run[0][1]}])"
        stem, _ = self._source.packing("".join(code for code, _ in run))
        return f"put(pack_{stem}({', '.join(value for _, value in run)}))"

    def _put_either(self, test: str, last: str, otherwise: str) -> None:
        """Write the run with the byte `last` if `test` holds, else the run and then `otherwise`."""
        run, self._run = self._run, []
        self._line(f"if {test}: {self._put([*run, ('B', last)])}")
        before = f"{self._put(run)}; " if run else ""
        self._line(f"else: {before}put({otherwise})")

    def _problem(self, label: str, what: str) -> str:
        return repr(f"{label} cannot {what} in version {self._version}")

    def _refuse_if_lost(self, field: Field, slot: str, label: str) -> None:
        if not field.ignorable:
            problem = self._problem(label, "be sent")
            self._line(f"if {self.differs(field, slot)}: raise ValueError({problem})")

    def _nested(self, struct: StructType, value: str, nullable: bool) -> None:
        if not nullable:
            self.struct(struct, value)
            return
        self.flush()
        self._line(f"if {value} is None: put(b'\\xff')")
        with self._source.block("else:"):
            self._run.append(("b", "1"))
            self.struct(struct, value)
            self.flush()

    def _length(self, code: str, value: str, size: str, nullable: bool) -> None:
        """Write the run and a length, which is -1 for null; it stays in `n`."""
        self._line(f"n = -1 if {value} is None else {size}" if nullable else f"n = {size}")
        if self._flexible:
            encode_length = "string_length" if code == "h" else "uvarint"
            self._put_either("n < 127", "n + 1", f"{encode_length}(n + 1)")
        else:
            self._run.append((code, "n"))
            self.flush()

    def _bytes(self, kind: str, value: str, nullable: bool) -> None:
        if kind == "string":
            unless = f"None if {value} is None else " if nullable else ""
            self._line(f"{value} = {unless}{value}.encode()")
        self._length("h" if kind == "string" else "i", value, f"len({value})", nullable)
        self._line(f"if n > 0: put({value})")

    def _records(self, value: str, nullable: bool) -> None:
        size = f"sum(map(len, {value})) if {value}.__class__ is list else len({value})"
        self._length("i", value, size, nullable)
        with self._source.block("if n > 0:"):
            self._line("if parts: out.append(join(parts)); parts.clear()")
            self._line(f"if {value}.__class__ is list: out += {value}")
            self._line(f"else: out.append({value})")

    def _array(self, field: Field, value: str, nullable: bool) -> None:
        self._length("i", value, f"len({value})", nullable)
        if isinstance(field.element, StructType):
            item = self._source.name("item")
            with self._source.block(f"for {item} in {value}{' or ()' if nullable else ''}:"):
                self.struct(field.element, item)
                self.flush()
                if self._in_steps:
                    self._line("step -= 1")
                    with self._source.block("if step < 0:"):
                        self._line(f"step = {_STEP_ELEMENTS}")
                        self._line("if parts: out.append(join(parts)); parts.clear()")
                        self._line("yield")
        else:
            with self._source.block("if n > 0:"):
                self._primitive_array(kind_of(field).name, value)

    def _primitive_array(self, kind: str, value: str) -> None:
        if kind == "uuid":
            self._line(f"parts += {value}")
        elif kind in FORMATS:
            self._line(f"put(pack(f'>{{n}}{FORMATS[kind]}', *{value}))")
        else:
            with self._source.block(f"for item in {value}:"):
                self._bytes(kind, "item", nullable=False)

    def _tags(self, struct: StructType, target: str) -> None:
        tagged = tagged_fields(struct, self._version)
        if not tagged:
            self._run.append(("B", "0"))
            return
        tests = (self.differs(field, f"{target}.{name}") for name, field in tagged)
        encode_tags = self._source.bind("tags", _compile_tag_section(struct, self._version))
        self._put_either(f"not ({' or '.join(tests)})", "0", f"{encode_tags}({target})")
