"""Messages are classes; their constructors and codecs are compiled on first use, one per version."""

from __future__ import annotations

from typing import Any, ClassVar

from penstock.wire.constructors import compile_constructor
from penstock.wire.fields import NEVER, StructType, version_range


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
