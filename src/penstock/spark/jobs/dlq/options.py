"""Define the options of `penstock pipeline dlq`."""

from dataclasses import dataclass

from penstock.sdk.redrive_ledger import DEFAULT_LEDGER
from penstock.spark.job import JobOptions, Kind, option
from penstock.spark.jobs.files import normal


@dataclass(frozen=True, kw_only=True)
class DlqOptions(JobOptions):
    table: str | None = option("the lake's table of dead letters", metavar="DIR", default=None)
    topic: str | None = option("the SDK's topic of dead letters", metavar="TOPIC", default=None)
    where: str | None = option(
        "only these, such as \"kind = 'not valid JSON'\"", metavar="SQL", default=None
    )
    sql: str | None = option(
        "repair: a query over the view letters, or a file.sql with it", metavar="SQL", default=None
    )
    function: str | None = option(
        "repair: a function, DataFrame -> DataFrame", metavar="FILE.py:FUNCTION", default=None
    )
    send: bool = option("send them back; else nothing is changed", kind=Kind.FLAG)
    to: str | None = option(
        "another topic than the one each came from", metavar="TOPIC", default=None
    )
    again: bool = option("also those that were sent back before", kind=Kind.FLAG)
    ledger: str = option(
        f"topic that remembers what was sent back (default {DEFAULT_LEDGER})",
        metavar="TOPIC",
        default=DEFAULT_LEDGER,
    )
    samples: int = option(
        "how many of each kind of error to show (default 3)",
        kind=Kind.COUNT,
        metavar="N",
        default=3,
    )

    def __post_init__(self) -> None:
        if (self.table is None) == (self.topic is None):
            raise ValueError("dlq needs either --table or --topic")
        if self.sql is not None and self.function is not None:
            raise ValueError("--sql and --function exclude each other")
        if not self.send and (self.to is not None or self.again):
            raise ValueError("--to and --again need --send")

    @property
    def source(self) -> str:
        return self.topic or normal(self.table or "")
