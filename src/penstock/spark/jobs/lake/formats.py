"""Commit files that have their final names: no work for Parquet, a commit for Delta and Iceberg.

A commit stores the number of the batch in the table's own metadata. A batch that is already there
is not committed again.
"""

import json
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any, Final, Protocol
from urllib.parse import unquote

from penstock.spark.jobs.files import for_spark, is_local
from penstock.spark.jobs.table.layout import Layout
from penstock.spark.jobs.table.manifest import DataFile, Manifest, Table

_METRICS: Final = "write.metadata.metrics.default"
_TIMES: Final = {"none": (), "day": ("date",), "hour": ("date", "hour")}
_ICEBERG_TIMES: Final = {"none": (), "day": ("by_date",), "hour": ("by_date", "by_hour")}


class TableFormat(Protocol):
    folders: tuple[str, ...]  # columns that are directories
    compacts_itself: bool

    def commit(self, manifest: Manifest) -> None: ...

    def compact(self, small_bytes: int) -> tuple[int, int]:
        """How many files became how many; only if it compacts itself."""


class ParquetTable:
    """A directory of Parquet files is a table when the files are there."""

    compacts_itself = False

    def __init__(self, partition_by: str) -> None:
        self.folders = ("topic", *_TIMES[partition_by])

    def commit(self, manifest: Manifest) -> None:
        pass

    def compact(self, small_bytes: int) -> tuple[int, int]:  # noqa: ARG002  # others look at it
        return 0, 0  # nothing: see compacts_itself


class DeltaLake:
    """The job is an application, and the batch's number its transaction, as Delta's protocol has it."""

    compacts_itself = True

    def __init__(self, session: Any, layout: Layout, partition_by: str) -> None:
        self.folders = ("topic", *_TIMES[partition_by])
        self._session = session
        self._layout = layout

    def commit(self, manifest: Manifest) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction

        files = _rows(manifest)
        if not files:
            return
        place, job = self._layout.table, self._layout.job
        schema = self._schema(files)
        table = DeltaTable.create(place, schema, mode="ignore", partition_by=list(self.folders))
        done = table.transaction_version(job)
        if done is not None and done >= manifest.number:
            return
        table.create_write_transaction(
            [self._add(file) for file in files],
            mode="append",
            schema=schema,
            partition_by=list(self.folders),
            commit_properties=CommitProperties(
                app_transactions=[Transaction(job, manifest.number)],
                custom_metadata={"penstock.batch": str(manifest.number)},
            ),
        )

    def compact(self, small_bytes: int) -> tuple[int, int]:
        """In one commit, so readers see the table before it or after it."""
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(self._layout.table):
            return 0, 0
        done = DeltaTable(self._layout.table).optimize.compact(target_size=4 * small_bytes)
        return int(done["numFilesRemoved"]), int(done["numFilesAdded"])

    def _add(self, file: DataFile) -> Any:
        from deltalake.transaction import AddAction

        return AddAction(
            file.final,
            file.size_bytes,
            folder_values(file.final),
            time_ns() // 1_000_000,
            True,
            json.dumps({"numRecords": file.rows}),
        )

    def _schema(self, files: Sequence[DataFile]) -> Any:
        import pyarrow as pa
        from deltalake import Schema

        found = _arrow_schema(self._session, f"{self._layout.table}/{files[0].final}")
        for name in self.folders:
            found = found.append(pa.field(name, pa.date32() if name == "date" else pa.string()))
        return Schema.from_arrow(found)


class Iceberg:
    """The batch's number is a property of the table, set by the commit that adds its files."""

    compacts_itself = False

    def __init__(
        self,
        session: Any,
        layout: Layout,
        partition_by: str,
        *,
        catalog: str,
        properties: Mapping[str, str],
        name: str,
    ) -> None:
        from pyiceberg.catalog import load_catalog

        self.folders = ("by_topic", *_ICEBERG_TIMES[partition_by])
        self._session = session
        self._layout = layout
        self._catalog = load_catalog(catalog, **properties)
        self._name = name

    def commit(self, manifest: Manifest) -> None:
        files = _rows(manifest)
        if not files:
            return
        mark, number = f"penstock.lake.{self._layout.job}", str(manifest.number)
        paths = [f"{self._layout.table}/{file.final}" for file in files]
        table = self._table(paths[0])
        if int(table.properties.get(mark, -1)) >= manifest.number:
            return
        urls = [f"file://{path}" if is_local(path) else path for path in paths]
        try:
            _add_files(table, urls, {mark: number}, has_bounds=True)
        except (
            OverflowError,
            ValueError,
        ):  # a time that Python's dates do not know, or another error
            _add_files(table, urls, {mark: number}, has_bounds=False)

    def compact(self, small_bytes: int) -> tuple[int, int]:  # noqa: ARG002  # others look at it
        return 0, 0  # nothing: see compacts_itself

    def _table(self, path: str) -> Any:
        place = self._layout.table
        self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        return self._catalog.create_table_if_not_exists(
            self._name,
            _arrow_schema(self._session, path),
            location=f"file://{place}" if is_local(place) else place,
        )


def _add_files(
    table: Any, urls: Sequence[str], marks: Mapping[str, str], *, has_bounds: bool
) -> None:
    """Add files to an Iceberg table, with or without the lowest and highest value of each column.

    pyiceberg computes these bounds as Python's datetimes, which end at the year 9999. Readers that skip files by their
    bounds read a file without bounds.
    """
    before = table.properties.get(_METRICS)
    with table.transaction() as transaction:
        transaction.set_properties(marks if has_bounds else {**marks, _METRICS: "counts"})
        transaction.add_files(list(urls), snapshot_properties=dict(marks))
        if has_bounds:
            return
        if before is None:
            transaction.remove_properties(_METRICS)
        else:
            transaction.set_properties({_METRICS: before})


def folder_values(path: str) -> dict[str, str | None]:
    """`topic=a/date=2026-11-15/x.parquet`, as names and values."""
    found: dict[str, str | None] = {}
    for folder in path.split("/")[:-1]:
        name, _, value = folder.partition("=")
        found[name] = unquote(value)
    return found


def _rows(manifest: Manifest) -> list[DataFile]:
    return [file for file in manifest.files if file.table is Table.ROWS]


def _arrow_schema(session: Any, path: str) -> Any:
    """Of a file, without what its directories tell."""
    from pyspark.sql.pandas.types import to_arrow_schema

    reader = session.read.option("recursiveFileLookup", True)
    return to_arrow_schema(reader.parquet(for_spark(path)).schema, timezone="UTC")
