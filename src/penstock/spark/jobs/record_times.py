"""Which records are of a stretch of time: each by its own, for times need not rise with the offsets."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple


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
