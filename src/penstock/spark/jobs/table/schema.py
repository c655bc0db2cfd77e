"""Merge and compare the schemas of decoded values. A job's schema only ever grows. Pure.

A job stores its schema beside its state. Types are in Spark's JSON form.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.spark.errors import JobError

Type = Any  # a name such as "long", or an object with "type": "struct", "array" or "map"
_INNER: Final = ("elementType", "keyType", "valueType")
_PARTS: Final = {"array": ("elementType",), "map": ("keyType", "valueType")}


class Conflict(NamedTuple):
    path: str
    old: str
    new: str


class Merged(NamedTuple):
    schema: Type
    added: tuple[str, ...]
    conflicts: tuple[Conflict, ...]  # the old type stays


def merge(old: Type, new: Type, path: str = "value") -> Merged:
    """`old` with the fields that only `new` has, all nullable; nothing is taken away."""
    if _kind(old) == _kind(new) == "struct":
        return _merge_structs(old, new, path)
    parts = _PARTS.get(_kind(old), ())
    if not parts or _kind(old) != _kind(new):
        conflict = () if old == new else (Conflict(path, show(old), show(new)),)
        return Merged(old, (), conflict)
    found = {part: merge(old[part], new[part], f"{path}[]") for part in parts}
    return Merged(
        {**old, **{part: merged.schema for part, merged in found.items()}},
        tuple(name for merged in found.values() for name in merged.added),
        tuple(each for merged in found.values() for each in merged.conflicts),
    )


def _merge_structs(old: Type, new: Type, path: str) -> Merged:
    news = {field["name"]: field for field in new["fields"]}
    fields: list[Type] = []
    added: list[str] = []
    conflicts: list[Conflict] = []
    for field in old["fields"]:
        name = field["name"]
        other = news.get(name)
        merged = merge(field["type"], other["type"] if other else field["type"], f"{path}.{name}")
        fields.append({**field, "type": merged.schema})
        added += merged.added
        conflicts += merged.conflicts
    known = {field["name"].lower() for field in old["fields"]}  # as Spark and Hive see names
    for field in new["fields"]:
        if field["name"].lower() not in known:
            fields.append({**nullable(field), "metadata": {}})
            added.append(f"{path}.{field['name']}")
    return Merged({**old, "fields": fields}, tuple(added), tuple(conflicts))


def depth(schema: Type) -> int:
    """How many structs, arrays and maps lie in each other. By a list: it is asked for those that no stack can hold."""
    deepest, left = 0, [(schema, 0)]
    while left:
        outer, above = left.pop()
        if not isinstance(outer, Mapping):
            continue
        here = above + (_kind(outer) in ("struct", *_PARTS))
        deepest = max(deepest, here)
        left += [(outer[name], here) for name in ("type", *_INNER) if name in outer]
        left += [(field, here) for field in outer.get("fields", ())]
    return deepest


def nullable(schema: Type) -> Type:
    """A field, or a type, in which anything may be missing: a topic promises nothing."""
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in ("nullable", "containsNull", "valueContainsNull"):
        if name in found:
            found[name] = True
    for name in ("type", *_INNER):
        if name in found:
            found[name] = nullable(found[name])
    if "fields" in found:
        found["fields"] = _once([nullable(field) for field in found["fields"]])
    return found


# Names that differ only in case: JSON may have them side by side, a table may not --------------------


def has_rivals(schema: Type) -> bool:
    """Whether names differ only in case, in any struct of it."""
    if _kind(schema) != "struct":
        return any(has_rivals(schema[part]) for part in _PARTS.get(_kind(schema), ()))
    return bool(_rivals(schema)) or any(has_rivals(field["type"]) for field in schema["fields"])


def without_rivals(schema: Type) -> Type:
    """Only the fields whose names are like no other."""
    if _kind(schema) != "struct":
        parts = _PARTS.get(_kind(schema), ())
        return {**schema, **{p: without_rivals(schema[p]) for p in parts}} if parts else schema
    rivals = _rivals(schema)
    kept = [field for field in schema["fields"] if field["name"] not in rivals]
    return {**schema, "fields": [{**f, "type": without_rivals(f["type"])} for f in kept]}


def settled(schema: Type, counts: Mapping[str, int], old: Type = None, path: str = "value") -> Type:
    """Of names that differ only in case the one that `old` has, else that of the most records; the others are left out.

    Only of those that `counts` can know of: what is within one of them is left for another time.
    """
    if _kind(schema) != "struct":
        parts = _PARTS.get(_kind(schema), ())
        olds = old if _kind(old) == _kind(schema) else {}
        inner = {p: settled(schema[p], counts, olds.get(p), f"{path}[]") for p in parts}
        return {**schema, **inner} if parts else schema
    olds = _types(old) if _kind(old) == "struct" else {}
    rivals = _rivals(schema)
    best = {
        min(names, key=lambda name: (name not in olds, -counts.get(f"{path}.{name}", 0), name))
        for names in _alike(schema).values()
    }
    fields = [
        field
        if name in rivals
        else {**field, "type": settled(field["type"], counts, olds.get(name), f"{path}.{name}")}
        for field in schema["fields"]
        if (name := field["name"]) in best
    ]
    return {**schema, "fields": fields}


def _alike(schema: Type) -> dict[str, list[str]]:
    """The spellings of each name, as Spark and Hive see names."""
    found: dict[str, list[str]] = {}
    for field in schema["fields"]:
        found.setdefault(field["name"].lower(), []).append(field["name"])
    return found


def _rivals(schema: Type) -> set[str]:
    return {name for names in _alike(schema).values() if len(names) > 1 for name in names}


def _types(schema: Type) -> dict[str, Type]:
    return {field["name"]: field["type"] for field in schema["fields"]}


def _once(fields: list[Type]) -> list[Type]:
    """Names that differ only in case cannot stand side by side in a table."""
    found: dict[str, Type] = {}
    for field in fields:
        found.setdefault(field["name"].lower(), field)
    return list(found.values())


def show(schema: Type) -> str:
    """As Spark's DDL has it."""
    match _kind(schema):
        case "struct":
            inner = ", ".join(f"{f['name']}: {show(f['type'])}" for f in schema["fields"])
            return f"struct<{inner}>"
        case "array":
            return f"array<{show(schema['elementType'])}>"
        case "map":
            return f"map<{show(schema['keyType'])}, {show(schema['valueType'])}>"
        case name:
            return {"long": "bigint", "integer": "int"}.get(name, name)


def accepted(stored: Type | None, given: Type, *, may_grow: bool, where: str) -> Type:
    """What the job goes on with; JobError if the table cannot."""
    if stored is None:
        return given
    merged = merge(stored, given)
    if merged.conflicts:
        first = merged.conflicts[0]
        raise JobError(
            f"{where} has {first.path} as {first.old}, and the schema that is given says {first.new}; "
            "give the old type, or write to another table"
        )
    if merged.added and not may_grow:
        raise JobError(
            f"the schema that is given has {', '.join(merged.added)}, which {where} lacks; "
            "--evolve adds what is new"
        )
    return merged.schema


def _kind(schema: Type) -> str:
    return str(schema["type"]) if isinstance(schema, Mapping) else str(schema)
