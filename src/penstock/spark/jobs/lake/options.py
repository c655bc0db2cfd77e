"""Define the options of `penstock pipeline lake`, and the values that follow from them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock.spark.checkpoint import Identity
from penstock.spark.job import JobOptions, Kind, option
from penstock.spark.jobs.files import normal
from penstock.spark.jobs.lake.compact import DEFAULT_SMALL_BYTES
from penstock.spark.jobs.names import check_name
from penstock.spark.jobs.table.layout import Layout, default_dead_letters, default_name


@dataclass(frozen=True, kw_only=True)
class LakeOptions(JobOptions):
    topics: tuple[str, ...] = option("to read", metavar="TOPIC", many=True, positional=True)
    table: str = option("directory, or URL of one, that holds the table", metavar="DIR")
    decode: str = option(
        "what values are: raw, json or avro (default raw)",
        default="raw",
        choices=("raw", "json", "avro"),
    )
    schema: str | None = option(
        "of JSON: DDL such as 'id BIGINT, amount DOUBLE', or a file with it (default: found in a sample); of Avro: an .avsc file",
        metavar="DDL|FILE",
        default=None,
    )
    avro_framing: str = option(
        "what is before the Avro: confluent (a registry's five bytes) or none (default confluent)",
        default="confluent",
        choices=("confluent", "none"),
    )
    evolve: bool = option("add columns for new fields", kind=Kind.FLAG)
    unknown_fields: str = option(
        "what becomes of JSON with fields that the schema lacks: count (leave them out and tell), "
        "reject (to the dead letters) or ignore (default count)",
        default="count",
        choices=("count", "reject", "ignore"),
    )
    partition_by: str = option(
        "directories by time of the records: hour, day or none (default day)",
        default="day",
        choices=("hour", "day", "none"),
    )
    format: str = option(
        "parquet, delta or iceberg (default parquet)",
        default="parquet",
        choices=("parquet", "delta", "iceberg"),
    )
    iceberg_table: str | None = option(
        "with --format iceberg: its name in the catalog", metavar="NAMESPACE.NAME", default=None
    )
    catalog: str = option(
        "with --format iceberg: the catalog, as PyIceberg's configuration names it (default: default)",
        metavar="NAME",
        default="default",
    )
    catalog_property: tuple[tuple[str, str], ...] = option(
        "of the catalog, such as uri=…", kind=Kind.PAIR, metavar="KEY=VALUE", many=True, default=()
    )
    dead_letters: str | None = option(
        "table of what cannot be decoded (default: DIR_dead_letters)", metavar="DIR", default=None
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
        "with --follow: time between batches (default 10s)",
        kind=Kind.DURATION,
        metavar="TIME",
        default=10_000,
    )
    batch_records: int = option(
        "at most so many in a batch (default 4000000)",
        kind=Kind.COUNT,
        metavar="N",
        default=4_000_000,
    )
    read_uncommitted: bool = option("also records of open and aborted transactions", kind=Kind.FLAG)
    allow_data_loss: bool = option("go on when retention was faster than the job", kind=Kind.FLAG)
    compact: bool = option(
        "make few large files of many small ones, after the run (with --follow: every 100 batches)",
        kind=Kind.FLAG,
    )
    compact_only: bool = option("only that: read no topic", kind=Kind.FLAG)
    small_files: int = option(
        "what --compact takes for small (default 32MiB)",
        kind=Kind.SIZE,
        metavar="SIZE",
        default=DEFAULT_SMALL_BYTES,
    )
    name: str | None = option(
        "of the job (default: from table and topics)", metavar="NAME", default=None
    )
    checkpoint: str | None = option(
        "where the job keeps how far it is (default: in the table)", metavar="DIR", default=None
    )

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("lake needs a TOPIC")
        if self.name is not None:
            check_name(self.name)
        if self.batch_records < 1:
            raise ValueError("--batch-records must be at least 1")
        if self.new_only and self.since is not None:
            raise ValueError("--new-only and --since exclude each other")
        if self.follow and self.compact_only:
            raise ValueError("--follow and --compact-only exclude each other")
        if self.unknown_fields != "count" and self.decode != "json":
            raise ValueError("--unknown-fields needs --decode json")
        self._check_evolve()
        if self.format == "iceberg" and "." not in (self.iceberg_table or ""):
            raise ValueError("--format iceberg needs --iceberg-table NAMESPACE.NAME")
        if self.format == "iceberg" and (self.compact or self.compact_only):
            raise ValueError("an Iceberg table is compacted by the engine that its catalog is for")
        if self.decode == "avro" and self.schema is None:
            raise ValueError("--decode avro needs --schema FILE.avsc")
        table, dead, _ = self.layout
        if f"{dead}/".startswith(f"{table}/") or table.startswith(f"{dead}/"):
            raise ValueError(
                "--dead-letters and --table must not be the same, nor within each other"
            )

    def _check_evolve(self) -> None:
        if self.decode == "raw" and (self.schema is not None or self.evolve):
            raise ValueError("--schema and --evolve need --decode json or avro")
        if self.unknown_fields == "reject" and self.evolve:
            raise ValueError("--unknown-fields reject and --evolve exclude each other")
        if self.format != "parquet" and self.evolve:
            raise ValueError(
                f"--evolve is for Parquet; a table of --format {self.format} keeps its schema"
            )

    @property
    def layout(self) -> Layout:
        table = normal(self.table)
        dead = normal(self.dead_letters) if self.dead_letters else default_dead_letters(table)
        return Layout(table, dead, self.name or default_name(table, self.topics))

    @property
    def checkpoint_place(self) -> str:
        return normal(self.checkpoint) if self.checkpoint else self.layout.checkpoint

    def continuing(self, topics: Sequence[str]) -> "LakeOptions":
        """As a job that had these topics, of which some may be left out now; it goes on from what the table has."""
        if self.checkpoint is not None or {*topics} == {*self.topics}:
            return self
        return replace(self, checkpoint=self.layout.checkpoint_of(self.topics))

    @property
    def group(self) -> str:
        return f"penstock-lake-{self.layout.job}"

    def identity(self, cluster_id: str) -> Identity:
        """What must not change from run to run."""
        layout = self.layout
        return Identity(
            job="lake",
            topics=tuple(sorted(set(self.topics))),
            cluster_id=cluster_id,
            options={
                "name": layout.job,
                "table": layout.table,
                "dead_letters": layout.dead_letters,
                "decode": self.decode,
                "partition_by": self.partition_by,
                "format": self.format,
            },
        )
