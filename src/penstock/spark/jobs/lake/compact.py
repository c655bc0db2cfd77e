"""Merge the small files of a directory into few large ones.

If a compaction is killed, the next run of the job completes it.

1. Choose the number of the compaction, and then its inputs. If another run creates the manifest of
   that number first, this compaction is void.
2. Stage the new files and read them back: they must hold exactly the offsets of the old ones.
3. Create a manifest that names old and new files, atomically and only if absent.
4. Rename the new files to their final names, then delete the old files, then the staging directory.

Between the first rename and the last deletion, readers of the directory may see records twice, or
miss a file that they had listed; never fewer records. A job compacts only its own files, so jobs
that share a table do not conflict.
"""

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files, Stored, for_spark
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.batches import Storage
from penstock.spark.jobs.table.layout import compacted_name, file_names
from penstock.spark.jobs.table.manifest import Table
from penstock.spark.steps import reached

STEPS: Final = (
    *("lake:compact-staged", "lake:compact-manifest", "lake:compact-first-renamed"),
    *("lake:compact-renamed", "lake:compact-first-deleted", "lake:compact-deleted"),
)
DEFAULT_SMALL_BYTES: Final = 32 << 20
TARGET_BYTES: Final = 128 << 20
_MARK: Final = "compact-"  # before an attempt's name, so that no batch takes it for its own


class Group(NamedTuple):
    """Files of one directory, and how many are to come of them."""

    folder: str
    paths: tuple[str, ...]
    outputs: int


class Compacted(NamedTuple):
    before: int  # files
    after: int


class Compaction(NamedTuple):
    number: int
    attempt: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]  # below the attempt's directory, and below the table

    def to_json(self) -> str:
        return json.dumps({"version": 1, **self._asdict()}, indent=1) + "\n"


def from_json(text: str) -> Compaction:
    facts = json.loads(text)
    outputs = tuple((staged, final) for staged, final in facts["outputs"])
    return Compaction(facts["number"], facts["attempt"], tuple(facts["inputs"]), outputs)


def choose(
    files: Iterable[Stored], *, job: str, small_bytes: int, target_bytes: int = TARGET_BYTES
) -> list[Group]:
    """Where at least two small files of the job lie side by side."""
    own = file_names(job)
    folders: dict[str, list[Stored]] = {}
    for file in files:
        folder, slash, name = file.path.rpartition("/")
        if own.fullmatch(name):
            folders.setdefault(folder + slash, []).append(file)
    groups = []
    for folder, found in sorted(folders.items()):
        small = [file for file in found if file.size_bytes < small_bytes]
        outputs = -(-sum(file.size_bytes for file in small) // target_bytes)
        if len(small) > max(1, outputs):
            groups.append(Group(folder, tuple(file.path for file in small), max(1, outputs)))
    return groups


class Compactor:
    """Of one table: the rows', or the dead letters'."""

    def __init__(self, session: Any, storage: Storage, table: Table) -> None:
        layout = storage.layout
        self._session = session
        self._job = layout.job
        self._files: Files = storage.of(table)
        is_rows = table is Table.ROWS
        self._table = layout.table if is_rows else layout.dead_letters
        self._staging = layout.staging if is_rows else layout.dead_staging
        self._manifests = layout.compactions if is_rows else layout.dead_compactions

    def recover(self) -> None:
        """Finishes, or sweeps away, what a killed compaction has left."""
        left = [n for n in self._files.names(self._staging) if n.startswith(_MARK)]
        for attempt in left:
            number = int(attempt.removeprefix(_MARK).partition("-")[0])
            found = self._find(number)
            if found is not None and found.attempt == attempt:
                self._finish(found)
            elif found is not None:  # it was second; one without a manifest may be at work now
                self._files.delete(f"{self._staging}/{attempt}")

    def run(self, small_bytes: int = DEFAULT_SMALL_BYTES) -> Compacted:
        self.recover()
        number = (self._numbers() or [-1])[-1] + 1
        groups = choose(self._files.walk(self._table), job=self._job, small_bytes=small_bytes)
        if not groups:
            return Compacted(0, 0)
        compaction = self._stage(number, groups)
        path = f"{self._manifests}/{manifests.name(number)}"
        if not self._files.create(path, compaction.to_json()):
            raise JobError(f"another run compacts {self._table}; nothing was changed by this one")
        reached("lake:compact-manifest")
        self._finish(compaction)
        self._sweep(number)
        return Compacted(len(compaction.inputs), len(compaction.outputs))

    def _stage(self, number: int, groups: Sequence[Group]) -> Compaction:
        attempt = f"{_MARK}{number:010}-{uuid.uuid4().hex}"
        outputs: list[tuple[str, str]] = []
        for index, group in enumerate(groups):
            place = f"{self._staging}/{attempt}/{index}"
            self._merge(group, place)
            for file in self._files.walk(place):
                self._files.sync(f"{place}/{file.path}")
                name = compacted_name(self._job, number, len(outputs))
                outputs.append((f"{index}/{file.path}", f"{group.folder}{name}"))
        reached("lake:compact-staged")
        inputs = tuple(path for group in groups for path in group.paths)
        return Compaction(number, attempt, inputs, tuple(outputs))

    def _merge(self, group: Group, place: str) -> None:
        old = self._read([f"{self._table}/{path}" for path in group.paths])
        parted = (
            old.coalesce(1)
            if group.outputs == 1
            else old.repartitionByRange(group.outputs, "partition", "offset")
        )
        parted.sortWithinPartitions("partition", "offset").write.parquet(for_spark(place))
        if _contents(old) != _contents(self._read([place])):
            raise JobError(
                f"{self._table}/{group.folder} changed while it was compacted; try again"
            )

    def _read(self, places: Sequence[str]) -> Any:
        reader = self._session.read.option(
            "recursiveFileLookup", True
        )  # no columns from directories
        return reader.option("mergeSchema", True).parquet(*map(for_spark, places))

    def _finish(self, compaction: Compaction) -> None:
        staging = f"{self._staging}/{compaction.attempt}"
        for count, (staged, final) in enumerate(compaction.outputs):
            self._files.move(f"{staging}/{staged}", f"{self._table}/{final}")
            if count == 0:
                reached("lake:compact-first-renamed")
        reached("lake:compact-renamed")
        for count, path in enumerate(compaction.inputs):
            self._files.delete(f"{self._table}/{path}")
            if count == 0:
                reached("lake:compact-first-deleted")
        reached("lake:compact-deleted")
        self._files.delete(staging)

    def _sweep(self, number: int) -> None:
        """Attempts that were killed before they had a manifest."""
        for attempt in self._files.names(self._staging):
            stem = attempt.removeprefix(_MARK).partition("-")[0]
            if attempt.startswith(_MARK) and int(stem) <= number:
                self._files.delete(f"{self._staging}/{attempt}")

    def _find(self, number: int) -> Compaction | None:
        path = f"{self._manifests}/{manifests.name(number)}"
        return from_json(self._files.read(path)) if self._files.exists(path) else None

    def _numbers(self) -> list[int]:
        return manifests.numbers(self._files.names(self._manifests))


def _contents(rows: Any) -> dict[int, tuple[int, ...]]:
    """Of each partition: first and last offset, how many, and their sum."""
    from pyspark.sql import functions as F

    found = rows.groupBy("partition").agg(
        F.min("offset"), F.max("offset"), F.count("*"), F.sum(F.col("offset").cast("decimal(38,0)"))
    )
    return {row[0]: tuple(map(int, row[1:])) for row in found.collect()}
