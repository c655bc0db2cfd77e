"""Sees a streaming query through: started again where the machine was too slow, and its failure told in a job's own words."""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from penstock.spark.errors import JobError, explain

T = TypeVar("T")

_SOURCE_SAYS: Final = "set the option failOnDataLoss to false"
_WE_SAY: Final = "give --allow-data-loss"
_TOO_SLOW: Final = re.compile(r"Python worker (failed )?to connect back")
_STARTS: Final = 5  # of the query, where Python is too slow to start


def see_through(start: Callable[[], Any], watch: Callable[[Any], T]) -> T:
    """`start` gives a query that runs, `watch` returns when that has ended, and raises what ended it.

    Spark gives the Python that plans a stream ten seconds to start, whatever is set, and needs it before the query runs,
    too. Nothing was done by then, or nothing by halves.
    """
    left = _STARTS
    while True:
        query = None
        left -= 1
        try:
            query = start()
            return watch(query)
        except Exception as error:  # noqa: BLE001  # raised again, or tried again
            _judge(error, left)
        finally:
            if query is not None:
                with suppress(Exception):  # Spark itself may be gone
                    query.stop()


def _judge(error: Exception, left: int) -> None:
    """Raises, unless it is worth to start the query again."""
    said = explain(error)
    if _SOURCE_SAYS in said:
        raise JobError(said.replace(_SOURCE_SAYS, _WE_SAY)) from error
    if not _TOO_SLOW.search(said):
        raise error
    if not left:
        raise JobError(
            "Spark gives Python ten seconds to start, and this machine is too busy for that; "
            "run the job again when it is less so"
        ) from error
