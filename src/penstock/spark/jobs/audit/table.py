"""Read a table for an audit: what its jobs stored of it, its rows, and the records of the topic.

The records are decoded exactly as the jobs decoded them. An audit rejects what it cannot compare;
the error names it and the remedy.
"""

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.audit.compare import END, digest
from penstock.spark.jobs.audit.formats import Catalog, active_rows
from penstock.spark.jobs.audit.sides import around, read_topic, whole_records
from penstock.spark.jobs.files import Files, for_spark, open_files
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.batches import Storage
from penstock.spark.jobs.table.decode import ERROR, RAW, decode_json, reject_unknown
from penstock.spark.jobs.table.decode_avro import decode_avro
from penstock.spark.jobs.table.layout import STATE, Layout
from penstock.spark.jobs.table.manifest import Spans
from penstock.spark.jobs.table.packages import check_fastavro
from penstock.spark.jobs.table.versions import Version, Versions
from penstock.spark.survey import Ranges

_COORDINATES: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, "
    "headers array<struct<key: string, value: binary>>, key binary"
)
_EXACT: Final = {  # of times in values, to the microsecond
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_IN_DECODED: Final = (
    b"v"  # marks of a value, so that one side's row is never the other's dead letter
)
_IN_DEAD: Final = b"d"
_REMEDY: Final = "--without-values compares keys, headers and times alone"

Offsets = Mapping[TopicPartition, int]


class Stretch(NamedTuple):
    """Records that were decoded in one way: from these offsets on, up to where the next begins."""

    start: Offsets  # a partition that is not here: from its beginning
    version: Version | None  # None: as they are


class Writer(NamedTuple):
    """A lake job that wrote to the table."""

    layout: Layout
    topics: frozenset[str]
    decode: str
    format: str
    covered: Spans
    start: Offsets  # older records were not wanted
    stretches: tuple[Stretch, ...] | None  # None: nobody knows what was decoded how
    unfinished: int  # batches whose files are not all where readers look

    @property
    def last_version(self) -> Version | None:
        return self.stretches[-1].version if self.stretches else None


class TableFacts(NamedTuple):
    """What the lake's jobs say of their table."""

    table: str
    writers: tuple[Writer, ...]
    topics: tuple[str, ...]  # those that are audited
    with_values: bool

    @property
    def covered(self) -> Spans:
        return manifests.together(
            entry
            for writer in self.writers
            for entry in writer.covered.items()
            if entry[0].topic in self.topics
        )

    @property
    def start(self) -> Offsets:
        return {place: at for writer in self.writers for place, at in writer.start.items()}

    @property
    def unfinished(self) -> int:
        return sum(writer.unfinished for writer in self.writers)

    def by_writer(self) -> Iterator[tuple[Writer, list[str]]]:
        """Who tells how the topics' values were decoded. Where several wrote a topic, they did it alike."""
        left = list(self.topics)
        for writer in self.writers:
            if mine := [topic for topic in left if topic in writer.topics]:
                yield writer, mine
                left = [topic for topic in left if topic not in writer.topics]


def table_facts(
    table: str,
    topics: Iterable[str],
    session: Any,
    *,
    dead_letters: str | None,
    with_values: bool,
) -> TableFacts:
    """JobError where no job of the lake has written these topics, or where their values cannot be compared."""
    files = open_files(table, session)
    wanted = tuple(sorted(set(topics)))
    writers = tuple(_writers(files, table, wanted, dead_letters))
    known = {topic for writer in writers for topic in writer.topics}
    if missing := [topic for topic in wanted if topic not in known]:
        raise JobError(
            f"{table} has nothing of {', '.join(missing)} that a lake job wrote; "
            "give the --table of: penstock pipeline lake"
        )
    found = TableFacts(table, writers, wanted, with_values)
    _check(found)
    return found


def _writers(
    files: Files, table: str, wanted: Sequence[str], dead_letters: str | None
) -> Iterable[Writer]:
    for name in files.names(f"{table}/{STATE}"):
        path = f"{table}/{STATE}/{name}/job.json"
        if not files.exists(path):
            continue
        facts = json.loads(files.read(path))
        if set(wanted) & set(facts["topics"]):
            layout = Layout(table, dead_letters or facts["dead_letters"], name)
            last = Storage(layout, files, files).last()
            yield Writer(
                layout=layout,
                topics=frozenset(facts["topics"]),
                decode=facts["decode"],
                format=facts.get("format", "parquet"),
                covered=last.covered if last else {},
                start=_start(files, layout),
                stretches=_stretches(files, layout, facts["decode"]),
                unfinished=_unfinished(files, layout),
            )


def _check(facts: TableFacts) -> None:
    if len(formats := {writer.format for writer in facts.writers}) > 1:
        raise JobError(f"{facts.table} is written as {' and as '.join(sorted(formats))}; use one")
    if not facts.with_values:
        return
    for topic in facts.topics:
        writers = [writer for writer in facts.writers if topic in writer.topics]
        names = " and ".join(writer.layout.job for writer in writers)
        if any(writer.stretches is None for writer in writers):
            raise JobError(
                f"the values of {topic} cannot be compared: an older Penstock has written {facts.table}, and did not "
                f"note with which version of its schema, or with which Avro schema; {_REMEDY}"
            )
        if len(writers) > 1 and any(_differ(writers[0], writer) for writer in writers[1:]):
            raise JobError(
                f"the values of {topic} cannot be compared: jobs {names} have written them to {facts.table}, with other "
                f"schemas; {_REMEDY}"
            )
        if any(writer.decode == "avro" for writer in writers):
            check_fastavro()


def _differ(one: Writer, other: Writer) -> bool:
    """Each may have its own offsets for the same change."""
    return (
        one.decode != other.decode
        or one.stretches != other.stretches
        or (one.stretches is not None and len(one.stretches) > 1)
    )


def _start(files: Files, layout: Layout) -> dict[TopicPartition, int]:
    if not files.exists(layout.start):
        return {}
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in json.loads(files.read(layout.start)).items()
        for partition, offset in partitions.items()
    }


def _unfinished(files: Files, layout: Layout) -> int:
    """Its manifest is there, and so is its staging, which is removed last."""
    numbers = set(manifests.numbers(files.names(layout.manifests)))
    stems = (name.partition("-")[0] for name in files.names(layout.staging))
    return sum(stem.isdigit() and int(stem) in numbers for stem in stems)


def _stretches(files: Files, layout: Layout, decode: str) -> tuple[Stretch, ...] | None:
    """Versions follow each other as batches do, so a few manifests tell where each began."""
    if decode == "raw":
        return (Stretch({}, None),)
    versions = Versions(files, layout).all()
    if decode == "avro" and any(version.avro is None for version in versions.values()):
        return None
    if len(versions) == 1:
        return tuple(Stretch({}, version) for version in versions.values())
    storage = Storage(layout, files, files)
    batches = manifests.numbers(files.names(layout.manifests))

    def schema_of(batch: int) -> int:
        manifest = storage.find(batch)
        found = None if manifest is None else manifest.schema
        return -1 if found is None else found

    if batches and schema_of(batches[0]) < 0:
        return None
    found = []
    for number, version in sorted(versions.items()):
        index = bisect_left(batches, number, key=schema_of)
        before = storage.find(batches[index - 1]) if index else None
        found.append(Stretch(manifests.next_offsets(before.covered) if before else {}, version))
    return tuple(found)


# The topic, as the table must have it ------------------------------------------------------------


def expected(
    session: Any, bootstrap: str, ranges: Ranges, facts: TableFacts, *, committed: bool
) -> Any:
    """Records with the digests that the table's rows, or its dead letters, must have."""
    parts = [
        _decoded(read_topic(session, bootstrap, part, committed=committed), version, facts)
        for writer, topics in facts.by_writer()
        for version, part in _parts(ranges, topics, writer, facts)
    ]
    return _together(parts)


def _parts(
    ranges: Ranges, topics: Sequence[str], writer: Writer, facts: TableFacts
) -> Iterable[tuple[Version | None, Ranges]]:
    """Stretches of the topics, without those in which there is nothing; of none, if all are empty, the last."""
    mine = [place for place in ranges.first if place.topic in topics]
    stretches = (writer.stretches if facts.with_values else None) or (Stretch({}, None),)
    found = []
    for stretch, following in zip(stretches, [*stretches[1:], None], strict=True):
        first, after = {}, {}
        for place in mine:
            end = following.start.get(place, 0) if following else END
            first[place] = max(ranges.first[place], stretch.start.get(place, 0))
            after[place] = max(first[place], min(ranges.after[place], end))
        found.append((stretch.version, ranges._replace(first=first, after=after)))
    return [entry for entry in found if entry[1].offsets] or found[-1:]


def _decoded(records: Any, version: Version | None, facts: TableFacts) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if not facts.with_values:
        return _digested(F, records, _nothing(F))
    if version is None:
        return whole_records(records).select("topic", "partition", "offset", "digest")
    if version.avro is not None:
        decoded = decode_avro(records, version)
    else:
        schema = T.StructType.fromJson(version.schema)
        decoded = decode_json(records, schema)
        if version.rejects_unknown:
            decoded = reject_unknown(decoded, schema)
    value = F.when(F.col(ERROR).isNull(), _value(F)).otherwise(_dead(F, RAW))
    return _digested(F, decoded, value)


# The table ---------------------------------------------------------------------------------------


def read_table(session: Any, facts: TableFacts, catalog: Catalog) -> Any:
    """Rows and dead letters, with the digests that `expected` makes of the topic."""
    from pyspark.sql import functions as F

    found = [_rows(session, facts, writer, topics, catalog) for writer, topics in facts.by_writer()]
    for place in sorted({writer.layout.dead_letters for writer in facts.writers}):
        if open_files(place, session).exists(place):
            dead = session.read.schema(f"{_COORDINATES}, value binary").parquet(for_spark(place))
            value = _dead(F, "value") if facts.with_values else _nothing(F)
            found.append(_digested(F, dead, value))
    return _together(found)


def _rows(
    session: Any, facts: TableFacts, writer: Writer, topics: Sequence[str], catalog: Catalog
) -> Any:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    shape = T.StructType()
    for field in session.createDataFrame([], _COORDINATES).schema:
        shape = shape.add(field)
    value = _nothing(F)
    if facts.with_values:
        version = writer.last_version  # the widest: schemas only ever grow
        kind = T.StructType.fromJson(version.schema) if version else T.BinaryType()
        shape = shape.add("value", kind)
        value = _value(F) if version else F.col("value")
    rows = active_rows(session, writer.format, facts.table, topics, shape, catalog)
    return _digested(F, rows, value)


def _together(parts: Sequence[Any]) -> Any:
    return reduce(lambda one, other: one.unionByName(other), parts)


def _value(F: Any) -> Any:
    """Without fields that are null: whether a version of the schema had them makes no difference then."""
    return F.concat(F.lit(_IN_DECODED), F.encode(F.to_json("value", _EXACT), "UTF-8"))


def _dead(F: Any, column: str) -> Any:
    return F.concat(F.lit(_IN_DEAD), F.col(column))


def _nothing(F: Any) -> Any:
    return F.lit(None).cast("binary")


def _digested(F: Any, rows: Any, value: Any) -> Any:
    made = digest(F, F.col("key"), value, *around(F))
    return rows.select("topic", "partition", "offset", made.alias("digest"))
