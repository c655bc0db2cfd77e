"""What the tests of the lake have in common: runs of the job, and a look at what it wrote."""

import itertools
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from penstock.spark.job import Summary, explained
from penstock.spark.jobs.lake import job as lake
from penstock.spark.jobs.lake.options import LakeOptions
from penstock.spark.progress import Progress
from tests.support.server import Server

Place = tuple[str, int, int]  # topic, partition, offset


class Lake:
    """One table, and the jobs that write it."""

    def __init__(self, spark: Any, broker: Server, home: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.table = home / "table"
        self.dead_letters = home / "table_dead_letters"

    def options(self, *topics: str, **options: Any) -> LakeOptions:
        return LakeOptions(
            bootstrap=self.broker.bootstrap, topics=topics, table=str(self.table), **options
        )

    def run(self, *topics: str, **options: Any) -> Summary:
        with explained():
            return lake.run(self.spark, self.options(*topics, **options), Progress())

    def rows(self) -> list[dict[str, Any]]:
        return read(self.table)

    def dead(self) -> list[dict[str, Any]]:
        return read(self.dead_letters)


def read(table: Path) -> list[dict[str, Any]]:
    """As any reader of a directory of Parquet files sees it, without Spark: hidden names are not seen."""
    rows: list[dict[str, Any]] = []
    for folder, below, names in os.walk(table):
        below[:] = sorted(name for name in below if not name.startswith(("_", ".")))
        placed = dict(part.split("=", 1) for part in Path(folder).relative_to(table).parts)
        for name in sorted(names):
            if name.endswith(".parquet"):
                found = pq.ParquetFile(Path(folder) / name).read().to_pylist()
                rows += [{**row, **placed} for row in found]
    return rows


def places(*tables: list[dict[str, Any]]) -> Counter[Place]:
    return Counter(
        (row["topic"], row["partition"], row["offset"]) for row in itertools.chain(*tables)
    )
