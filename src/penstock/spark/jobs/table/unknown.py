"""Find the fields of JSON values that their schema lacks, named by path. DataFrame → DataFrame.

Spark's parser ignores such fields silently. So this module parses the values once more, for their
names alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from penstock.spark.jobs.table.schema import Type

SHOWN: Final = 10  # names
_OBJECT: Final = "map<string, variant>"
_ARRAY: Final = "array<variant>"
_LOOKED_AT: Final = 1000  # records
_NAMES: Final = "array<string>"
_Names = Callable[[Any], Any]


def unknown(text: Any, schema: Type, *, with_nulls: bool = True) -> Any:
    """An array of names such as `value.who.age`; empty where `text` is no JSON object.

    `with_nulls`: also of fields that have no value.
    """
    from pyspark.sql import functions as F

    if not with_nulls or any(_is_nested(field["type"]) for field in schema["fields"]):
        names = F.map_keys if with_nulls else lambda fields: F.map_keys(_filled(F, fields))
        found = _within(F, F.try_parse_json(text), schema, "value", names)
    else:  # cheaper
        found = _others(F, F.json_object_keys(text), schema, "value")
    return F.array_distinct(_or_none(F, found))


def first_names(rows: Any, column: str) -> list[str]:
    """Of the first records that have any, sorted."""
    from pyspark.sql import functions as F

    found = rows.where(F.size(column) > 0).select(column).limit(_LOOKED_AT).collect()
    return sorted({name for (names,) in found for name in names})


def count_unknown(values: Any, schema: Type) -> dict[str, int]:
    """How many records have each of them; the records are those of the column `value`."""
    from pyspark.sql import functions as F

    names = F.explode(unknown(F.col("value").cast("string"), schema)).alias("name")
    return dict(values.select(names).groupBy("name").count().collect())


def listed(names: Sequence[str]) -> str:
    """At most SHOWN of them were kept.

    >>> listed(["value.a", "value.b.c"])
    'value.a, value.b.c'
    """
    return ", ".join(names) + (" …" if len(names) == SHOWN else "")


def _is_nested(schema: Type) -> bool:
    """Whether a struct is somewhere in it."""
    if not isinstance(schema, Mapping):
        return False
    parts = (schema.get(name) for name in ("elementType", "valueType"))
    return schema["type"] == "struct" or any(_is_nested(part) for part in parts)


def _filled(F: Any, fields: Any) -> Any:
    return F.map_filter(fields, lambda _, value: ~F.is_variant_null(value))


def _within(F: Any, found: Any, schema: Type, path: str, names: _Names) -> Any:
    """`found` is a variant. `names`: of an object's fields."""
    match schema["type"]:
        case "struct":
            only = F.array(F.try_variant_get(found, "$", _OBJECT))  # so that it is made once
            return _each(F, only, lambda fields: _of_object(F, fields, schema, path, names))
        case "array":
            elements, inner = F.try_variant_get(found, "$", _ARRAY), schema["elementType"]
        case _:
            elements = F.map_values(F.try_variant_get(found, "$", _OBJECT))
            inner = schema["valueType"]
    return _each(F, elements, lambda element: _within(F, element, inner, f"{path}[]", names))


def _of_object(F: Any, fields: Any, schema: Type, path: str, names: _Names) -> Any:
    deeper = [
        _within(F, F.try_element_at(fields, F.lit(name)), each["type"], f"{path}.{name}", names)
        for each in schema["fields"]
        if _is_nested(each["type"]) and (name := each["name"])
    ]
    here = _others(F, names(fields), schema, path)
    return F.concat(*(_or_none(F, found) for found in (here, *deeper)))


def _others(F: Any, names: Any, schema: Type, path: str) -> Any:
    """JSON's names are taken as they are: `ID` is not `id`."""
    known = F.array(*(F.lit(field["name"]) for field in schema["fields"])).cast(_NAMES)
    prefix = F.lit(f"{path}.")
    return F.transform(F.array_except(names, known), lambda name: F.concat(prefix, name))


def _each(F: Any, elements: Any, names: Callable[[Any], Any]) -> Any:
    return F.flatten(F.transform(elements, lambda element: _or_none(F, names(element))))


def _or_none(F: Any, names: Any) -> Any:
    return F.coalesce(names, F.array().cast(_NAMES))
