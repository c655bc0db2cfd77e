"""Repair letters with SQL over the view `letters`, or with a Python function.

Both are DataFrame -> DataFrame.
"""

from collections.abc import Callable
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.functions import load_function, sql_text
from penstock.spark.jobs.dlq.letters import PLACE

VIEW: Final = "letters"
_BYTES: Final = ("binary", "string")

Repair = Callable[[Any], Any]


def read_repair(sql: str | None, function: str | None) -> Repair | None:
    """JobError for what cannot be read. None: nothing is to be repaired."""
    if sql is not None:
        return _sql(sql_text(sql))
    return None if function is None else load_function(function)


def repaired(letters: Any, repair: Repair | None) -> Any:
    """With topic, partition, offset, key, value and headers, whose types fit; JobError says what does not."""
    try:
        result = letters if repair is None else repair(letters)
        if not hasattr(result, "select"):
            raise JobError(f"the repair gave a {type(result).__name__} instead of a DataFrame")
        types = dict(result.dtypes)
    except JobError:
        raise
    except Exception as error:
        raise JobError(f"the repair fails: {explain(error)}") from error
    missing = [name for name in (*PLACE, "key", "value", "headers") if name not in types]
    if missing:
        raise JobError(
            f"the repaired rows have no column {', '.join(missing)}; they keep topic, partition and offset, by which a "
            "letter is known, and have key, value and headers"
        )
    for name in ("key", "value"):
        if types[name] not in _BYTES:
            raise JobError(
                f"the repaired {name} is {types[name]}; make bytes or text of it, as with to_json({name})"
            )
    return result.selectExpr(*PLACE, "cast(key as binary)", "cast(value as binary)", "headers")


def check_once(rows: Any) -> None:
    """A letter goes back as one record, or a second run could not know it."""
    from pyspark.sql import functions as F

    twice = rows.groupBy(*PLACE).count().where(F.col("count") > 1).limit(1).collect()
    for topic, partition, offset, count in twice:
        raise JobError(
            f"the repair makes {count} rows of {topic}-{partition}@{offset}; it may make one of each letter"
        )


def _sql(text: str) -> Repair:
    def repair(letters: Any) -> Any:
        letters.createOrReplaceTempView(VIEW)
        return letters.sparkSession.sql(text)

    return repair
