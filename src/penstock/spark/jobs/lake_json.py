"""JSON values: their schema is given, or found in a sample; it is kept beside the table's manifests and only ever grows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.jobs import lake_schema as schemas
from penstock.spark.jobs.lake_batches import Storage
from penstock.spark.jobs.lake_decode import (
    decode_json,
    infer_json,
    name_unknown,
    reject_unknown,
)
from penstock.spark.jobs.lake_versions import Version, Versions
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
        say: Callable[[str], None],
    ) -> None:
        self._versions = Versions(storage.files, storage.layout)
        self._evolve = evolve
        self._rejects = unknown_fields == "reject"
        self.names_unknown = unknown_fields == "count" and not evolve  # else they are added
        self._say = say
        last = self._versions.last()
        stored = last.schema if last else None
        if given is not None:
            wanted = schemas.nullable(read_schema(session, given).jsonValue())
            schema = schemas.accepted(stored, wanted, may_grow=evolve, where=self._versions.where)
        elif stored is None:
            sample = _sample(session, bootstrap, ranges)
            schema = schemas.nullable(infer_json(sample).jsonValue())
            if not schema["fields"]:
                raise JobError(
                    f"{', '.join(sorted({place.topic for place in ranges.first}))}: no JSON object was found "
                    "to learn a schema from; give --schema"
                )
        else:
            schema = stored
        if schema != stored and given is None:
            say(f"schema found in a sample: {schemas.show(schema)}")
        self._schema = schema
        self.version: int | None = self._hold("inferred" if given is None else "given")

    def _hold(self, origin: str) -> int:
        return self._versions.hold(Version(self._schema, origin, self._rejects))

    def prepare(self, records: Any) -> None:
        """With --evolve a batch is read once more, for its schema."""
        if not self._evolve:
            return
        found = schemas.nullable(infer_json(records).jsonValue())
        merged = schemas.merge(self._schema, found)
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
        return name_unknown(decoded, schema) if self.names_unknown else decoded


def read_schema(session: Any, given: str) -> Any:
    """DDL, or a file with DDL or with Spark's JSON form."""
    from pyspark.sql.types import StructType

    text = given
    if "\n" not in given and Path(given).is_file():
        text = Path(given).read_text()
    try:
        if text.lstrip().startswith("{"):
            return StructType.fromJson(json.loads(text))
        found = session._jvm.org.apache.spark.sql.types.StructType.fromDDL(text.strip())
        return StructType.fromJson(json.loads(found.json()))
    except Exception as error:
        raise JobError(f"--schema {given!r}: {explain(error)}") from error


def _sample(session: Any, bootstrap: str, ranges: Ranges) -> Any:
    """The oldest and the newest values."""
    each = max(1, SAMPLE // max(1, 2 * len(ranges.first)))
    oldest = {p: min(first + each, ranges.after[p]) for p, first in ranges.first.items()}
    newest = {p: max(oldest[p], after - each) for p, after in ranges.after.items()}
    parts = [
        session.read.format("penstock")
        .options(**ranges._replace(first=first, after=after).source_options(bootstrap))
        .option("columns", "value")
        .option("failOnDataLoss", "false")
        .option("kafka.isolation.level", "read_committed")
        .load()
        for first, after in ((ranges.first, oldest), (newest, ranges.after))
    ]
    return parts[0].unionAll(parts[1])
