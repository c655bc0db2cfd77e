"""Load what users give to jobs: SQL, text files, and Python functions.

A function is `FILE.py:FUNCTION` or `MODULE:FUNCTION`.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from penstock.spark.errors import BadOption, JobError, explain


def read_text(name: str) -> str:
    try:
        return Path(name).read_text()
    except OSError as error:
        raise JobError(f"cannot read {name}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise JobError(f"cannot read {name}: it is not UTF-8; save it as UTF-8") from None


def sql_text(given: str) -> str:
    """SQL, or what the file.sql has."""
    return read_text(given) if given.endswith(".sql") else given


def chosen(rows: Any, where: str | None) -> Any:
    """DataFrame -> DataFrame: only the rows for which the SQL of --where holds."""
    try:
        return rows if where is None else rows.where(where)
    except Exception as error:
        raise BadOption(f"--where {where!r}: {explain(error)}") from error


def check_files(sql: str | None, function: str | None) -> None:
    """JobError for a file that cannot be read: better said before Spark takes its time."""
    sql_text(sql or "")
    place = (function or "").rpartition(":")[0]
    if place.endswith(".py"):
        read_text(place)


def load_function(given: str) -> Callable[[Any], Any]:
    """JobError says what is wrong with it."""
    place, _, name = given.rpartition(":")
    if not place or not name:
        raise JobError(f"--function {given!r}: expected FILE.py:FUNCTION or MODULE:FUNCTION")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    found = getattr(module, name, None)
    if not callable(found):
        raise JobError(f"{place} has no function {name!r}; --function takes FILE.py:FUNCTION")
    function: Callable[[Any], Any] = found
    return function


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise JobError(
            f"cannot import {name!r}: {error}; install it here and on Spark's workers, or give FILE.py:FUNCTION"
        ) from error


def _load_file(path: Path) -> ModuleType:
    """Workers do not have the file: what tasks need of it is sent to them."""
    read_text(str(path))
    from pyspark import cloudpickle  # only now: a file that is not there is told without Spark

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


def with_texts(records: Any) -> Any:
    """Add `key_text` and `value_text`: key and value as text. DataFrame -> DataFrame.

    The text is meaningful only where the bytes are UTF-8.
    """
    from pyspark.sql import functions as F

    return records.withColumns(
        {f"{name}_text": F.col(name).cast("string") for name in ("key", "value")}
    )
