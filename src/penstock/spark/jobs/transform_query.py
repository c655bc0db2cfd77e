"""What `transform` makes of records: SQL over a view, or a function of Python's. Both are DataFrame -> DataFrame."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.outgoing import Target
from penstock.spark.sink_options import SinkError
from penstock.spark.transactional import check_result

Query = Callable[[Any], Any]

VIEW: Final = "records"
SOURCE_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int, headers array<struct<key:string,value:binary>>"
)


def sql_query(given: str) -> Query:
    """`given`: SQL, or the name of a file with it."""
    text = _read(given) if given.endswith(".sql") else given

    def query(records: Any) -> Any:
        with_texts(records).createOrReplaceTempView(VIEW)
        return records.sparkSession.sql(text)

    return query


def function_query(given: str) -> Query:
    """`given`: `module:function`, or `file.py:function`."""
    place, _, name = given.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise JobError(f"{place} has no function {name!r}; --function takes FILE.py:FUNCTION")

    def query(records: Any) -> Any:
        return function(with_texts(records))

    return query


def with_texts(records: Any) -> Any:
    """DataFrame -> DataFrame: also key and value as text, for those that are UTF-8."""
    from pyspark.sql import functions as F

    return records.withColumns(
        {f"{name}_text": F.col(name).cast("string") for name in ("key", "value")}
    )


def check(session: Any, query: Query, target: Target) -> None:
    """Tries it on no records: what is wrong with it is said before anything is read."""
    try:
        result = query(session.createDataFrame([], SOURCE_SCHEMA))
        if not hasattr(result, "mapInArrow"):
            raise JobError(f"the function gave a {type(result).__name__} instead of a DataFrame")
        check_result(result, target)
    except SinkError as error:
        raise JobError(f"the result cannot be written: {error}") from error
    except JobError:
        raise
    except Exception as error:
        raise JobError(f"the transformation fails: {explain(error)}") from error


def _read(name: str) -> str:
    try:
        return Path(name).read_text()
    except OSError as error:
        raise JobError(f"cannot read {name}: {error.strerror}") from None


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise JobError(
            f"cannot import {name!r}: {error}; install it here and on Spark's workers, or give FILE.py:FUNCTION"
        ) from error


def _load_file(path: Path) -> ModuleType:
    """Workers do not have the file: what tasks need of it is sent to them."""
    from pyspark import cloudpickle

    _read(str(path))
    name = f"penstock_function_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "its name ends in .py"
    assert spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise JobError(f"{path}: {type(error).__name__}: {error}") from error
    cloudpickle.register_pickle_by_value(module)
    return module
