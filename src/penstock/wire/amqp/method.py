"""How a method is described: a class whose annotations are the types on the wire.

The order of the fields is their order on the wire, and neighbouring bits share an octet. Defaults
are those of the specification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final, TypeAlias, TypeVar, dataclass_transform

from penstock.wire.amqp.tables import FieldTable

Octet: TypeAlias = int
Short: TypeAlias = int
Long: TypeAlias = int
LongLong: TypeAlias = int
Bit: TypeAlias = bool
ShortStr: TypeAlias = str  # at most 255 bytes of UTF-8
LongStr: TypeAlias = bytes
Table: TypeAlias = FieldTable

CONNECTION, CHANNEL, ACCESS, EXCHANGE, QUEUE, BASIC = 10, 20, 30, 40, 50, 60
CONFIRM, TX = 85, 90


class Method:
    """One method. Instances are never changed after they are made."""

    __slots__ = ()
    index: ClassVar[int]  # the class number times 65536, plus the method number
    name: ClassVar[str]  # for example "queue.declare-ok"
    has_content: ClassVar[bool]


METHODS: Final[dict[int, type[Method]]] = {}  # by index
_AnyMethod = TypeVar("_AnyMethod", bound=Method)


@dataclass_transform(field_specifiers=(field,))
def method(
    class_id: int, method_id: int, name: str, *, has_content: bool = False
) -> Callable[[type[_AnyMethod]], type[_AnyMethod]]:
    """Make a dataclass of the class, and enter it into `METHODS`."""

    def register(cls: type[_AnyMethod]) -> type[_AnyMethod]:
        made = dataclass(slots=True)(cls)
        made.index = class_id << 16 | method_id
        made.name = name
        made.has_content = has_content
        METHODS[made.index] = made
        return made

    return register
