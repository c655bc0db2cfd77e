"""Messages are classes; their constructors and codecs are compiled on first use, one per version."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, ClassVar, Self, TypeVar, cast

from penstock.wire.constructors import compile_constructor
from penstock.wire.decoding import compile_decoder
from penstock.wire.encoding import compile_encoder
from penstock.wire.fields import NEVER, Chunk, StructType, version_range
from penstock.wire.primitives import MalformedMessage


class Struct(metaclass=StructType):
    """A part of a message. Built with keywords; fields that are left out have Kafka's defaults."""

    def __init__(self, **values: Any) -> None:
        cls = type(self)
        cls.__init__ = compile_constructor(cls)  # type: ignore[method-assign]  # once: later calls go straight there
        cls.__init__(self, **values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct) or type(self).fields is not type(other).fields:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in type(self).fields)

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).fields)
        return f"{type(self).__name__}({values})"


class Message(Struct):
    """A whole request or response."""

    api_key: ClassVar[int]
    versions: ClassVar[range]
    flexible_from: ClassVar[int]

    def __init_subclass__(
        cls, *, versions: str, api_key: int = -1, flexible_from: int = NEVER
    ) -> None:
        cls.api_key = api_key
        cls.versions = version_range(versions)
        cls.flexible_from = flexible_from

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int) -> Self:
        """The message that is exactly `data`."""
        view = memoryview(data)
        message, end = decode_for(cls, version)(view, 0)
        if end != len(view):
            raise MalformedMessage(
                f"{cls.__name__} v{version} ends at byte {end}; the frame has {len(view)}"
            )
        return message

    def encode(self, version: int) -> bytes:
        """All bytes of this message, for when its records are in memory."""
        chunks: list[Chunk] = []
        encode_for(type(self), version)(self, chunks)
        return b"".join(cast("list[bytes]", chunks))


AnyMessage = TypeVar("AnyMessage", bound=Message)

_decoders: dict[tuple[type[Message], int], Callable[[memoryview, int], Any]] = {}
_encoders: dict[tuple[type[Message], int], Callable[[Any, list[Chunk]], None]] = {}

_step_decoders: dict[
    tuple[type[Message], int],
    Callable[[memoryview, int, int], Generator[None, None, tuple[Any, int]]],
] = {}
_step_encoders: dict[
    tuple[type[Message], int], Callable[[Any, list[Chunk]], Generator[None, None, None]]
] = {}


def decode_for(
    cls: type[AnyMessage], version: int
) -> Callable[[memoryview, int], tuple[AnyMessage, int]]:
    """Reads the message at a position of a frame, and says where it ended. Whoever has the whole frame checks that nothing follows."""
    decoder = _decoders.get((cls, version))
    if decoder is None:
        _check(cls, version)
        decoder = compile_decoder(cls, version, version >= cls.flexible_from)
        _decoders[cls, version] = decoder
    return decoder


def encode_for(cls: type[AnyMessage], version: int) -> Callable[[AnyMessage, list[Chunk]], None]:
    """Appends a message's chunks to a list: bytes, and records just as they were given."""
    encoder = _encoders.get((cls, version))
    if encoder is None:
        _check(cls, version)
        encoder = compile_encoder(cls, version, version >= cls.flexible_from)
        _encoders[cls, version] = encoder
    return encoder


def decode_in_steps(
    cls: type[AnyMessage], version: int
) -> Callable[[memoryview, int, int], Generator[None, None, tuple[AnyMessage, int]]]:
    """As `decode_for`, as a generator, with a limit of array elements in all."""
    decoder = _step_decoders.get((cls, version))
    if decoder is None:
        _check(cls, version)
        decoder = compile_decoder(cls, version, version >= cls.flexible_from, in_steps=True)
        _step_decoders[cls, version] = decoder
    return decoder


def encode_in_steps(
    cls: type[AnyMessage], version: int
) -> Callable[[AnyMessage, list[Chunk]], Generator[None, None, None]]:
    """As `encode_for`, as a generator."""
    encoder = _step_encoders.get((cls, version))
    if encoder is None:
        _check(cls, version)
        encoder = compile_encoder(cls, version, version >= cls.flexible_from, in_steps=True)
        _step_encoders[cls, version] = encoder
    return encoder


def _check(cls: type[Message], version: int) -> None:
    if version not in cls.versions:
        first, last = cls.versions[0], cls.versions[-1]
        raise ValueError(f"{cls.__name__} has versions {first} to {last}, not {version}")
