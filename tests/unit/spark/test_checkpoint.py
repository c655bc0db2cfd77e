"""A checkpoint is continued by its own job only."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.checkpoint import FILE_NAME, Identity, check, claim, open_directory
from penstock.spark.errors import JobError

LAKE = Identity(
    job="lake", topics=("orders", "payments"), cluster_id="abc", options={"format": "json"}
)


def test_a_new_directory_becomes_the_jobs(tmp_path: Path) -> None:
    place = tmp_path / "new" / "checkpoint"
    assert not check(str(place), LAKE)
    assert not place.exists()
    claim(str(place), LAKE)
    assert check(str(place), LAKE)
    assert json.loads((place / FILE_NAME).read_text())["cluster"] == "abc"
    assert [entry.name for entry in place.iterdir()] == [FILE_NAME]


def test_the_same_job_goes_on(tmp_path: Path) -> None:
    claim(str(tmp_path), LAKE)
    (tmp_path / "offsets").mkdir()
    claim(tmp_path.as_uri(), replace(LAKE, topics=("payments", "orders")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job": "transform"}, "job lake instead of transform"),
        ({"topics": ("orders",)}, "topics orders,payments instead of orders"),
        ({"cluster_id": "xyz"}, "cluster abc instead of xyz"),
        ({"options": {"format": "avro"}}, "format json instead of avro"),
        ({"options": {}}, "format json instead of nothing"),
        ({"options": {"format": "json", "by": "day"}}, "by nothing instead of day"),
    ],
)
def test_another_job_is_told_what_differs_and_the_remedy(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    claim(str(tmp_path), LAKE)
    for refused in (claim, check):
        with pytest.raises(JobError) as caught:
            refused(str(tmp_path), replace(LAKE, **changes))
        assert str(caught.value) == (
            f"checkpoint {tmp_path} is not this job's: it has {said}; "
            "give another --checkpoint, or delete that one to begin anew"
        )


def test_a_checkpoint_that_no_job_of_ours_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for refused in (claim, check):
        with pytest.raises(JobError, match=r"has offsets but no penstock\.json"):
            refused(str(tmp_path), LAKE)


def test_a_directory_that_holds_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    """Spark's files among those of a table would be taken for its data."""
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".penstock.json.new").touch()
    assert not check(str(tmp_path), LAKE)
    for name in ("_penstock", "topic=a", "topic=b", "topic=c"):
        (tmp_path / name).mkdir()
    for refused in (claim, check):
        with pytest.raises(JobError) as caught:
            refused(str(tmp_path), LAKE)
        assert str(caught.value) == (
            f"{tmp_path} is no checkpoint: it has _penstock, topic=a, topic=b …; "
            "give --checkpoint a directory of its own"
        )


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_identity_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(JobError, match=r"penstock\.json is damaged"):
        claim(str(tmp_path), LAKE)


def test_a_directory_is_claimed_once(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    directory.create("f", "1")
    with pytest.raises(FileExistsError):
        directory.create("f", "2")
    assert directory.read("f") == "1"


def test_a_place_that_only_spark_can_reach_needs_a_session() -> None:
    with pytest.raises(JobError, match="only be looked at by a running Spark"):
        check("s3a://bucket/checkpoint", LAKE)
