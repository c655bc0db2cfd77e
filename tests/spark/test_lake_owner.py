"""No record is in a table twice, though another job, or the same one from another place, is asked to take it."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.table.owner import owner_of
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, Sent, numbered, produce
from tests.support.server import Server, until

pytestmark = pytest.mark.spark


@pytest.fixture
def lake(spark: Any, broker: Server, tmp_path: Path) -> Lake:
    return Lake(spark, broker, tmp_path)


def test_a_topic_more_in_the_command_doubles_nothing(
    lake: Lake, broker: Server, topic: Create
) -> None:
    one, other = topic("owned", retention_ms=-1), topic("owned", retention_ms=-1)
    for name in (one, other):
        produce(broker, name, numbered(5))
    lake.run(one)
    owner = owner_of(str(lake.table))
    with pytest.raises(JobError, match=rf"`lake {one} --name {owner}` continues"):
        lake.run(one, other)
    assert places(lake.rows()) == {(one, 0, offset): 1 for offset in range(5)}
    lake.run(other)
    assert lake.run(one, name=owner).facts["rows"] == 0
    assert places(lake.rows()) == {(n, 0, o): 1 for n in (one, other) for o in range(5)}


@pytest.mark.long
def test_a_table_that_was_moved_goes_on_by_the_name_of_its_job(
    lake: Lake, broker: Server, topic: Create, tmp_path: Path
) -> None:
    name = topic("owned", retention_ms=-1)
    produce(broker, name, numbered(5))
    lake.run(name)
    lake.table = lake.table.rename(tmp_path / "moved")
    owner = owner_of(str(lake.table))
    with pytest.raises(JobError, match=rf"--name {owner}` continues"):
        lake.run(name)
    produce(broker, name, numbered(3))
    assert lake.run(name, name=owner).facts["rows"] == 3
    assert places(lake.rows()) == {(name, 0, offset): 1 for offset in range(8)}


@pytest.mark.long
def test_a_job_that_could_not_begin_keeps_nobody_out(
    lake: Lake, broker: Server, topic: Create
) -> None:
    name = topic("owned", retention_ms=-1)
    produce(broker, name, [Sent(None, b"no json")])
    with pytest.raises(JobError, match="no JSON object was found"):
        lake.run(name, decode="json")
    assert lake.run(name).facts["rows"] == 1


@pytest.mark.long
def test_a_job_goes_on_without_a_topic_that_was_created_again_and_compacts_what_it_has(
    lake: Lake, broker: Server, topic: Create
) -> None:
    left, kept = topic("owned", retention_ms=-1), topic("owned", retention_ms=-1)
    for count in (5, 3):
        for name in (left, kept):
            produce(broker, name, numbered(count))
        lake.run(left, kept, name="both")
    broker.delete_topic(left)
    until(lambda: left not in broker.topics(), f"{left} is gone")
    broker.create_topic(left, retention_ms=-1)
    for name in (left, kept):
        produce(broker, name, numbered(4))
    with pytest.raises(JobError, match=rf"`lake {kept} --name both` goes on"):
        lake.run(left, kept, name="both")
    assert [lake.run(kept, name="both").facts["rows"] for _ in range(2)] == [4, 0]
    produce(broker, kept, numbered(2))
    assert lake.run(kept, name="both").facts["rows"] == 2
    compacted = lake.run(left, kept, name="both", compact_only=True).facts["compacted"]
    assert compacted["before"] > compacted["after"] > 0
    had = {left: 8, kept: 14}
    assert places(lake.rows()) == {(n, 0, o): 1 for n, count in had.items() for o in range(count)}
