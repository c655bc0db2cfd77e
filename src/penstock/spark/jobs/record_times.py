"""Select records by timestamp. Timestamps need not rise with the offsets."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_FIRST_DAY: Final = "0001-01-01"  # of the dates that readers of tables know
_LAST_DAY: Final = "9999-12-31"


class Times(NamedTuple):
    """Of the records that are taken: from `since_ms` up to, and without, `until_ms`; None is no limit."""

    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def facts(self) -> dict[str, int]:
        """Of JSON; what says nothing is left out."""
        return {name: ms for name, ms in self._asdict().items() if ms is not None}


ALWAYS: Final = Times()


def times_of(facts: Mapping[str, Any]) -> Times:
    """Of what a run before there were any has kept, too."""
    return Times(facts.get("since_ms"), facts.get("until_ms"))


def of_times(rows: Any, times: Times, column: str = "timestamp") -> Any:
    """DataFrame -> DataFrame: only the rows of these times."""
    from pyspark.sql import functions as F

    at_ms = F.unix_millis(column)
    if times.since_ms is not None:
        rows = rows.where(at_ms >= times.since_ms)
    if times.until_ms is not None:
        rows = rows.where(at_ms < times.until_ms)
    return rows


def folder_date(column: str = "timestamp") -> Any:
    """Return the date of a row's folder, as text; the nearest one for a time outside the years 1 to 9999.

    A producer may give a record any time. Readers of Delta tables and Python parse the names of folders as dates, and
    one that they do not know makes the whole table unreadable. The column itself is kept as it is.
    """
    from pyspark.sql import functions as F

    at = F.col(column)
    return (
        F.when(at < F.lit(f"{_FIRST_DAY} 00:00:00").cast("timestamp"), _FIRST_DAY)
        .when(at > F.lit(f"{_LAST_DAY} 23:59:59.999999").cast("timestamp"), _LAST_DAY)
        .otherwise(F.date_format(at, "yyyy-MM-dd"))
    )
