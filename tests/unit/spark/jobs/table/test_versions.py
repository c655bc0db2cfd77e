"""Every version of a schema is kept. A new one is added only if values are decoded differently."""

from pathlib import Path
from typing import Any

from penstock.spark.jobs.files import LocalFiles
from penstock.spark.jobs.table.layout import Layout
from penstock.spark.jobs.table.versions import Version, Versions, from_json

SCHEMA: dict[str, Any] = {"type": "struct", "fields": []}


def test_a_version_is_read_as_it_was_written() -> None:
    for version in (
        Version(SCHEMA, "given", rejects_unknown=True),
        Version(SCHEMA, "given", avro={"type": "record"}, framing="none"),
    ):
        assert from_json(version.to_json()) == version


def test_what_an_older_job_wrote_is_read_too() -> None:
    assert from_json('{"origin": "inferred", "schema": "long"}') == Version("long", "inferred")


def test_only_another_way_of_decoding_is_a_new_version(tmp_path: Path) -> None:
    versions = Versions(LocalFiles(), Layout(str(tmp_path), "dead", "job"))
    assert versions.last() is None
    assert versions.hold(Version(SCHEMA, "inferred")) == 0
    assert versions.hold(Version(SCHEMA, "given")) == 0
    strict = Version(SCHEMA, "given", rejects_unknown=True)
    assert versions.hold(strict) == 1
    assert versions.last() == strict
    assert versions.hold(Version(SCHEMA, "given")) == 2
    assert sorted(versions.all()) == [0, 1, 2]
