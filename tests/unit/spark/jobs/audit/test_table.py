"""The audit of a table knows how each record was decoded before it reads any of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.audit.table import Stretch, TableFacts, _parts, table_facts
from penstock.spark.jobs.files import LocalFiles
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.layout import Layout
from penstock.spark.jobs.table.manifest import Manifest, Span
from penstock.spark.jobs.table.versions import Version, Versions
from penstock.spark.survey import Ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


def schema(*names: str) -> dict[str, Any]:
    entry = {"type": "long", "nullable": True, "metadata": {}}
    return {"type": "struct", "fields": [{"name": name, **entry} for name in names]}


class State:
    """Of a lake job, as it lies in a table."""

    def __init__(self, table: Path, job: str = "j", **facts: object) -> None:
        self.layout = Layout(str(table), f"{table}_dead", job)
        self.versions = Versions(LocalFiles(), self.layout)
        self._number = 0
        self._covered: manifests.Spans = {}
        plain = {"topics": ["t"], "decode": "json", "format": "parquet"}
        state = {**plain, "dead_letters": f"{table}_dead", **facts}
        LocalFiles().create(f"{self.layout.state}/job.json", json.dumps(state))

    def batch(self, version: int | None, spans: dict[TopicPartition, Span]) -> None:
        self._covered = manifests.after(self._covered, spans)
        manifest = Manifest(
            number=self._number,
            job="j",
            query="q",
            batch=self._number,
            attempt="a",
            planned_end=None,
            files=(),
            spans=spans,
            covered=self._covered,
            schema=version,
        )
        path = f"{self.layout.manifests}/{manifests.name(self._number)}"
        LocalFiles().create(path, manifests.to_json(manifest))
        self._number += 1


def facts(table: Path, *topics: str, with_values: bool = True) -> TableFacts:
    return table_facts(str(table), topics, None, dead_letters=None, with_values=with_values)


def test_every_record_belongs_to_the_version_that_decoded_it(tmp_path: Path) -> None:
    state = State(tmp_path)
    for names in (("a",), ("a", "b"), ("a", "b", "c")):
        state.versions.hold(Version(schema(*names), "given"))
    state.batch(0, {ZERO: Span(0, 9, 10)})
    state.batch(0, {ZERO: Span(10, 11, 2), ONE: Span(5, 6, 2)})
    state.batch(2, {ONE: Span(9, 9, 1)})  # the second version never had a batch
    found = facts(tmp_path, "t")
    (writer,) = found.writers
    versions = state.versions.all()
    later = {ZERO: 12, ONE: 7}
    assert writer.stretches == (
        Stretch({}, versions[0]),
        Stretch(later, versions[1]),
        Stretch(later, versions[2]),
    )
    ranges = Ranges("c", {ZERO: 3, ONE: 0}, {ZERO: 20, ONE: 7})
    assert list(_parts(ranges, ["t"], writer, found)) == [
        (versions[0], Ranges("c", {ZERO: 3, ONE: 0}, {ZERO: 12, ONE: 7})),
        (versions[2], Ranges("c", {ZERO: 12, ONE: 7}, {ZERO: 20, ONE: 7})),
    ]


def test_batches_that_do_not_say_how_they_were_decoded_are_refused(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.versions.hold(Version(schema("a"), "given"))
    state.batch(None, {ZERO: Span(0, 9, 10)})
    assert facts(tmp_path, "t").writers[0].stretches is not None  # there is but one way
    state.versions.hold(Version(schema("a", "b"), "given"))
    with pytest.raises(JobError, match=r"values of t cannot be compared.*--without-values"):
        facts(tmp_path, "t")
    assert not facts(tmp_path, "t", with_values=False).with_values


def test_avro_whose_schema_was_not_kept_is_refused(tmp_path: Path) -> None:
    State(tmp_path, decode="avro").versions.hold(Version(schema("a"), "given"))
    with pytest.raises(JobError, match=r"with which Avro schema; --without-values"):
        facts(tmp_path, "t")


def test_jobs_that_decode_a_topic_differently_are_refused(tmp_path: Path) -> None:
    State(tmp_path, "one").versions.hold(Version(schema("a"), "given"))
    State(tmp_path, "two", decode="raw")
    with pytest.raises(JobError, match="jobs one and two have written them"):
        facts(tmp_path, "t")


def test_a_topic_that_no_job_wrote_is_named(tmp_path: Path) -> None:
    State(tmp_path, decode="raw")
    with pytest.raises(JobError, match="has nothing of u, v that a lake job wrote"):
        facts(tmp_path, "t", "u", "v")
