"""Read the current rows of a table.

They are in all files of a directory, or in those that Delta's log or an Iceberg snapshot names.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import for_spark, normal, open_files
from penstock.spark.jobs.table.packages import check_installed


class Catalog(NamedTuple):
    """Where an Iceberg table is known."""

    table: str | None
    name: str
    properties: Mapping[str, str]


def active_rows(
    session: Any, format_: str, table: str, topics: Sequence[str], shape: Any, catalog: Catalog
) -> Any:
    """Of these topics; `shape`: the columns that are wanted, topic among them."""
    check_installed(format_)
    match format_:
        case "delta":
            return _delta(session, table, topics, shape)
        case "iceberg":
            return _iceberg(session, table, topics, shape, catalog)
        case _:
            return _directory(session, table, topics, shape)


def _directory(session: Any, table: str, topics: Sequence[str], shape: Any) -> Any:
    files = open_files(table, session)
    places = [f"{table}/topic={topic}" for topic in topics]
    found = [for_spark(place) for place in places if files.exists(place)]
    if not found:
        return session.createDataFrame([], shape)
    return session.read.schema(shape).option("basePath", for_spark(table)).parquet(*found)


def _delta(session: Any, table: str, topics: Sequence[str], shape: Any) -> Any:
    """The log tells of each file which topic it is for; how files are called is nobody's promise."""
    from deltalake import DeltaTable
    from pyspark.sql import functions as F

    rows = session.createDataFrame([], shape)
    if not DeltaTable.is_deltatable(table):
        return rows
    opened = DeltaTable(table)
    _check_delta(opened, table)
    adds = opened.get_add_actions(flatten=True)
    paths, of = adds.column("path").to_pylist(), adds.column("partition.topic").to_pylist()
    for topic in topics:
        found = [
            f"{table}/{unquote(p)}" for p, name in zip(paths, of, strict=True) if name == topic
        ]
        if found:
            read = _files(session, found, shape).withColumn("topic", F.lit(topic))
            rows = rows.unionByName(read)
    return rows


def _check_delta(opened: Any, table: str) -> None:
    """What a reader must know to read the files, and Spark's reader of Parquet does not."""
    features = set(opened.protocol().reader_features or ())
    mapping = opened.metadata().configuration.get("delta.columnMapping.mode", "none")
    if "deletionVectors" in features:
        raise JobError(
            f"{table} has deletion vectors, which the audit cannot read; rewrite its files (REORG TABLE … APPLY (PURGE)) and "
            "drop the feature deletionVectors"
        )
    if mapping != "none":
        raise JobError(
            f"{table} maps columns by {mapping} (delta.columnMapping.mode), which the audit cannot read; "
            "drop the feature columnMapping"
        )


def _iceberg(session: Any, table: str, topics: Sequence[str], shape: Any, catalog: Catalog) -> Any:
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError
    from pyspark.sql import functions as F

    if catalog.table is None:
        raise JobError(
            f"{table} is an Iceberg table, whose catalog tells which files it has; give --iceberg-table, --catalog and "
            "--catalog-property as to: penstock pipeline lake"
        )
    try:
        opened = load_catalog(catalog.name, **catalog.properties).load_table(catalog.table)
    except NoSuchTableError:
        raise JobError(f"catalog {catalog.name} has no table {catalog.table}") from None
    if normal(opened.location()) != table:
        raise JobError(
            f"table {catalog.table} of catalog {catalog.name} is at {normal(opened.location())}, not at {table}; "
            "give the --table that it is at"
        )
    tasks = list(opened.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise JobError(
            f"table {catalog.table} has delete files, which the audit cannot read; "
            "rewrite its data files (rewrite_data_files) first"
        )
    if not tasks:
        return session.createDataFrame([], shape)
    rows = _files(session, [normal(task.file.file_path) for task in tasks], shape)
    return rows.where(F.col("topic").isin(*topics))


def _files(session: Any, places: Sequence[str], shape: Any) -> Any:
    """Without columns from names of directories."""
    reader = session.read.schema(shape).option("recursiveFileLookup", True)
    return reader.parquet(*map(for_spark, places))
