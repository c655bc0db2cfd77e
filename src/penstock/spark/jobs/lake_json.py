"""JSON values: their schema is given, or found in a sample; it is kept beside the table's manifests and only ever grows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from penstock.spark.errors import JobError, explain
from penstock.spark.jobs import lake_manifest as manifests
from penstock.spark.jobs import lake_schema as schemas
from penstock.spark.jobs.lake_batches import Storage
from penstock.spark.jobs.lake_decode import decode_json, infer_json
from penstock.spark.survey import Ranges

SAMPLE: Final = 10_000  # records
_SHOWN_FIELDS: Final = 10


class Schemas:
    """All versions of a job's schema, the last of which holds."""

    def __init__(self, storage: Storage) -> None:
        self._files = storage.files
        self._place = storage.layout.schemas
        self.where = f"table {storage.layout.table}"

    def last(self) -> schemas.Type | None:
        numbers = self._numbers()
        if not numbers:
            return None
        return schemas.from_json(self._files.read(f"{self._place}/{manifests.name(numbers[-1])}"))

    def add(self, schema: schemas.Type, origin: str) -> None:
        number = (self._numbers() or [-1])[-1] + 1
        text = schemas.to_json(schema, origin)
        if not self._files.create(f"{self._place}/{manifests.name(number)}", text):
            raise JobError(f"another run of this job writes to {self.where}; stop one")

    def _numbers(self) -> list[int]:
        return manifests.numbers(self._files.names(self._place))


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
        say: Callable[[str], None],
    ) -> None:
        self._versions = Schemas(storage)
        self._evolve = evolve
        self._say = say
        stored = self._versions.last()
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
        if schema != stored:
            self._versions.add(schema, "given" if given is not None else "inferred")
            if given is None:
                say(f"schema found in a sample: {schemas.show(schema)}")
        self._schema = schema

    def prepare(self, records: Any) -> None:
        """With --evolve a batch is read once more, for its schema."""
        if not self._evolve:
            return
        found = schemas.nullable(infer_json(records).jsonValue())
        merged = schemas.merge(self._schema, found)
        if merged.added:
            self._versions.add(merged.schema, "evolved")
            self._schema = merged.schema
            shown = ", ".join(merged.added[:_SHOWN_FIELDS])
            self._say(f"new in the schema: {shown}{' …' * (len(merged.added) > _SHOWN_FIELDS)}")

    def decode(self, records: Any) -> Any:
        from pyspark.sql.types import StructType

        return decode_json(records, StructType.fromJson(self._schema))


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
