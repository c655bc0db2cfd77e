"""Define the options of `penstock pipeline audit`."""

from dataclasses import dataclass

from penstock.spark.job import JobOptions, Kind, option


@dataclass(frozen=True, kw_only=True)
class AuditOptions(JobOptions):
    topics: tuple[str, ...] = option("to audit", metavar="TOPIC", many=True, positional=True)
    table: str | None = option(
        "of the lake job, to compare with; its dead letters count too", metavar="DIR", default=None
    )
    dead_letters: str | None = option(
        "table of the lake's dead letters (default: as the lake job says)",
        metavar="DIR",
        default=None,
    )
    without_values: bool = option(
        "with --table: compare keys, headers and times alone", kind=Kind.FLAG
    )
    iceberg_table: str | None = option(
        "with --table, of an Iceberg table: its name in the catalog",
        metavar="NAMESPACE.NAME",
        default=None,
    )
    catalog: str = option(
        "the catalog, as PyIceberg's configuration names it (default: default)",
        metavar="NAME",
        default="default",
    )
    catalog_property: tuple[tuple[str, str], ...] = option(
        "of the catalog, such as uri=…", kind=Kind.PAIR, metavar="KEY=VALUE", many=True, default=()
    )
    against: str | None = option(
        "a broker of the cluster to compare with", metavar="HOST:PORT", default=None
    )
    rename: tuple[tuple[str, str], ...] = option(
        "with --against: what a topic is called there",
        kind=Kind.PAIR,
        metavar="TOPIC=NAME",
        many=True,
        default=(),
    )
    by: str = option(
        "with --against: offset (for mirrors that keep them) or content (key and value; default offset)",
        default="offset",
        choices=("offset", "content"),
    )
    ledger: str | None = option(
        "what a producer says it wrote: CSV, JSON lines or Parquet of topic, partition, offset [, key, value, hash]",
        metavar="FILE",
        default=None,
    )
    at_least_once: bool = option(
        "with --ledger: its producer was not idempotent, and may have written a record more than once",
        kind=Kind.FLAG,
    )
    complete: bool = option(
        "also what is not there yet, or not in the ledger, is a fault", kind=Kind.FLAG
    )
    read_uncommitted: bool = option("also records of open and aborted transactions", kind=Kind.FLAG)

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("audit needs a TOPIC")
        given = [self.table, self.against, self.ledger]
        if sum(each is not None for each in given) != 1:
            raise ValueError("audit needs just one of --table, --against and --ledger")
        if self.against is None and (self.rename or self.by != "offset"):
            raise ValueError("--rename and --by need --against")
        if self.table is None and (self.dead_letters is not None or self.without_values):
            raise ValueError("--dead-letters and --without-values need --table")
        if self.table is None and self.iceberg_table is not None:
            raise ValueError("--iceberg-table needs --table")
        if self.ledger is None and self.at_least_once:
            raise ValueError("--at-least-once needs --ledger")
        if unknown := sorted({old for old, _ in self.rename} - set(self.topics)):
            raise ValueError(f"--rename: {', '.join(unknown)} is not among the topics")

    @property
    def names_there(self) -> dict[str, str]:
        """What each topic is called in the other cluster."""
        return {topic: dict(self.rename).get(topic, topic) for topic in sorted(set(self.topics))}
