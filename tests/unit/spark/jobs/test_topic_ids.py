"""A topic that was created again under the same name is another topic."""

from pathlib import Path

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import LocalFiles
from penstock.spark.jobs.lake.start import check_topics, hold_topics
from penstock.spark.jobs.table.layout import Layout
from penstock.spark.jobs.topic_ids import changed_ids, check_ids, hold_ids

FILES, REMEDY = LocalFiles(), "do this"


def test_a_topic_that_was_created_again_is_named_with_the_remedy(tmp_path: Path) -> None:
    place = str(tmp_path)
    hold_ids(FILES, place, {"a": "1", "b": "2"}, REMEDY)
    hold_ids(FILES, place, {"b": "2", "a": "1"}, REMEDY)
    for refused in (check_ids, hold_ids):
        with pytest.raises(JobError) as caught:
            refused(FILES, place, {"a": "1", "b": "3"}, REMEDY)
        assert str(caught.value) == (
            "topic 'b' was deleted and created again since this job read it (its id was 2 and is 3), "
            "so offsets of the old one say nothing about it; do this"
        )


def test_a_job_of_a_penstock_that_kept_no_ids_goes_on_and_keeps_them(tmp_path: Path) -> None:
    place = str(tmp_path / "state")
    check_ids(FILES, place, {"a": "1"}, REMEDY)
    assert not (tmp_path / "state").exists()
    hold_ids(FILES, place, {"a": "1"}, REMEDY)
    with pytest.raises(JobError):
        check_ids(FILES, place, {"a": "2"}, REMEDY)


def test_brokers_that_give_no_ids_refuse_nobody(tmp_path: Path) -> None:
    hold_ids(FILES, str(tmp_path), {"a": "1"}, REMEDY)
    check_ids(FILES, str(tmp_path), {}, REMEDY)


def test_a_topic_that_is_not_asked_for_may_be_another(tmp_path: Path) -> None:
    place = str(tmp_path)
    hold_ids(FILES, place, {"a": "1", "b": "2"}, REMEDY)
    assert changed_ids(FILES, place, {"a": "3", "b": "2"}) == {"a": "1"}
    hold_ids(FILES, place, {"b": "2"}, REMEDY)


def test_a_lake_of_several_topics_is_told_how_it_goes_on_without_the_one_that_changed(
    tmp_path: Path,
) -> None:
    job = Layout(str(tmp_path), "dead", "abc")
    hold_topics(FILES, job, ["a", "b", "c"], {"a": "1", "b": "2", "c": "3"})
    for refused in (check_topics, hold_topics):
        with pytest.raises(JobError, match="--table for the new one; `lake a c --name abc` goes"):
            refused(FILES, job, ["a", "b", "c"], {"a": "1", "b": "4", "c": "3"})
        with pytest.raises(JobError, match=r"give another --table for the new one$"):
            refused(FILES, job, ["b"], {"b": "4"})
        refused(FILES, job, ["c", "a"], {"a": "1", "c": "3"})
