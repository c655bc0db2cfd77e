"""Decode JSON values. The user gives their schema, or the job infers it from a sample.

The schema is stored beside the table's manifests and only ever grows.
"""

from typing import Any, Final

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake.given_schema import read_schema
from penstock.spark.jobs.table import schema as schemas
from penstock.spark.jobs.table.batches import Storage
from penstock.spark.jobs.table.decode import (
    decode_json,
    infer_json,
    name_unknown,
    reject_unknown,
)
from penstock.spark.jobs.table.unknown import count_unknown
from penstock.spark.jobs.table.versions import Version, Versions
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges

SAMPLE: Final = 10_000  # records
_SHOWN_FIELDS: Final = 10


class JsonDecoder:
    can_fail = True

    def __init__(
        self,
        session: Any,
        storage: Storage,
        *,
        bootstrap: str,
        ranges: Ranges,
        given: str | None,
        evolve: bool,
        unknown_fields: str,
        isolation: str,
        progress: Progress,
    ) -> None:
        self._versions = Versions(storage.files, storage.layout)
        self._evolve = evolve
        self._rejects = unknown_fields == "reject"
        self.names_unknown = unknown_fields == "count"
        self._say = progress.say
        last = self._versions.last()
        stored = last.schema if last else None
        if given is not None:
            wanted = schemas.nullable(read_schema(session, given).jsonValue())
            schema = schemas.accepted(stored, wanted, may_grow=evolve, where=self._versions.where)
        elif stored is None:
            with progress.tasks(session, "looking for a schema"):
                schema = _inferred(_sample(session, bootstrap, ranges, isolation), None)
            if not schema["fields"]:
                raise JobError(
                    f"{', '.join(sorted({place.topic for place in ranges.first}))}: no JSON object was found "
                    "to learn a schema from; give --schema"
                )
        else:
            schema = stored
        if schema != stored and given is None:
            self._say(f"schema found in a sample: {schemas.show(schema)}")
        self._schema = schema
        self.version: int | None = self._hold("inferred" if given is None else "given")

    def _hold(self, origin: str) -> int:
        return self._versions.hold(Version(self._schema, origin, self._rejects))

    def prepare(self, records: Any) -> None:
        """With --evolve a batch is read once more, for its schema."""
        if not self._evolve:
            return
        merged = schemas.merge(self._schema, _inferred(records, self._schema))
        if merged.added:
            self._schema = merged.schema
            self.version = self._hold("evolved")
            shown = ", ".join(merged.added[:_SHOWN_FIELDS])
            self._say(f"new in the schema: {shown}{' …' * (len(merged.added) > _SHOWN_FIELDS)}")

    def decode(self, records: Any) -> Any:
        from pyspark.sql.types import StructType

        schema = StructType.fromJson(self._schema)
        decoded = decode_json(records, schema)
        if self._rejects:
            return reject_unknown(decoded, schema)
        if not self.names_unknown:
            return decoded
        return name_unknown(decoded, schema, with_nulls=not self._evolve)  # null adds no column


def _inferred(values: Any, old: schemas.Type | None) -> schemas.Type:
    """Of `values`. Where names differ only in case: with the one that `old` has, or most of the records."""
    found = infer_json(values).jsonValue()
    while schemas.has_rivals(found):
        counts = count_unknown(values, schemas.without_rivals(found))
        found = schemas.settled(found, counts, old)
    return schemas.nullable(found)


def _sample(session: Any, bootstrap: str, ranges: Ranges, isolation: str) -> Any:
    """The oldest and the newest values."""
    each = max(1, SAMPLE // max(1, 2 * len(ranges.first)))
    oldest = {p: min(first + each, ranges.after[p]) for p, first in ranges.first.items()}
    newest = {p: max(oldest[p], after - each) for p, after in ranges.after.items()}
    parts = [
        session.read.format("penstock")
        .options(**ranges._replace(first=first, after=after).source_options(bootstrap))
        .option("columns", "value")
        .option("failOnDataLoss", "false")
        .option("kafka.isolation.level", isolation)
        .load()
        for first, after in ((ranges.first, oldest), (newest, ranges.after))
    ]
    return parts[0].unionAll(parts[1])
