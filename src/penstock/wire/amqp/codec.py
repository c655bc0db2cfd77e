"""Compiles the decoder and the encoder of each method, at its first use, to straight-line functions.

A run of fixed-size fields, with the length of the string that follows, is one unpack. A decoder
accepts exactly the bytes of its method: a frame that is shorter or longer is a FRAME_ERROR.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, NoReturn, TypeAlias

from penstock.wire.amqp import connection_methods, methods
from penstock.wire.amqp.errors import AmqpError, ReplyCode, frame_error, octets
from penstock.wire.amqp.method import METHODS, Method
from penstock.wire.amqp.tables import decode_table, encode_table
from penstock.wire.source import Source

FRAME_METHOD, FRAME_HEADER, FRAME_BODY, FRAME_HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
INDEX_BYTES: Final = 4
MAX_SHORT_STRING_BYTES: Final = 255

_Decoder: TypeAlias = Callable[[bytes, int, int], Method]
_Encoder: TypeAlias = Callable[[Any, int], bytes]

_FORMATS: Final = {"Octet": "B", "Short": "H", "Long": "I", "LongLong": "Q"}
_INDEX: Final = struct.Struct(">I")
_MODULES: Final = (connection_methods, methods)  # importing them fills METHODS

_decoders: Final[dict[int, _Decoder]] = {}
_encoders: Final[dict[type[Method], _Encoder]] = {}


def decode_method(data: bytes, at: int, end: int) -> Method:
    """Decode the payload of a method frame, which is `data[at:end]`."""
    if end - at < INDEX_BYTES:
        raise frame_error(f"method frame of {end - at} bytes: {octets(data[at:end])}")
    index: int = _INDEX.unpack_from(data, at)[0]
    decode = _decoders.get(index) or _compile_known_decoder(index)
    return decode(data, at + INDEX_BYTES, end)


def encode_method(channel: int, method: Method) -> bytes:
    """Return the whole frame of a method."""
    encode = _encoders.get(type(method))
    if encode is None:
        encode = _encoders[type(method)] = _compile_encoder(type(method))
    return encode(method, channel)


def _compile_known_decoder(index: int) -> _Decoder:
    method = METHODS.get(index)
    if method is None:
        raise AmqpError(
            ReplyCode.NOT_IMPLEMENTED, f"unknown method {index & 0xFFFF} of class {index >> 16}"
        )
    decoder = _decoders[index] = _compile_decoder(method)
    return decoder


def _compile_decoder(method: type[Method]) -> _Decoder:
    source = Source()
    source.scope.update(
        Method=method,
        decode_table=decode_table,
        malformed=_malformed,
        malformed_utf8=_malformed_utf8,
        StructError=struct.error,
    )
    source.line("start = at")
    with source.block("try:"):
        _DecoderWriter(source).write(method)
    with source.block("except StructError:"):
        source.line("malformed(data, start, end)")
    with source.block("except UnicodeDecodeError:"):
        source.line("malformed_utf8(data, start, at, end)")
    source.line("if at != end: malformed(data, start, end)")
    source.line(f"return Method({', '.join(field.name for field in fields(method))})")  # type: ignore[arg-type]  # the decorator makes each a dataclass
    return source.compile("decode(data, at, end)", f"decoder of {method.name}")


class _DecoderWriter:
    """Writes the lines that read a method. `at` is the position; `n`, `stop` and `bits` are scratch."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._run: list[tuple[str, str]] = []  # (format, target) of fixed-size reads to come
        self._bits: list[str] = []

    def write(self, method: type[Method]) -> None:
        for described in fields(method):  # type: ignore[arg-type]  # the decorator makes each a dataclass
            self._field(described.name, str(described.type))
        self._flush()
        self._source.line("pass")

    def _field(self, name: str, kind: str) -> None:
        if kind == "Bit":
            if not self._bits:
                self._run.append(("B", "bits"))
            self._bits.append(name)
        elif self._bits:
            self._flush()
            self._field(name, kind)
        elif kind in _FORMATS:
            self._run.append((_FORMATS[kind], name))
        elif kind == "Table":
            self._flush()
            self._source.line(f"{name}, at = decode_table(data, at, end)")
        else:
            self._string(name, kind)

    def _string(self, name: str, kind: str) -> None:
        self._run.append(("B" if kind == "ShortStr" else "I", "n"))
        self._flush()
        value = "str(data[at:stop], 'utf-8')" if kind == "ShortStr" else "bytes(data[at:stop])"
        self._source.line(f"stop = at + n; {name} = {value}; at = stop")

    def _flush(self) -> None:
        if self._run:
            stem, size = self._source.packing("".join(code for code, _ in self._run))
            targets = "".join(f"{target}, " for _, target in self._run)
            self._source.line(f"{targets}= unpack_{stem}(data, at); at += {size}")
        for position, name in enumerate(self._bits):
            self._source.line(f"{name} = bits & {1 << position} != 0")
        self._run, self._bits = [], []


def _compile_encoder(method: type[Method]) -> _Encoder:
    source = Source()
    source.scope.update(encode_table=encode_table, too_long=_too_long)
    _EncoderWriter(source).write(method)
    return source.compile("encode(method, channel)", f"encoder of {method.name}")


class _EncoderWriter:
    """Writes one expression: packed runs of fixed-size fields, and between them strings and tables."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._run: list[tuple[str, str]] = []
        self._pieces: list[str] = []
        self._lengths: list[str] = []
        self._bits: list[str] = []
        self._fixed_bytes = INDEX_BYTES

    def write(self, method: type[Method]) -> None:
        self._run += [("B", str(FRAME_METHOD)), ("H", "channel"), ("I", "size")]
        self._run.append(("I", str(method.index)))
        for described in fields(method):  # type: ignore[arg-type]  # the decorator makes each a dataclass
            self._field(described.name, str(described.type))
        self._end_bits()
        self._run.append(("B", str(FRAME_END)))
        self._flush()
        self._source.line(f"size = {' + '.join([str(self._fixed_bytes), *self._lengths])}")
        self._source.line(f"return {' + '.join(self._pieces)}")

    def _field(self, name: str, kind: str) -> None:
        if kind == "Bit":
            self._bits.append(name)
            return
        self._end_bits()
        if kind in _FORMATS:
            self._fixed(_FORMATS[kind], f"method.{name}")
        elif kind == "Table":
            self._source.line(f"{name} = encode_table(method.{name})")
            self._slice(name)
        else:
            self._string(name, kind)

    def _string(self, name: str, kind: str) -> None:
        if kind == "ShortStr":
            self._source.line(f"{name} = method.{name}.encode()")
            limit = f"if len({name}) > {MAX_SHORT_STRING_BYTES}: too_long({name!r}, len({name}))"
            self._source.line(limit)
        else:
            self._source.line(f"{name} = method.{name}")
        self._fixed("B" if kind == "ShortStr" else "I", f"len({name})")
        self._slice(name)

    def _end_bits(self) -> None:
        if self._bits:
            bits = [f"method.{name} << {at}" for at, name in enumerate(self._bits)]
            self._fixed("B", " | ".join(bits))
            self._bits = []

    def _fixed(self, code: str, value: str) -> None:
        self._run.append((code, value))
        self._fixed_bytes += struct.calcsize(">" + code)

    def _slice(self, name: str) -> None:
        self._flush()
        self._pieces.append(name)
        self._lengths.append(f"len({name})")

    def _flush(self) -> None:
        if self._run:
            stem, _ = self._source.packing("".join(code for code, _ in self._run))
            self._pieces.append(f"pack_{stem}({', '.join(value for _, value in self._run)})")
        self._run = []


def _malformed(data: bytes, at: int, end: int) -> NoReturn:
    raise frame_error(f"cannot decode method arguments, {octets(data[at:end])}")


def _malformed_utf8(data: bytes, start: int, at: int, end: int) -> NoReturn:
    if at > end:
        _malformed(data, start, end)
    raise frame_error("Malformed UTF-8 in shortstr")


def _too_long(name: str, size_bytes: int) -> NoReturn:
    raise ValueError(f"{name} has {size_bytes} bytes; the limit is {MAX_SHORT_STRING_BYTES}")
