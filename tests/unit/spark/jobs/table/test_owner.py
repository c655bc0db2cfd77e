"""One job writes a topic to a table, and is found again wherever the table is moved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.files import LocalFiles
from penstock.spark.jobs.lake.start import claim_table, claimed
from penstock.spark.jobs.replay import table as replay_table
from penstock.spark.jobs.replay.range import Decided
from penstock.spark.jobs.replay.table import Table
from penstock.spark.jobs.table.layout import Layout, default_dead_letters
from penstock.spark.jobs.table.owner import JOB, RANGE, owner_of, read_book, replays_of

FILES = LocalFiles()


class Killed(BaseException):
    """As good as SIGKILL: nothing of ours catches it."""


class Mortal(LocalFiles):
    """Killed when it is to create so many files more."""

    def __init__(self, creates: int) -> None:
        self._left = creates

    def create(self, path: str, text: str) -> bool:
        if not self._left:
            raise Killed
        self._left -= 1
        return super().create(path, text)


class Overtaken(LocalFiles):
    """Something happens right before the first file is created: after all looks, that is."""

    def __init__(self, first: Callable[[], object]) -> None:
        self._first: Callable[[], object] | None = first

    def create(self, path: str, text: str) -> bool:
        first, self._first = self._first, None
        if first is not None:
            first()
        return super().create(path, text)


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
    assert replays_of(str(tmp_path), FILES, read_book(str(tmp_path), FILES)) == ["after-bug"]
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
    job = layout(tmp_path, "one")
    claim_table(FILES, job, facts(tmp_path, "a"))
    with_batches(job)
    with pytest.raises(JobError) as caught:
        claim_table(FILES, job, facts(tmp_path, "a", decode="json"))
    assert str(caught.value) == (
        f"{tmp_path} was written by a job one with decode 'raw' instead of 'json'; "
        "give what it had, or another --table"
    )
    with pytest.raises(JobError, match=r"give what it had, or another --name or --table$"):
        claim_table(FILES, job, facts(tmp_path, "b"))
    kept = json.loads((tmp_path / "_penstock" / "one" / "job.json").read_text())
    assert kept == facts(tmp_path, "a")


def test_a_job_that_has_written_nothing_may_begin_anew_with_other_options(tmp_path: Path) -> None:
    job = layout(tmp_path, "one")
    claim_table(FILES, job, facts(tmp_path, "a", decode="json"))
    with pytest.raises(JobError, match=f"has written nothing yet: .* delete {job.state} to begin"):
        claim_table(FILES, job, facts(tmp_path, "a"))
    FILES.delete(job.state)
    assert claim_table(FILES, job, facts(tmp_path, "a")) == facts(tmp_path, "a")
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b"))  # raw, as the job is now


def test_a_job_may_leave_out_topics_that_it_had_and_take_no_others(tmp_path: Path) -> None:
    job = layout(tmp_path, "ab")
    first = claim_table(FILES, job, facts(tmp_path, "a", "b"))
    for _ in range(2):
        assert claim_table(FILES, job, facts(tmp_path, "b")) == first
        with_batches(job)
    with pytest.raises(JobError, match=r"topics \['a', 'b'\] instead of \['b', 'c'\]"):
        claim_table(FILES, job, facts(tmp_path, "b", "c"))
    with pytest.raises(JobError, match="`lake a b --name ab` continues"):  # what it left is its own
        claim_table(FILES, layout(tmp_path, "other"), facts(tmp_path, "a"))


# Two at once -----------------------------------------------------------------------------------------


def with_batches(job: Layout) -> None:
    FILES.create(f"{job.manifests}/0000000000.json", "{}")


def claims(table: Path) -> list[str]:
    return [claim.job for claim in read_book(str(table), FILES).claims]


def test_of_two_jobs_that_come_at_once_one_has_the_topic_and_the_other_leaves_nothing(
    tmp_path: Path,
) -> None:
    two = layout(tmp_path, "two"), facts(tmp_path, "a", "b")
    late = Overtaken(lambda: claim_table(FILES, *two))
    for files in (late, FILES):  # and so it stays
        with pytest.raises(JobError, match="`lake a b --name two` continues"):
            claim_table(files, layout(tmp_path, "one"), facts(tmp_path, "a"))
    assert claims(tmp_path) == ["two"]
    assert not (tmp_path / "_penstock" / "one").exists()
    claim_table(FILES, *two)


def test_jobs_that_come_at_once_with_topics_of_their_own_are_both_welcome(tmp_path: Path) -> None:
    late = Overtaken(lambda: claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b")))
    claim_table(late, layout(tmp_path, "one"), facts(tmp_path, "a"))
    assert claims(tmp_path) == ["two", "one"]


def test_jobs_that_come_at_once_write_the_table_alike(tmp_path: Path) -> None:
    json_job = layout(tmp_path, "two"), facts(tmp_path, "b", decode="json")
    late = Overtaken(lambda: claim_table(FILES, *json_job))
    with pytest.raises(JobError, match="give --decode json"):
        claim_table(late, layout(tmp_path, "one"), facts(tmp_path, "a"))


def test_one_name_that_comes_at_once_with_other_topics_locks_nobody_out(tmp_path: Path) -> None:
    """Both have a place in the table, but a name is one job's: what the other claimed is free again."""
    job = layout(tmp_path, "one")
    late = Overtaken(lambda: claim_table(FILES, job, facts(tmp_path, "a")))
    with pytest.raises(JobError, match=r"topics \['a'\] instead of \['b'\]"):
        claim_table(late, job, facts(tmp_path, "b"))
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b"))


@pytest.mark.parametrize("creates", [0, 1])
def test_a_job_that_was_killed_amid_its_claim_goes_on_when_it_comes_again(
    tmp_path: Path, creates: int
) -> None:
    one, two = layout(tmp_path, "one"), layout(tmp_path, "two")
    with pytest.raises(Killed):
        claim_table(Mortal(creates), one, facts(tmp_path, "a"))
    if creates:  # nobody else has the topic meanwhile
        with pytest.raises(JobError, match="`lake a --name one` continues"):
            claim_table(FILES, two, facts(tmp_path, "a"))
        with pytest.raises(JobError, match="is the table of lake job one"):
            replay(tmp_path, "x")
    assert claim_table(FILES, one, facts(tmp_path, "a")) == facts(tmp_path, "a")
    assert claims(tmp_path) == ["one"]


def test_a_job_that_was_killed_amid_its_claim_has_claimed_no_more_than_it_said(
    tmp_path: Path,
) -> None:
    with pytest.raises(Killed):
        claim_table(Mortal(1), layout(tmp_path, "one"), facts(tmp_path, "a"))
    claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "b"))
    with pytest.raises(JobError, match="has b from job two"):
        claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a", "b"))


def without_a_book(job: Layout, said: dict[str, Any], *, batches: bool) -> None:
    FILES.create(f"{job.state}/{JOB}", json.dumps(said))
    if batches:
        with_batches(job)


def test_two_jobs_that_had_one_topic_before_there_was_a_book_both_go_on(tmp_path: Path) -> None:
    for name in ("one", "two"):
        without_a_book(layout(tmp_path, name), facts(tmp_path, "a"), batches=True)
    for name in ("one", "two"):
        assert claim_table(FILES, layout(tmp_path, name), facts(tmp_path, "a"))
    with pytest.raises(JobError, match="has a from job one"):
        claim_table(FILES, layout(tmp_path, "three"), facts(tmp_path, "a"))


def test_two_jobs_that_locked_each_other_out_before_there_was_a_book_have_a_winner(
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        without_a_book(layout(tmp_path, name), facts(tmp_path, "a"), batches=False)
    for _ in range(2):
        claim_table(FILES, layout(tmp_path, "two"), facts(tmp_path, "a"))
        with pytest.raises(JobError, match="`lake a --name two` continues"):
            claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))


# A lake and a replay at once -------------------------------------------------------------------------


def replay(table: Path, id: str) -> tuple[Decided, int]:
    what = Decided("wish", ())
    return Table(None, str(table), id).decide(what, (), cluster_id="c", most=7)


def test_a_lake_that_a_replay_overtakes_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    late = Overtaken(lambda: replay(tmp_path, "x"))
    for files in (late, FILES):
        with pytest.raises(JobError, match="is the table of replay 'x'"):
            claim_table(files, layout(tmp_path, "one"), facts(tmp_path, "a"))
    assert not (tmp_path / "_penstock" / "one").exists()
    assert replay(tmp_path, "x")[1] == 7
    replay(tmp_path, "y")  # replays share a table
    assert claims(tmp_path) == ["replay-x", "replay-y"]


def test_a_replay_that_a_lake_overtakes_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = layout(tmp_path, "one"), facts(tmp_path, "a")
    late = Overtaken(lambda: claim_table(FILES, *one))
    with monkeypatch.context() as patched:
        patched.setattr(replay_table, "open_files", lambda *_: late)
        with pytest.raises(JobError, match="is the table of lake job one"):
            replay(tmp_path, "x")
    assert not (tmp_path / "_penstock" / "replay-x").exists()
    claim_table(FILES, *one)


@pytest.mark.parametrize("creates", [0, 1])
def test_a_replay_that_was_killed_amid_its_claim_goes_on_when_it_comes_again(
    tmp_path: Path, creates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(replay_table, "open_files", lambda *_: Mortal(creates))
        with pytest.raises(Killed):
            replay(tmp_path, "x")
    if creates:
        with pytest.raises(JobError, match="is the table of replay 'x'"):
            claim_table(FILES, layout(tmp_path, "one"), facts(tmp_path, "a"))
    replay(tmp_path, "x")
    assert claims(tmp_path) == ["replay-x"]
