"""Add each batch of records to a table exactly once, however often it is retried or killed.

1. If the batch has a manifest, the batch is in the table: only complete its renames.
2. Otherwise stage the rows in a directory of this attempt, which readers ignore.
3. Read the staged files back. Reject records that the table already has.
4. Create the manifest, atomically and only if absent. From here on the batch is in the table.
5. Rename the staged files to their final names, then delete the staging directory. If that
   directory is gone, all steps are done.

Tests kill the job at each of STEPS, which are in order.
"""

import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files, for_spark
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.decode import ERROR, RAW, UNKNOWN, Decoder
from penstock.spark.jobs.table.layout import DEAD_COLUMNS, Layout
from penstock.spark.jobs.table.manifest import DataFile, Manifest, Span, Spans, Table
from penstock.spark.jobs.table.unknown import SHOWN, first_names
from penstock.spark.steps import reached

STEPS: Final = (
    *("lake:begun", "lake:staged", "lake:dead-staged", "lake:read-back", "lake:manifest"),
    *("lake:first-renamed", "lake:renamed", "lake:table", "lake:cleaned"),
)
_SCHEMA: Final = "topic string, partition int, offset bigint"


class Storage(NamedTuple):
    """The table, the dead letters, and how to reach them."""

    layout: Layout
    files: Files
    dead_files: Files

    def attempt(self, table: Table, name: str) -> str:
        """Where an attempt stages."""
        layout = self.layout
        return f"{layout.staging if table is Table.ROWS else layout.dead_staging}/{name}"

    def final(self, file: DataFile) -> str:
        layout = self.layout
        return f"{layout.table if file.table is Table.ROWS else layout.dead_letters}/{file.final}"

    def of(self, table: Table) -> Files:
        return self.files if table is Table.ROWS else self.dead_files

    def find(self, number: int) -> Manifest | None:
        path = f"{self.layout.manifests}/{manifests.name(number)}"
        return manifests.from_json(self.files.read(path)) if self.files.exists(path) else None

    def last(self) -> Manifest | None:
        numbers = manifests.numbers(self.files.names(self.layout.manifests))
        return self.find(numbers[-1]) if numbers else None


class Origin(NamedTuple):
    """Where a batch comes from: its checkpoint, and what that had planned."""

    query: str
    batch: int
    planned_end: str | None
    checkpoint: str


class Totals:
    """Of one run."""

    def __init__(self) -> None:
        self.batches = self.rows = self.dead_letters = self.files = self.size_bytes = 0
        self.unknown_fields = 0  # rows of which fields were left out
        self.unknown_names: list[str] = []  # the first of those fields

    def add(self, manifest: Manifest) -> None:
        self.batches += 1
        self.rows += manifest.rows
        self.dead_letters += manifest.dead_letters
        self.files += len(manifest.files)
        self.size_bytes += sum(file.size_bytes for file in manifest.files)
        self.unknown_fields += manifest.unknown_fields

    def name(self, fields: Sequence[str]) -> None:
        new = [field for field in fields if field not in self.unknown_names]
        self.unknown_names += new[: SHOWN - len(self.unknown_names)]


class _Staged(NamedTuple):
    records: int
    unknown_fields: int  # rows of which fields were left out


class Batches:
    """Used by one thread: Spark's, which runs one batch after the other."""

    def __init__(
        self,
        session: Any,
        storage: Storage,
        decoder: Decoder,
        folders: tuple[str, ...],
        place: Callable[[Any, tuple[str, ...]], Any],
        commit_to_table: Callable[[Manifest], None],
    ) -> None:
        """`folders`: columns that become directories, which `place` adds to rows."""
        self._session = session
        self._storage = storage
        self._decoder = decoder
        self._folders = folders
        self._place = place
        self._commit_to_table = commit_to_table
        self._covered: Spans | None = None  # read once: afterwards only we change it
        self.totals = Totals()

    def take(self, records: Any, number: int, origin: Origin) -> None:
        reached("lake:begun")
        manifest = self._storage.find(number)
        if manifest is None:
            manifest = self._write(records, number, origin)
            self.totals.add(manifest)
        else:
            manifests.check_same(
                manifest,
                query=origin.query,
                batch=origin.batch,
                planned_end=origin.planned_end,
                checkpoint=origin.checkpoint,
            )
        self.publish(manifest)

    def recover(self) -> None:
        """Finishes what a killed run has left; the checkpoint may be gone by now."""
        for attempt in self._storage.files.names(self._storage.layout.staging):
            number = _number(attempt)
            manifest = None if number is None else self._storage.find(number)
            if manifest is not None and manifest.attempt == attempt:
                self.publish(manifest)

    def publish(self, manifest: Manifest) -> None:
        """Readers see the batch."""
        storage, attempt = self._storage, manifest.attempt
        staging = storage.attempt(Table.ROWS, attempt)
        if not storage.files.exists(staging):
            return
        for count, file in enumerate(manifest.files):
            staged = f"{storage.attempt(file.table, attempt)}/{file.staged}"
            storage.of(file.table).move(staged, storage.final(file))
            if count == 0:
                reached("lake:first-renamed")
        reached("lake:renamed")
        self._commit_to_table(manifest)
        reached("lake:table")
        for table in (Table.DEAD_LETTERS, Table.ROWS):  # its own rows' last of all
            self._sweep(table, manifest)
        storage.files.delete(staging)
        reached("lake:cleaned")

    def _sweep(self, table: Table, manifest: Manifest) -> None:
        """What attempts up to this batch have staged, and no manifest names."""
        root = self._storage.attempt(table, "").rstrip("/")
        files = self._storage.of(table)
        for attempt in files.names(root):
            number = _number(attempt)
            is_own = table is Table.ROWS and attempt == manifest.attempt
            if number is not None and number <= manifest.number and not is_own:
                files.delete(f"{root}/{attempt}")

    def _write(self, records: Any, number: int, origin: Origin) -> Manifest:
        storage, layout = self._storage, self._storage.layout
        if self._covered is None:
            last = storage.last()
            self._covered = last.covered if last else {}
        attempt = f"{number:010}-{uuid.uuid4().hex}"
        staged = self._stage(records, attempt)
        parts = [self._read_back(table, attempt, number) for table in Table]
        spans = manifests.together(entry for _, spans in parts for entry in spans.items())
        if (written := sum(span.records for span in spans.values())) != staged.records:
            raise JobError(
                f"{staged.records} records were read and {written} written; run the job again"
            )
        manifest = Manifest(
            number=number,
            job=layout.job,
            query=origin.query,
            batch=origin.batch,
            attempt=attempt,
            planned_end=origin.planned_end,
            files=tuple(file for files, _ in parts for file in files),
            spans=spans,
            covered=manifests.after(self._covered, spans),
            schema=self._decoder.version,
            unknown_fields=staged.unknown_fields,
        )
        for file in manifest.files:
            path = f"{storage.attempt(file.table, attempt)}/{file.staged}"
            storage.of(file.table).sync(path)
        reached("lake:read-back")
        path = f"{layout.manifests}/{manifests.name(number)}"
        if not storage.files.create(path, manifests.to_json(manifest)):
            raise JobError(f"another run of job {layout.job} writes to {layout.table}; stop one")
        self._covered = manifest.covered
        reached("lake:manifest")
        return manifest

    def _stage(self, records: Any, attempt: str) -> _Staged:
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        self._decoder.prepare(records)
        decoded = self._decoder.decode(records)
        is_bad = F.col(ERROR).isNotNull() if self._decoder.can_fail else F.lit(False)
        is_cut = F.size(UNKNOWN) > 0 if self._decoder.names_unknown else F.lit(False)
        counts = {"all": F.count(F.lit(1)), "bad": F.count_if(is_bad)}
        counts["cut"] = F.count_if(~is_bad & is_cut)
        seen = Observation()
        observed = decoded.observe(seen, *(count.alias(name) for name, count in counts.items()))
        self._write_rows(observed.where(~is_bad).drop(ERROR, RAW, UNKNOWN), attempt)
        reached("lake:staged")
        if seen.get.get("bad"):  # few, and so the batch is read again only for them
            self._write_dead(decoded.where(is_bad), attempt)
            reached("lake:dead-staged")
        if seen.get.get("cut") and len(self.totals.unknown_names) < SHOWN:
            self.totals.name(first_names(decoded.where(~is_bad), UNKNOWN))
        return _Staged(seen.get.get("all", 0), seen.get.get("cut", 0))

    def _write_rows(self, rows: Any, attempt: str) -> None:
        staging = for_spark(self._storage.attempt(Table.ROWS, attempt))
        placed = self._place(rows, self._folders)
        placed.write.partitionBy(*self._folders).parquet(staging)

    def _write_dead(self, rows: Any, attempt: str) -> None:
        from pyspark.sql import functions as F

        dead = rows.withColumns(
            {"value": F.col(RAW), "error": F.col(ERROR), "job": F.lit(self._storage.layout.job)}
        )
        staging = for_spark(self._storage.attempt(Table.DEAD_LETTERS, attempt))
        dead.select(*DEAD_COLUMNS).write.partitionBy("topic").parquet(staging)

    def _read_back(
        self, table: Table, attempt: str, number: int
    ) -> tuple[tuple[DataFile, ...], Spans]:
        """What was really written: its files, and the offsets that they hold."""
        place = self._storage.attempt(table, attempt)
        staged = self._storage.of(table).walk(place)
        if not staged:
            return (), {}
        found = _spans_of_files(self._session, place)
        rows: dict[str, int] = {}
        for path, _, span in found:
            name = unquote(path).split(f"/{attempt}/", 1)[1]
            rows[name] = rows.get(name, 0) + span.records
        entries = [(file.path, file.size_bytes, rows.pop(file.path, 0)) for file in staged]
        if rows:
            raise JobError(f"{place} changed while it was read; run the job again")
        files = manifests.named(table, entries, job=self._storage.layout.job, number=number)
        return files, manifests.together((where, span) for _, where, span in found)


def _spans_of_files(session: Any, place: str) -> list[tuple[str, TopicPartition, Span]]:
    from pyspark.sql import functions as F

    rows = (
        session.read.schema(_SCHEMA)
        .parquet(for_spark(place))
        .groupBy(F.col("_metadata.file_path").alias("path"), "topic", "partition")
        .agg(F.min("offset"), F.max("offset"), F.count("*"))
        .collect()
    )
    return [
        (path, TopicPartition(topic, partition), Span(first, last, count))
        for path, topic, partition, first, last, count in rows
    ]


def _number(attempt: str) -> int | None:
    """Of the batch that staged it; None if it was no batch."""
    number = attempt.partition("-")[0]
    return int(number) if number.isdigit() else None
