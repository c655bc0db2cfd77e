"""The offsets of the group decide whether a batch was committed and where to read."""

from pathlib import Path

import pytest

from penstock.client.raw_transactions import OffsetToCommit
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.files import LocalFiles
from penstock.spark.jobs.transform.position import Log, is_committed, starting
from penstock.spark.survey import Ranges

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)
RANGES = Ranges("cluster", {ZERO: 3, ONE: 0}, {ZERO: 9, ONE: 7})


def ask(committed: dict[TopicPartition, tuple[int, str]]) -> bool:
    rows = {place: OffsetToCommit(*row) for place, row in committed.items()}
    return is_committed(rows, "m1", group="g", start={ZERO: 3, ONE: 2}, end={ZERO: 5, ONE: 2})


def test_a_batch_whose_mark_the_group_has_is_committed() -> None:
    assert ask({ZERO: (5, "m1"), ONE: (2, "m1")})


def test_a_batch_after_the_committed_one_is_not() -> None:
    assert not ask({ZERO: (3, "m0"), ONE: (2, "m0")})


def test_the_first_batch_of_all_is_not() -> None:
    assert not ask({})


@pytest.mark.parametrize(
    "committed",
    [
        {ZERO: (4, "m0"), ONE: (2, "m0")},
        {ZERO: (3, "m0")},
        {ZERO: (6, "m1"), ONE: (2, "m1")},
        {ZERO: (5, "m1")},
    ],
)
def test_a_group_that_somebody_moved_is_an_error_with_a_remedy(
    committed: dict[TopicPartition, tuple[int, str]],
) -> None:
    with pytest.raises(JobError, match=r"group g has .* delete the checkpoint to go on"):
        ask(committed)


def test_a_start_that_was_not_known_is_not_compared() -> None:
    rows = {ZERO: OffsetToCommit(3, "m0")}
    assert not is_committed(rows, "m1", group="g", start={ZERO: 3, ONE: -2}, end={ZERO: 5, ONE: 2})


def test_a_job_without_a_checkpoint_goes_on_where_its_group_is() -> None:
    committed = {ZERO: OffsetToCommit(6, "m")}
    assert starting(committed, RANGES, whole=True, new_only=False) == {ZERO: 6, ONE: -2}
    assert starting(committed, RANGES, whole=False, new_only=False) == {ZERO: 6, ONE: 0}
    assert starting(committed, RANGES, whole=False, new_only=True) == {ZERO: 6, ONE: 7}


def test_the_log_tells_what_a_batch_reads_and_remembers_the_first_start(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"t": {"0": 5}}')
    log = Log(str(tmp_path), LocalFiles())
    log.remember({ZERO: 3})
    log.remember({ZERO: 4})
    assert log.mark(0) == "query=q batch=0"
    assert log.start(0) == {ZERO: 3}
    assert log.end(0) == log.start(1) == {ZERO: 5}


@pytest.mark.parametrize("text", [None, "", "v1\n{}\n-", "v1\n{}\n17"])
def test_a_log_that_does_not_tell_is_an_error(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "offsets").mkdir()
    if text is not None:
        (tmp_path / "offsets" / "0").write_text(text)
    with pytest.raises(JobError, match="does not say what the batch reads"):
        Log(str(tmp_path), LocalFiles()).end(0)


def test_a_batch_that_was_tried_and_of_which_the_group_knows_nothing_is_an_error() -> None:
    with pytest.raises(JobError, match="nobody knows whether the last batch was written"):
        is_committed({}, "m1", group="g", start={ZERO: 3}, end={ZERO: 5}, was_tried=True)


def test_the_log_tells_which_batch_was_planned_and_not_done(tmp_path: Path) -> None:
    log = Log(str(tmp_path), LocalFiles())
    assert log.unfinished() is None
    for name in ("offsets/3", "offsets/4", "offsets/.4.crc", "commits/3"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert log.unfinished() == 4
    (tmp_path / "commits/4").touch()
    assert log.unfinished() is None
