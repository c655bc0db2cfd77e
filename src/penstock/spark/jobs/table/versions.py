"""Store how a job decodes values: numbered versions, beside the table's manifests.

Each manifest names the version of its batch, so an audit can decode each record exactly as the job
did.
"""

import json
from typing import Any, NamedTuple

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table import schema as schemas
from penstock.spark.jobs.table.layout import Layout


class Version(NamedTuple):
    schema: schemas.Type
    origin: str  # given, inferred or evolved
    rejects_unknown: bool = False  # JSON: a field that the schema lacks makes a dead letter
    avro: Any = None  # the schema that writers had
    framing: str | None = None  # of Avro

    def decodes_as(self, other: "Version | None") -> bool:
        return other is not None and self._replace(origin=other.origin) == other

    def to_json(self) -> str:
        return json.dumps(self._asdict(), indent=1) + "\n"


def from_json(text: str) -> Version:
    return Version(**json.loads(text))


class Versions:
    """Of one job. The last one holds."""

    def __init__(self, files: Files, layout: Layout) -> None:
        self._files = files
        self._place = layout.schemas
        self.where = f"table {layout.table}"

    def all(self) -> dict[int, Version]:
        return {number: self._read(number) for number in self._numbers()}

    def last(self) -> Version | None:
        numbers = self._numbers()
        return self._read(numbers[-1]) if numbers else None

    def hold(self, version: Version) -> int:
        """The number of the version, which is new unless the last one decodes in the same way."""
        numbers = self._numbers()
        if numbers and version.decodes_as(self._read(numbers[-1])):
            return numbers[-1]
        number = numbers[-1] + 1 if numbers else 0
        if not self._files.create(self._path(number), version.to_json()):
            raise JobError(f"another run of this job writes to {self.where}; stop one")
        return number

    def _read(self, number: int) -> Version:
        return from_json(self._files.read(self._path(number)))

    def _path(self, number: int) -> str:
        return f"{self._place}/{manifests.name(number)}"

    def _numbers(self) -> list[int]:
        return manifests.numbers(self._files.names(self._place))
