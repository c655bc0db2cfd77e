"""Describe what a batch adds to a table. Pure.

A batch is in the table if and only if its manifest exists. The job creates the manifest before
readers can see any file of the batch, and then moves these files to their final names; a later run
completes moves that were interrupted. A manifest also holds what all batches up to its own cover,
so the last manifest gives the position of the job.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError

_VERSION: Final = 1


class Table(StrEnum):
    ROWS = "rows"
    DEAD_LETTERS = "dead_letters"


class Span(NamedTuple):
    """Rows of one partition: from `first` to `last`, with gaps where the topic has gaps."""

    first: int
    last: int
    records: int


class DataFile(NamedTuple):
    table: Table
    staged: str  # below the attempt's directory
    final: str  # below the table
    size_bytes: int
    rows: int


Spans = Mapping[TopicPartition, Span]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    number: int
    job: str
    query: str  # the checkpoint's id, which Spark gives
    batch: int  # of that checkpoint
    attempt: str  # the directory in which it was staged
    planned_end: (
        str | None
    )  # the offsets up to which the batch goes, as Spark's checkpoint has them
    files: tuple[DataFile, ...]
    spans: Spans  # of this batch: rows and dead letters
    covered: Spans  # of all batches up to this one
    schema: int | None = None  # the version with which values were decoded
    unknown_fields: int = 0  # rows of which fields were left out

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files if file.table is Table.ROWS)

    @property
    def dead_letters(self) -> int:
        return sum(file.rows for file in self.files if file.table is Table.DEAD_LETTERS)


def name(number: int) -> str:
    return f"{number:010}.json"


def numbers(names: Iterable[str]) -> list[int]:
    """Those of finished files, sorted."""
    stems = (text.removesuffix(".json") for text in names if text.endswith(".json"))
    return sorted(int(stem) for stem in stems if stem.isdigit())


def named(
    table: Table,
    staged: Sequence[tuple[str, int, int]],
    *,
    job: str,
    number: int,
) -> tuple[DataFile, ...]:
    """The final names of staged files, given as path, size and rows; those without rows stay behind."""
    kept = [entry for entry in sorted(staged) if entry[2]]
    return tuple(
        DataFile(table, path, f"{_folder(path)}{job}-{number:08}-{index:04}.parquet", size, rows)
        for index, (path, size, rows) in enumerate(kept)
    )


def together(parts: Iterable[tuple[TopicPartition, Span]]) -> dict[TopicPartition, Span]:
    """Spans of the same partition become one."""
    found: dict[TopicPartition, Span] = {}
    for place, span in parts:
        old = found.get(place)
        found[place] = span if old is None else _joined(old, span)
    return found


def after(covered: Spans, spans: Spans) -> dict[TopicPartition, Span]:
    """What is covered with one batch more; raises JobError if some of it is in the table already."""
    for place, span in sorted(spans.items()):
        if span.records > span.last - span.first + 1:
            raise JobError(
                f"{place.topic}-{place.partition}: {span.records} rows were read between offsets "
                f"{span.first} and {span.last}; nothing was written: report this"
            )
        old = covered.get(place)
        if old is not None and span.first <= old.last:
            raise JobError(
                f"{place.topic}-{place.partition}: offsets from {span.first} on are to be written, and the "
                f"table has those up to {old.last}; nothing was written: the checkpoint is older than the "
                "table, delete it and the job goes on from what the table has"
            )
    return together([*covered.items(), *spans.items()])


def check_same(
    manifest: Manifest, *, query: str, batch: int, planned_end: str | None, checkpoint: str
) -> None:
    """A batch that was done is skipped only if it is the very same."""
    found = (manifest.query, manifest.batch)
    is_same = found == (query, batch)
    if is_same and None not in (planned_end, manifest.planned_end):
        is_same = json.loads(planned_end or "") == json.loads(manifest.planned_end or "")
    if not is_same:
        raise JobError(
            f"batch {batch} of checkpoint {checkpoint} is not the one that the table has as "
            f"{manifest.number}; delete that checkpoint, and the job goes on from what the table has"
        )


def next_offsets(covered: Spans) -> dict[TopicPartition, int]:
    return {place: span.last + 1 for place, span in covered.items()}


def to_json(manifest: Manifest) -> str:
    facts = {
        "version": _VERSION,
        "number": manifest.number,
        "job": manifest.job,
        "query": manifest.query,
        "batch": manifest.batch,
        "attempt": manifest.attempt,
        "planned_end": manifest.planned_end,
        "files": [file._asdict() for file in manifest.files],
        "spans": _spans_json(manifest.spans),
        "covered": _spans_json(manifest.covered),
        "schema": manifest.schema,
        "unknown_fields": manifest.unknown_fields,
    }
    return json.dumps(facts, indent=1) + "\n"


def from_json(text: str) -> Manifest:
    facts = json.loads(text)
    if facts["version"] != _VERSION:
        raise JobError(
            f"the table's manifests are of version {facts['version']}, and this Penstock knows "
            f"{_VERSION}; use the Penstock that wrote them, or a newer one"
        )
    return Manifest(
        number=facts["number"],
        job=facts["job"],
        query=facts["query"],
        batch=facts["batch"],
        attempt=facts["attempt"],
        planned_end=facts["planned_end"],
        files=tuple(DataFile(**{**f, "table": Table(f["table"])}) for f in facts["files"]),
        spans=_spans(facts["spans"]),
        covered=_spans(facts["covered"]),
        schema=facts.get("schema"),
        unknown_fields=facts.get("unknown_fields", 0),
    )


def _joined(one: Span, other: Span) -> Span:
    return Span(min(one.first, other.first), max(one.last, other.last), one.records + other.records)


def _folder(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return folder + slash


def _spans_json(spans: Spans) -> dict[str, dict[str, list[int]]]:
    """{topic: {partition: [first, last, records]}}"""
    found: dict[str, dict[str, list[int]]] = {}
    for place, span in sorted(spans.items()):
        found.setdefault(place.topic, {})[str(place.partition)] = list(span)
    return found


def _spans(facts: Mapping[str, Mapping[str, Sequence[Any]]]) -> dict[TopicPartition, Span]:
    return {
        TopicPartition(topic, int(partition)): Span(*span)
        for topic, partitions in facts.items()
        for partition, span in partitions.items()
    }
