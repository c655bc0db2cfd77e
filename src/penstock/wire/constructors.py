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
        parameters.append(_parameter(name, field, scope))
        fresh_list = field.default is UNSET and field.kind == "array"
        body.append(
            f"self.{name} = " + (f"[] if {name} is UNSET else {name}" if fresh_list else name)
        )
    signature = f"self, *, {', '.join(parameters)}" if parameters else "self"
    source = f"def __init__({signature}):\n    " + "\n    ".join(body or ["pass"])
    exec(compile(source, f"<constructor of {struct.__name__}>", "exec"), scope)
    constructor: Callable[..., None] = scope["__init__"]
    return constructor


def _parameter(name: str, field: Field, scope: dict[str, Any]) -> str:
    if field.default is UNSET and isinstance(field.element, StructType) and field.kind == "struct":
        scope[f"default_{name}"] = shared_default(field.element)
    elif field.default is UNSET:
        scope[f"default_{name}"] = UNSET
    else:
        scope[f"default_{name}"] = field.default
    return f"{name}=default_{name}"


_defaults: dict[StructType, Any] = {}


def shared_default(struct: StructType) -> Any:
    """The one instance that stands for "not given" wherever this struct is nested. It cannot be changed."""
    default = _defaults.get(struct)
    if default is None:
        default = struct()
        default.__class__ = type(struct)(struct.__name__, (struct,), {"__setattr__": _refuse})
        type(default).fields = struct.fields
        _defaults[struct] = default
    return default


def _refuse(self: object, name: str, value: object) -> None:  # noqa: ARG001  # the signature of __setattr__
    raise AttributeError(f"the default {type(self).__name__} is shared: assign a new one")
