"""Define the options of `penstock pipeline replay`."""

import hashlib
import json
from dataclasses import dataclass

from penstock.spark.job import JobOptions, Kind, option
from penstock.spark.jobs.names import check_name
from penstock.spark.jobs.replay.range import (
    Piece,
    parse_piece,
)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(JobOptions):
    topics: tuple[str, ...] = option("to read", metavar="TOPIC", many=True, positional=True)
    id: str = option("of this replay: the same one continues it, and does nothing twice")
    to: str | None = option("topic to write to", metavar="TOPIC", default=None)
    table: str | None = option(
        "directory, or URL of one, for Parquet files", metavar="DIR", default=None
    )
    since: int | None = option(
        "from this time on, such as -2h (default: from the beginning)",
        kind=Kind.TIME,
        metavar="TIME",
        default=None,
    )
    until: int | None = option(
        "before this time (default: what there is now)",
        kind=Kind.TIME,
        metavar="TIME",
        default=None,
    )
    offsets: tuple[str, ...] = option(
        "instead of times: only these, such as orders:0:100-200; repeatable",
        metavar="TOPIC:PARTITION:FIRST-AFTER",
        many=True,
        default=(),
    )
    where: str | None = option("only records for which this SQL holds", metavar="SQL", default=None)
    partitions: str | None = option(
        "keep: each record's own; key: by its key (default: keep, if the topics have equally many)",
        default=None,
        choices=("keep", "key"),
    )
    compression: str = option(
        "of what is written: none, gzip, snappy, lz4 or zstd (default none)",
        default="none",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )
    batch_records: int = option(
        "at most so many at once (default 500000)", kind=Kind.COUNT, metavar="N", default=500_000
    )
    transaction_timeout: int = option(
        "longer than so many take (default 15m)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=900_000,
    )
    read_uncommitted: bool = option("also records of open and aborted transactions", kind=Kind.FLAG)

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("replay needs a TOPIC")
        if (self.to is None) == (self.table is None):
            raise ValueError("replay needs either --to or --table")
        check_name(self.id, "--id")
        if self.batch_records < 1 or self.transaction_timeout < 1:
            raise ValueError("--batch-records and --transaction-timeout must be at least 1")
        if self.pieces and (self.since is not None or self.until is not None):
            raise ValueError("--offsets and times exclude each other")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("--since must be before --until")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return tuple(parse_piece(text) for text in self.offsets)

    @property
    def group(self) -> str:
        """Return the name of the group, which is also the transactional id."""
        return f"penstock-replay-{self.id}"

    @property
    def wish(self) -> str:
        """Return a digest of topics, target, --offsets and --where, without times.

        `-2h` is another time in every run, and only that of the first run counts.
        """
        asked = [sorted(set(self.topics)), self.to, sorted(self.offsets), self.where]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
