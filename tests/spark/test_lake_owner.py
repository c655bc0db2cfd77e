"""No record is in a table twice, though another job, or the same one from another place, is asked to take it."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.lake_owner import owner_of
from tests.spark.lakes import Lake, places
from tests.spark.topics import Create, numbered, produce
from tests.support.server import Server

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
