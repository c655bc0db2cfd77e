"""Manifests define what is in the table. Records that it already has are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.table import manifest as manifests
from penstock.spark.jobs.table.manifest import DataFile, Manifest, Span, Table

ORDERS = TopicPartition("orders", 0)

spans = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b-1", "c.d"]), st.integers(0, 3)),
    st.builds(
        lambda first, length: Span(first, first + length, length + 1),
        st.integers(0, 2**50),
        st.integers(0, 10**6),
    ),
)


def _manifest(**changes: object) -> Manifest:
    facts: dict[str, object] = {
        "number": 3,
        "job": "j",
        "query": "q",
        "batch": 3,
        "attempt": "0000000003-ab",
        "planned_end": '{"orders": {"0": 10}}',
        "files": (DataFile(Table.ROWS, "topic=a/x.parquet", "topic=a/j-1.parquet", 10, 2),),
        "spans": {ORDERS: Span(5, 9, 5)},
        "covered": {ORDERS: Span(0, 9, 10)},
    }
    return Manifest(**{**facts, **changes})  # type: ignore[arg-type]  # any of them may be changed


@given(spans, spans)
def test_a_manifest_is_read_as_it_was_written(some: manifests.Spans, more: manifests.Spans) -> None:
    manifest = _manifest(spans=some, covered=more)
    assert manifests.from_json(manifests.to_json(manifest)) == manifest


def test_another_version_is_refused() -> None:
    text = manifests.to_json(_manifest()).replace('"version": 1', '"version": 2')
    with pytest.raises(JobError, match="version 2"):
        manifests.from_json(text)


def test_batches_that_follow_each_other_are_taken() -> None:
    covered = manifests.after({}, {ORDERS: Span(0, 9, 10)})
    covered = manifests.after(covered, {ORDERS: Span(12, 20, 5)})
    assert covered == {ORDERS: Span(0, 20, 15)}
    assert manifests.next_offsets(covered) == {ORDERS: 21}


@pytest.mark.parametrize("first", [0, 5, 9])
def test_what_the_table_has_is_not_taken_again(first: int) -> None:
    covered = {ORDERS: Span(0, 9, 10)}
    with pytest.raises(JobError, match=r"orders-0.*up to 9.*delete it"):
        manifests.after(covered, {ORDERS: Span(first, 30, 2)})


def test_more_rows_than_offsets_are_refused() -> None:
    with pytest.raises(JobError, match="11 rows"):
        manifests.after({}, {ORDERS: Span(0, 9, 11)})


def test_a_batch_is_skipped_only_if_it_is_the_same() -> None:
    same = {"query": "q", "batch": 3, "planned_end": '{"orders":{"0":10}}', "checkpoint": "c"}
    manifests.check_same(_manifest(), **same)  # type: ignore[arg-type]  # all of them fit
    for name, other in (("query", "r"), ("batch", 4), ("planned_end", '{"orders":{"0":11}}')):
        with pytest.raises(JobError, match="not the one that the table has as 3"):
            manifests.check_same(_manifest(), **{**same, name: other})  # type: ignore[arg-type]


def test_final_names_tell_job_and_batch_and_empty_files_get_none() -> None:
    staged = [
        ("topic=a/z.parquet", 10, 4),
        ("topic=a/y.parquet", 9, 0),
        ("topic=a/x.parquet", 8, 3),
    ]
    found = manifests.named(Table.ROWS, staged, job="j", number=7)
    assert [(file.staged, file.final, file.rows) for file in found] == [
        ("topic=a/x.parquet", "topic=a/j-00000007-0000.parquet", 3),
        ("topic=a/z.parquet", "topic=a/j-00000007-0001.parquet", 4),
    ]


def test_only_finished_manifests_count() -> None:
    names = ["0000000010.json", "0000000002.json", ".0000000011.json.ab.new", "other"]
    assert manifests.numbers(names) == [2, 10]
