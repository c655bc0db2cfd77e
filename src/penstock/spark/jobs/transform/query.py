"""Build the query of a transform: SQL over a view, or a Python function. DataFrame -> DataFrame."""

from collections.abc import Callable
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.functions import load_function, sql_text, with_texts
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
    text = sql_text(given)

    def query(records: Any) -> Any:
        with_texts(records).createOrReplaceTempView(VIEW)
        return records.sparkSession.sql(text)

    return query


def function_query(given: str) -> Query:
    """`given`: `module:function`, or `file.py:function`."""
    function = load_function(given)

    def query(records: Any) -> Any:
        return function(with_texts(records))

    return query


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
