"""The vocabulary of descriptions: a field says its type and the versions that carry it, once for all of them.

Version ranges are in Kafka's notation ("3+", "0-12", "2") and are only parsed when a codec is compiled.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")

NEVER: Final = (
    1 << 15
)  # beyond every version: a range that ends with "+", a message that is never flexible

Chunk: TypeAlias = (
    bytes | memoryview | Sized
)  # a Sized that is not bytes is sent as it is: a file slice
Records: TypeAlias = bytes | memoryview | list[Chunk]  # decoded: always a memoryview of the frame


class Unset:
    """Stands for a default that was not given."""

    def __repr__(self) -> str:
        return "<default>"


UNSET: Final = Unset()


class Field:
    """One field of a struct, for all versions."""

    __slots__ = ("default", "element", "ignorable", "kind", "nullable", "tag", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        default: object,
        *,
        nullable: str | None,
        tag: int | None,
        ignorable: bool,
        element: Kind[Any] | StructType | None = None,
    ) -> None:
        self.kind = kind
        self.versions = versions
        self.default = default  # UNSET: a new list, or a new struct
        self.nullable = nullable
        self.tag = tag  # tagged in all versions that carry it
        self.ignorable = ignorable  # may be dropped in silence where a version has no room for it
        self.element = element  # of an array or a nested struct

    @property
    def nested_struct(self) -> StructType:
        """What a field of kind "struct" holds, or an array of them."""
        assert isinstance(self.element, StructType), "only nested structs and arrays of them"
        return self.element

    def present_in(self, version: int) -> bool:
        return version in version_range(self.versions)

    def nullable_in(self, version: int) -> bool:
        return self.nullable is not None and version in version_range(self.nullable)


class Kind(Generic[T]):
    """A primitive type of the protocol. Calling it describes a field of that type."""

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: T | None) -> None:
        self.name = name
        self.default = default

    @overload
    def __call__(
        self,
        versions: str = ...,
        *,
        nullable: str,
        default: T | Unset | None = ...,
        tag: int | None = ...,
        ignorable: bool = ...,
    ) -> T | None: ...

    @overload
    def __call__(
        self,
        versions: str = ...,
        *,
        default: T | Unset = ...,
        tag: int | None = ...,
        ignorable: bool = ...,
    ) -> T: ...

    def __call__(
        self,
        versions: str = "0+",
        *,
        nullable: str | None = None,
        default: T | Unset | None = UNSET,
        tag: int | None = None,
        ignorable: bool = False,
    ) -> T | None:
        if default is UNSET:
            default = self.default if nullable is None else None
        field = Field(self.name, versions, default, nullable=nullable, tag=tag, ignorable=ignorable)
        return cast(T, field)  # the metaclass turns it into an attribute of type T


boolean: Final = Kind[bool]("bool", False)
int8: Final = Kind[int]("int8", 0)
int16: Final = Kind[int]("int16", 0)
int32: Final = Kind[int]("int32", 0)
int64: Final = Kind[int]("int64", 0)
uint16: Final = Kind[int]("uint16", 0)
uint32: Final = Kind[int]("uint32", 0)
float64: Final = Kind[float]("float64", 0.0)
uuid: Final = Kind[bytes]("uuid", bytes(16))
string: Final = Kind[str]("string", "")
binary: Final = Kind[bytes]("bytes", b"")
record_batches: Final = Kind[Any]("records", None)  # each message says what it accepts


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Collects a class body's fields, in wire order, and gives each a slot."""

    fields: dict[str, Field]

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: object
    ) -> StructType:
        fields = {key: value for key, value in namespace.items() if type(value) is Field}
        for key in fields:
            del namespace[key]
        namespace["__slots__"] = tuple(fields)
        made = super().__new__(cls, name, bases, namespace, **options)
        made.fields = fields
        return made


@overload
def array(
    element: Kind[T] | type[T],
    versions: str = ...,
    *,
    nullable: str,
    default: Unset | None = ...,
    tag: int | None = ...,
    ignorable: bool = ...,
) -> list[T] | None: ...


@overload
def array(
    element: Kind[T] | type[T],
    versions: str = ...,
    *,
    tag: int | None = ...,
    ignorable: bool = ...,
) -> list[T]: ...


def array(
    element: Kind[T] | type[T],
    versions: str = "0+",
    *,
    nullable: str | None = None,
    default: Unset | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> list[T] | None:
    """Describes an array; a nullable one is null unless `default=UNSET` makes it empty."""
    field = Field(
        "array",
        versions,
        UNSET if nullable is None else default,
        nullable=nullable,
        tag=tag,
        ignorable=ignorable,
        element=cast("Kind[Any] | StructType", element),
    )
    return cast("list[T]", field)


@overload
def nested(
    struct: type[T],
    versions: str = ...,
    *,
    nullable: str,
    tag: int | None = ...,
    ignorable: bool = ...,
) -> T | None: ...


@overload
def nested(
    struct: type[T], versions: str = ..., *, tag: int | None = ..., ignorable: bool = ...
) -> T: ...


def nested(
    struct: type[T],
    versions: str = "0+",
    *,
    nullable: str | None = None,
    tag: int | None = None,
    ignorable: bool = False,
) -> T | None:
    """Describes one struct inside another; a nullable one is null by default."""
    field = Field(
        "struct",
        versions,
        UNSET if nullable is None else None,
        nullable=nullable,
        tag=tag,
        ignorable=ignorable,
        element=cast("StructType", struct),
    )
    return cast(T, field)


def version_range(text: str) -> range:
    """The versions that Kafka's notation names: "3+", "0-12" or "2"."""
    if text.endswith("+"):
        return range(int(text[:-1]), NEVER)
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
