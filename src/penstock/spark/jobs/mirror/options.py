"""Define the options of `penstock pipeline mirror`: an action, topics, and two clusters."""

import re
from dataclasses import dataclass
from typing import Final

from penstock.client.connection import parse_bootstrap
from penstock.spark.job import JobOptions, Kind, option

COPY: Final = "copy"
STATUS: Final = "status"
PROMOTE: Final = "promote"
FAILBACK: Final = "failback"
ACTIONS: Final = (COPY, STATUS, PROMOTE, FAILBACK)


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(JobOptions):
    what: tuple[str, ...] = option(
        "copy (the default), status, promote or failback; then the topics: of the source for copy and "
        "failback, of the target for status and promote (none: all its mirrors)",
        metavar="[ACTION] TOPIC",
        many=True,
        positional=True,
        default=(),
    )
    target: str = option("a broker of the cluster that has the mirrors", metavar="HOST:PORT")
    pattern: str | None = option(
        "also topics whose whole name is so, those that come later too",
        metavar="REGEX",
        default=None,
    )
    rename: str = option(
        "what mirrors are called (default {topic})", metavar="PATTERN", default="{topic}"
    )
    source_name: str | None = option(
        "what {source} stands for (default: the id of the source cluster)",
        metavar="NAME",
        default=None,
    )
    groups: str | None = option(
        "copy offsets only of groups whose whole name is so (default: all)",
        metavar="REGEX",
        default=None,
    )
    no_groups: bool = option("copy no offsets of groups", kind=Kind.FLAG)
    replicas: int | None = option(
        "of each partition of a new mirror (default: as the source, if there are brokers enough)",
        kind=Kind.COUNT,
        metavar="N",
        default=None,
    )
    follow: bool = option("go on with what is written from now on, until stopped", kind=Kind.FLAG)
    every: int = option(
        "with --follow: time between rounds (default 2s)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=2_000,
    )
    patience: int = option(
        "with --follow: how long nothing may succeed (default 10m)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=600_000,
    )
    allow_data_loss: bool = option("go on when retention was faster than the job", kind=Kind.FLAG)
    discard: bool = option(
        "failback: give up records of the target that were never mirrored", kind=Kind.FLAG
    )
    translate: bool = option(
        "for targets without mirror mode, such as Apache Kafka: records are written again in transactions, "
        "and offsets of groups translated, exactly; with every action",
        kind=Kind.FLAG,
    )
    merge: bool = option(
        "with --translate: also to topics that the target has of its own; what came from it is not copied back",
        kind=Kind.FLAG,
    )
    compression: str = option(
        "with --translate: of what is written: none, gzip, snappy, lz4 or zstd (default zstd)",
        default="zstd",
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    )
    batch_records: int = option(
        "with --translate: at most so many in a transaction (default 500000)",
        kind=Kind.COUNT,
        metavar="N",
        default=500_000,
    )
    transaction_timeout: int = option(
        "with --translate: longer than so many take (default 15m, the most that brokers allow by default)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=900_000,
    )

    def __post_init__(self) -> None:
        if self.merge and not self.translate:
            raise ValueError("--merge has a meaning with --translate only")
        if self.discard and self.translate:
            raise ValueError("--discard has no meaning with --translate: nothing is made anew")
        if self.batch_records < 1 or self.transaction_timeout < 1:
            raise ValueError("--batch-records and --transaction-timeout must be at least 1")
        if self.action in (COPY, FAILBACK) and not self.topics and self.pattern is None:
            raise ValueError(f"mirror {self.action} needs a TOPIC or --pattern")
        if self.action in (STATUS, PROMOTE) and self.follow:
            raise ValueError(f"--follow has no meaning with {self.action}")
        if self.action != FAILBACK and self.discard:
            raise ValueError("--discard has a meaning with failback only")
        try:
            parse_bootstrap(self.target)
        except ValueError as error:
            raise ValueError(f"--target: {error}") from None
        if "{topic}" not in self.rename:
            raise ValueError("--rename must contain {topic}")
        if self.no_groups and self.groups is not None:
            raise ValueError("--groups and --no-groups exclude each other")
        for flag, text in (("--pattern", self.pattern), ("--groups", self.groups)):
            try:
                re.compile(text or "")
            except re.error as error:
                raise ValueError(f"{flag}: {error}") from None

    @property
    def action(self) -> str:
        """A topic of such a name comes after an action: `mirror copy status`."""
        return self.what[0] if self.what and self.what[0] in ACTIONS else COPY

    @property
    def topics(self) -> tuple[str, ...]:
        names = self.what[1:] if self.what and self.what[0] in ACTIONS else self.what
        return tuple(sorted(set(names)))
