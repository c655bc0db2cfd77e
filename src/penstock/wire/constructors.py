"""Compiles a struct's keyword-only constructor, and its shared default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.wire.fields import UNSET, Field, StructType


def compile_constructor(struct: StructType) -> Callable[..., None]:
    """`__init__` with one keyword per field; every list it makes is a new one."""
    scope: dict[str, Any] = {"UNSET": UNSET}
    parameters: list[str] = []
    body: list[str] = []
    for name, field in struct.fields.items():
        fresh = _fresh_default(name, field, scope)
        body.append(
            f"self.{name} = " + (f"{fresh} if {name} is UNSET else {name}" if fresh else name)
        )
        scope[f"default_{name}"] = UNSET if fresh else _constant_default(field)
        parameters.append(f"{name}=default_{name}")
    signature = f"self, *, {', '.join(parameters)}" if parameters else "self"
    source = f"def __init__({signature}):\n    " + "\n    ".join(body or ["pass"])
    exec(compile(source, f"<constructor of {struct.__name__}>", "exec"), scope)
    constructor: Callable[..., None] = scope["__init__"]
    return constructor


def _fresh_default(name: str, field: Field, scope: dict[str, Any]) -> str | None:
    """The expression that makes this field's default, where each instance needs its own."""
    if field.default is not UNSET:
        return None
    if field.kind == "array":
        return "[]"
    if is_shareable(field.nested_struct):
        return None
    scope[f"struct_{name}"] = field.nested_struct
    return f"struct_{name}()"


def _constant_default(field: Field) -> object:
    return shared_default(field.nested_struct) if field.default is UNSET else field.default


def is_shareable(struct: StructType) -> bool:
    """Has it nothing inside that could be changed, no list?"""
    return all(
        field.kind != "array" and (field.kind != "struct" or is_shareable(field.nested_struct))
        for field in struct.fields.values()
    )


_defaults: dict[StructType, Any] = {}


def shared_default(struct: StructType) -> Any:
    """The one instance that stands for "not given" where this struct is nested. It refuses changes."""
    default = _defaults.get(struct)
    if default is None:
        default = struct()
        default.__class__ = type(struct)(struct.__name__, (struct,), {"__setattr__": _refuse})
        type(default).fields = struct.fields
        _defaults[struct] = default
    return default


def _refuse(self: object, name: str, value: object) -> None:  # noqa: ARG001  # the signature of __setattr__
    raise AttributeError(f"the default {type(self).__name__} is shared: assign a new one")
