"""Read a schema that the user gives. Reject it before Spark starts if no table can have it."""

import json
import os
import re
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import BadOption, explain
from penstock.spark.jobs.lake.avro_values import read_avro, record_columns
from penstock.spark.jobs.table import schema as schemas
from penstock.spark.jobs.table.decode import DEEPEST

_QUOTED: Final = re.compile(r"""`[^`]*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")  # names, comments
_SHOWN: Final = 100  # characters of a schema in a message
_REMEDIES: Final = {
    "json": "make a STRING of what is deeper, which keeps it as text",
    "avro": "give a flatter one, or --decode raw",
}


def check_given(decode: str, given: str) -> None:
    """BadOption for a schema that no table can have. Whether DDL is well formed only Spark knows."""
    try:
        depth = _avro_depth(given) if decode == "avro" else _json_depth(given)
    except RecursionError:
        depth = None
    if depth is None or depth > DEEPEST:
        raise BadOption(
            f"--schema {_shown(given)}: {depth or 'very many'} structs, arrays and maps in each other; "
            f"the limit is {DEEPEST}: {_REMEDIES[decode]}"
        )


def read_schema(session: Any, given: str) -> Any:
    """Of JSON values: DDL, or a file with DDL or with Spark's JSON form; BadOption says what is wrong with it."""
    from pyspark.sql.types import StructType

    check_given("json", given)
    text = _text(given)
    try:
        if _is_json(text):
            return StructType.fromJson(_struct(text))
        found = session._jvm.org.apache.spark.sql.types.StructType.fromDDL(text.strip())
        return StructType.fromJson(json.loads(found.json()))
    except Exception as error:
        raise BadOption(f"--schema {_shown(given)}: {explain(error)}") from error


def ddl_depth(text: str) -> int:
    """How many structs, arrays and maps lie in each other, the row itself included.

    >>> ddl_depth("a INT, b ARRAY<STRUCT<`<`: INT>>")
    3
    """
    depth = deepest = 1
    for sign in re.findall("[<>]", _QUOTED.sub("", text)):
        depth += 1 if sign == "<" else -1
        deepest = max(deepest, depth)
    return deepest


def _avro_depth(path: str) -> int:
    return schemas.depth(record_columns(read_avro(path), path))


def _json_depth(given: str) -> int:
    text = _text(given)
    if not _is_json(text):
        return ddl_depth(text)
    try:
        return schemas.depth(_struct(text))
    except ValueError as error:
        raise BadOption(f"--schema {_shown(given)}: {error}") from None


def _struct(text: str) -> Any:
    """ValueError for anything but Spark's JSON form of one."""
    found = json.loads(text)
    if found.get("type") != "struct" or not isinstance(found.get("fields"), list):
        raise ValueError('expected {"type": "struct", "fields": […]}, as Spark writes a schema')
    return found


def _text(given: str) -> str:
    """A long text is no name of a file, which `Path` would not say."""
    if "\n" in given or not os.path.isfile(given):
        return given
    try:
        return Path(given).read_text()
    except UnicodeDecodeError:
        raise BadOption(f"--schema: {given} is not UTF-8; save it as UTF-8") from None


def _is_json(text: str) -> bool:
    return text.lstrip().startswith("{")


def _shown(given: str) -> str:
    return repr(given if len(given) <= _SHOWN else f"{given[:_SHOWN]}…")
