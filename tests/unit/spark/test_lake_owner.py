"""A topic is written to a table by one job, which is found again wherever the table is moved to."""

import json
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake_files import LocalFiles
from penstock.spark.jobs.lake_layout import Layout, default_dead_letters
from penstock.spark.jobs.lake_owner import RANGE, owner_of, replays_of
from penstock.spark.jobs.lake_start import claim_table, claimed

FILES = LocalFiles()


def facts(table: Path, *topics: str, cluster: str = "c", **more: str) -> dict[str, Any]:
    place = str(table)
    plain = {"table": place, "dead_letters": default_dead_letters(place), "decode": "raw"}
    return {"cluster": cluster, "topics": sorted(topics), **plain, **more}


def layout(table: Path, job: str, dead: str | None = None) -> Layout:
    return Layout(str(table), dead or default_dead_letters(str(table)), job)


def test_a_table_is_owned_by_the_lake_job_that_came_first(tmp_path: Path) -> None:
    assert owner_of(str(tmp_path / "none")) is None
    (tmp_path / "_penstock" / "replay-1").mkdir(parents=True)
    assert owner_of(str(tmp_path)) is None
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
    assert owner_of(str(tmp_path)) == owner_of(str(tmp_path), FILES) == "one"


def test_another_job_is_refused_a_topic_that_the_table_has(tmp_path: Path) -> None:
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
    for refused in (claimed, claim_table):
        with pytest.raises(JobError) as caught:
            refused(FILES, layout(tmp_path, "two"), facts(tmp_path, "a", "b"))
        assert str(caught.value) == (
            f"{tmp_path} has a from job one, and job two would take it once more; "
            "`lake a --name one` continues that job; else leave a out, or give another --table"
        )
    assert not (tmp_path / "_penstock" / "two").exists()


def test_other_topics_and_those_of_another_cluster_have_room_beside(tmp_path: Path) -> None:
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b"))
    claim_table(FILES, layout(tmp_path, "three"), facts(tmp_path, "a", cluster="d"))
    for job, topic in (("one", "a"), ("two", "b")):
        assert claimed(FILES, layout(tmp_path, job), facts(tmp_path, topic)) is not None


def test_a_table_that_was_moved_is_continued_by_name(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    first = claim_table(FILES, layout(old, "one"), facts(old, "a"))
    old.rename(new)
    with pytest.raises(JobError, match="`lake a --name one` continues"):
        claim_table(FILES, layout(new, "other"), facts(new, "a"))
    assert claim_table(FILES, layout(new, "one"), facts(new, "a")) == first


def test_dead_letters_that_were_given_are_not_moved(tmp_path: Path) -> None:
    old, new, dead = tmp_path / "old", tmp_path / "new", "/elsewhere/dead"
    claim_table(FILES, layout(old, "one", dead), facts(old, "a", dead_letters=dead))
    old.rename(new)
    with pytest.raises(JobError, match="dead_letters '/elsewhere/dead' instead of"):
        claimed(FILES, layout(new, "one"), facts(new, "a"))
    assert claimed(FILES, layout(new, "one", dead), facts(new, "a", dead_letters=dead))


def replayed(table: Path, id: str) -> None:
    FILES.create(f"{layout(table, f'replay-{id}').state}/{RANGE}", "{}")


def test_the_table_of_a_replay_is_refused_and_stays_as_it_was(tmp_path: Path) -> None:
    replayed(tmp_path, "after-bug")
    assert replays_of(str(tmp_path), FILES) == ["after-bug"]
    for refused in (claimed, claim_table):
        with pytest.raises(JobError) as caught:
            refused(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
        assert str(caught.value) == (
            f"{tmp_path} is the table of replay 'after-bug': a lake job knows nothing of the records that it has, and "
            "would add each once more; give another --table"
        )
    assert owner_of(str(tmp_path)) is None
    assert not (tmp_path / "_penstock" / "one").exists()


def test_a_job_that_shares_its_table_with_a_replay_since_long_goes_on(tmp_path: Path) -> None:
    first = claim_table(FILES, layout(tmp_path, "replay-one"), facts(tmp_path, "a"))
    replayed(tmp_path, "two")
    assert claim_table(FILES, layout(tmp_path, "replay-one"), facts(tmp_path, "a")) == first


@pytest.mark.parametrize(
    ("what", "flag"), [("format", "--format"), ("partition_by", "--partition-by")]
)
def test_jobs_of_one_table_write_it_alike(tmp_path: Path, what: str, flag: str) -> None:
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a", **{what: "x"}))
    with pytest.raises(JobError) as caught:
        claimed(FILES, layout(tmp_path, "two"), facts(tmp_path, "b", **{what: "y"}))
    assert str(caught.value) == (
        f"{tmp_path} is written by job one with {flag} x, and nobody could read it as one table with {flag} y; "
        f"give {flag} x, or another --table"
    )
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b", **{what: "x"}))


def test_jobs_of_one_table_all_decode_values_or_none_does(tmp_path: Path) -> None:
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a", decode="json"))
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b", decode="avro"))
    with pytest.raises(
        JobError, match=r"with --decode json, and nobody could .* give --decode json"
    ):
        claim_table(FILES, layout(tmp_path, "three"), facts(tmp_path, "c"))


def test_a_job_that_changed_is_told_what_differs(tmp_path: Path) -> None:
    claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
    with pytest.raises(JobError, match="decode 'raw' instead of 'json'; give what it had"):
        claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a", decode="json"))
    kept = json.loads((tmp_path / "_penstock" / "one" / "job.json").read_text())
    assert kept == facts(tmp_path, "a")
