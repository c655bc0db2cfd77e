"""A lake job claims its table only after everything that may fail. No Spark.

So a run that failed or was rejected blocks no other job.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.lake import job as lake
from penstock.spark.jobs.lake.options import LakeOptions
from penstock.spark.progress import Progress
from penstock.spark.survey import Ranges


class Session:
    """As much of Spark as a job needs that reads nothing."""

    @property
    def conf(self) -> "Session":
        return self

    def set(self, name: str, value: str) -> None:
        pass


class Quiet:
    @contextmanager
    def tasks(self, *_: Any) -> Iterator[None]:
        yield


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The topics' ids, which may change."""
    ids = {"a": "1", "b": "2"}

    def ranges(options: LakeOptions) -> Ranges:
        places = [TopicPartition(topic, 0) for topic in options.topics]
        return Ranges("c", dict.fromkeys(places, 0), dict.fromkeys(places, 5))

    monkeypatch.setattr(lake, "_ranges", ranges)
    monkeypatch.setattr(
        lake, "_ids", lambda options: {topic: ids[topic] for topic in options.topics}
    )
    monkeypatch.setattr(lake, "_stream", lambda *_: True)
    return ids


def options(table: Path, *topics: str, **more: Any) -> LakeOptions:
    return LakeOptions(topics=topics, table=str(table), **more)


def run(given: LakeOptions) -> dict[str, Any]:
    return dict(lake.run(Session(), given, cast(Progress, Quiet())).facts)


@pytest.mark.usefixtures("brokers")
@pytest.mark.parametrize("part", ["_decoder", "_table"])
def test_a_job_that_fails_before_it_can_begin_has_claimed_nothing(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "t"

    def fails(*_: Any) -> Any:
        raise JobError("no JSON object was found to learn a schema from; give --schema")

    with monkeypatch.context() as patched:
        patched.setattr(lake, part, fails)
        with pytest.raises(JobError, match="no JSON object was found"):
            run(options(table, "a", decode="json"))
    assert not table.exists()
    run(options(table, "a"))
    with pytest.raises(JobError, match="has a from job"):
        run(options(table, "a", name="other"))


@pytest.mark.usefixtures("brokers")
def test_the_checkpoint_of_another_job_is_refused_before_anything_is_claimed(
    tmp_path: Path,
) -> None:
    checkpoint = str(tmp_path / "c")
    run(options(tmp_path / "one", "a", checkpoint=checkpoint))
    with pytest.raises(JobError, match="is not this job's"):
        run(options(tmp_path / "two", "a", checkpoint=checkpoint))
    assert not (tmp_path / "two").exists()


def test_a_topic_that_was_created_again_hinders_no_compaction(
    tmp_path: Path, brokers: dict[str, str]
) -> None:
    given = options(tmp_path / "t", "a")
    run(given)
    brokers["a"] = "3"
    for refused in (run, lake.plan):
        with pytest.raises(JobError, match="created again"):
            refused(given)
        refused(replace(given, compact_only=True))


def test_a_job_goes_on_without_a_topic_that_was_created_again(
    tmp_path: Path, brokers: dict[str, str]
) -> None:
    given = options(tmp_path / "t", "a", "b", name="ab")
    first = run(given)["checkpoint"]
    brokers["a"] = "3"
    for refused in (run, lake.plan):
        with pytest.raises(JobError, match="`lake b --name ab` goes on"):
            refused(given)
    less = options(tmp_path / "t", "b", name="ab")
    for _ in range(2):
        planned = lake.plan(less).facts["checkpoint"]
        assert planned == run(less)["checkpoint"] != first
        assert Path(planned, "penstock.json").exists()
    with pytest.raises(
        JobError, match=r"checkpoint .* is not this job's: it has topics a,b instead of b"
    ):
        run(replace(less, checkpoint=given.layout.checkpoint))
