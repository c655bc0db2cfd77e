"""Define the options of `penstock pipeline transform`."""

import hashlib
from dataclasses import dataclass
from typing import Final

from penstock.spark.checkpoint import Identity
from penstock.spark.job import Kind, StreamOptions, option
from penstock.spark.jobs.files import normal
from penstock.spark.jobs.names import check_name

_SHOWN_TOPICS: Final = 40


@dataclass(frozen=True, kw_only=True)
class TransformOptions(StreamOptions):
    topics: tuple[str, ...] = option("to read", metavar="TOPIC", many=True, positional=True)
    to: str = option("topic to write to", metavar="TOPIC")
    sql: str | None = option(
        "over the view `records`, or a file.sql with it", metavar="SQL|FILE", default=None
    )
    function: str | None = option(
        "of Python, DataFrame to DataFrame: file.py:name or module:name",
        metavar="FILE:NAME",
        default=None,
    )
    at_least_once: bool = option("without transactions: faster, and may double", kind=Kind.FLAG)
    compression: str = option(
        "of what is written: none, gzip, snappy, lz4 or zstd (default none)",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )
    since: int | None = option(
        "begin with the first record that is so young, such as -7d",
        kind=Kind.TIME,
        metavar="TIME",
        default=None,
    )
    new_only: bool = option("leave out what the topics have now", kind=Kind.FLAG)
    follow: bool = option("go on with what is written from now on, until stopped", kind=Kind.FLAG)
    every: int = option(
        "with --follow: time between batches (default 1s)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=1_000,
    )
    batch_records: int = option(
        "at most so many in a transaction (default 500000)",
        kind=Kind.COUNT,
        metavar="N",
        default=500_000,
    )
    transaction_timeout: int = option(
        "longer than the longest batch takes (default 15m, the most that brokers allow by default)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=900_000,
    )
    read_uncommitted: bool = option("also records of open and aborted transactions", kind=Kind.FLAG)
    allow_data_loss: bool = option("go on when retention was faster than the job", kind=Kind.FLAG)
    name: str | None = option("of the job (default: from the topics)", metavar="NAME", default=None)

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("transform needs a TOPIC")
        if (self.sql is None) == (self.function is None):
            raise ValueError("transform needs either --sql or --function")
        if self.function is not None and not all(self.function.rpartition(":")):
            raise ValueError(f"--function: expected FILE.py:NAME, not {self.function!r}")
        if self.to in self.topics:
            raise ValueError(f"transform would read what it writes to {self.to!r}, without end")
        if self.name is not None:
            check_name(self.name)
        if self.batch_records < 1 or self.transaction_timeout < 1:
            raise ValueError("--batch-records and --transaction-timeout must be at least 1")
        if self.new_only and self.since is not None:
            raise ValueError("--new-only and --since exclude each other")

    @property
    def group(self) -> str:
        """Return the name of the group, which is also the transactional id."""
        if self.name is not None:
            return f"penstock-transform-{self.name}"
        digest = hashlib.sha256(
            "\n".join([*sorted(set(self.topics)), self.to]).encode()
        ).hexdigest()
        return f"penstock-transform-{self.to[:_SHOWN_TOPICS]}-{digest[:8]}"

    @property
    def place(self) -> str:
        return normal(self.checkpoint)

    def identity(self, cluster_id: str) -> Identity:
        """Return what must stay the same from run to run: the topics, the target and the writer.

        The query may change.
        """
        how = "at least once" if self.at_least_once else "exactly once"
        return Identity(
            job="transform",
            topics=tuple(sorted(set(self.topics))),
            cluster_id=cluster_id,
            options={"to": self.to, "group": self.group, "guarantee": how},
        )
