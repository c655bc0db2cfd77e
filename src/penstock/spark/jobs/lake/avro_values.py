"""Decode Avro values, and derive the columns of a table from an Avro schema."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import BadOption, JobError
from penstock.spark.jobs.table import schema as schemas
from penstock.spark.jobs.table.batches import Storage
from penstock.spark.jobs.table.decode_avro import decode_avro
from penstock.spark.jobs.table.packages import check_fastavro
from penstock.spark.jobs.table.versions import Version, Versions

_PLAIN: Final = {
    **{"boolean": "boolean", "int": "integer", "long": "long", "float": "float"},
    **{"double": "double", "bytes": "binary", "string": "string"},
}
_KINDS: Final[dict[type, str]] = {str: "text", int: "whole number", list: "list"}  # of JSON
_SHOWN: Final = 100  # characters of a schema in a message
_LOGICAL: Final = {
    ("int", "date"): "date",
    ("long", "timestamp-millis"): "timestamp",
    ("long", "timestamp-micros"): "timestamp",
}


class AvroDecoder:
    can_fail = True
    names_unknown = False  # what a schema does not know cannot be read at all

    def __init__(self, storage: Storage, *, path: str, framing: str, evolve: bool) -> None:
        check_fastavro()
        avro = read_avro(path)
        given = record_columns(avro, path)
        versions = Versions(storage.files, storage.layout)
        last = versions.last()
        stored = last.schema if last else None
        schema = schemas.accepted(stored, given, may_grow=evolve, where=versions.where)
        self._version = Version(schema, "given", avro=avro, framing=framing)
        self.version: int | None = versions.hold(self._version)

    def prepare(self, records: Any) -> None:
        pass

    def decode(self, records: Any) -> Any:
        return decode_avro(records, self._version)


def read_avro(path: str) -> Any:
    """An .avsc file, without the logical types for which Spark has no type."""
    try:
        return _known(json.loads(Path(path).read_text()))
    except FileNotFoundError:
        raise BadOption(f"--schema: there is no file {path}") from None
    except ValueError as error:
        raise BadOption(f"--schema: {path} is not JSON: {error}") from None


def _known(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_known(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: _known(part) for name, part in schema.items()}
    logical = kept.get("logicalType")
    if logical and logical != "decimal" and [kept.get("type"), logical] not in map(list, _LOGICAL):
        del kept["logicalType"]
    return kept


def record_columns(avro: Any, path: str) -> schemas.Type:
    """Of the record that the file at `path` has; JobError names the file and what is wrong in it."""
    try:
        found = spark_type(avro)
    except JobError as error:
        raise BadOption(f"--schema: {path}: {error}") from None
    if not (isinstance(found, Mapping) and found["type"] == "struct"):
        raise BadOption(f"--schema: {path}: the lake needs a record, not {schemas.show(found)}")
    return found


def spark_type(schema: Any, names: dict[str, Any] | None = None) -> schemas.Type:
    """In Spark's JSON form; JobError for what a table cannot hold. `names`: types that were named so far."""
    known = {} if names is None else names
    if isinstance(schema, str):
        return _PLAIN[schema] if schema in _PLAIN else _named(schema, known)
    if isinstance(schema, list):
        return _union(schema, known)
    kind = _part(schema, "type")
    if not isinstance(kind, str):
        return spark_type(kind, known)
    if schema.get("logicalType") == "decimal":
        return f"decimal({_part(schema, 'precision', int)},{schema.get('scale', 0)})"
    if found := _LOGICAL.get((kind, schema.get("logicalType", ""))):
        return found
    match kind:
        case "record" | "error":
            return _record(schema, known)
        case "enum" | "fixed":
            known[_name(schema)] = "string" if kind == "enum" else "binary"
            return known[_name(schema)]
        case "array":
            items = spark_type(_part(schema, "items"), known)
            return {"type": "array", "elementType": items, "containsNull": True}
        case "map":
            values = spark_type(_part(schema, "values"), known)
            return {
                "type": "map",
                "keyType": "string",
                "valueType": values,
                "valueContainsNull": True,
            }
        case _:
            return spark_type(kind, known)


def _record(schema: Mapping[str, Any], known: dict[str, Any]) -> schemas.Type:
    known[_name(schema)] = None  # until it is done: a record cannot be in itself
    fields = [
        {
            "name": _part(field, "name", str),
            "type": spark_type(_part(field, "type"), known),
            "nullable": True,
            "metadata": {},
        }
        for field in _part(schema, "fields", list)
    ]
    known[_name(schema)] = found = {"type": "struct", "fields": fields}
    return found


def _union(members: list[Any], known: dict[str, Any]) -> schemas.Type:
    others = [member for member in members if member != "null"]
    if len(others) != 1:
        shown = json.dumps(members)
        raise JobError(f"Avro union {shown}: only null and one other type make a column")
    return spark_type(others[0], known)


def _named(name: str, known: Mapping[str, Any]) -> schemas.Type:
    found = known.get(name, known.get(name.rpartition(".")[2]))
    if found is None:
        reason = "contains itself" if name in known else "is not defined"
        raise JobError(f"Avro type {name} {reason}; the lake cannot make columns of it")
    return found


def _name(schema: Mapping[str, Any]) -> str:
    return str(_part(schema, "name", str)).rpartition(".")[2]


def _part(schema: Any, name: str, kind: type = object) -> Any:
    """What Avro demands there; JobError for a schema without it."""
    if not isinstance(schema, Mapping) or name not in schema:
        raise JobError(f"no Avro schema: {_shown(schema)} has no {name!r}")
    if not isinstance(schema[name], kind):
        raise JobError(
            f"no Avro schema: {name!r} of {_shown(schema)} must be a {_KINDS[kind]}, not {schema[name]!r}"
        )
    return schema[name]


def _shown(schema: Any) -> str:
    text = json.dumps(schema)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
