"""A transaction that is open hinders no job: it reads up to there, and the rest when it is committed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from penstock.spark.job import explained
from penstock.spark.jobs.transform import job as transform
from penstock.spark.jobs.transform.options import TransformOptions
from penstock.spark.progress import Progress
from tests.spark.lakes import Lake
from tests.spark.topics import STAYS_OPEN, Create, Sent, produce
from tests.spark.transforms import read_committed
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

OPEN_FROM_MS = 1_700_000_100_000
LATER = [b'{"id": 10}', b'{"id": 11}', b'{"id": 12}']
BEGIN = [{"new_only": True}, {"since": OPEN_FROM_MS + 1}]  # the latter within the transaction


class Open:
    """A topic with five records, and three more of a transaction that is open."""

    def __init__(self, broker: Server, name: str) -> None:
        self.name = name
        produce(broker, name, [Sent(b"k", b'{"id": %d}' % n) for n in range(5)])
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": f"open-{name}",
                **STAYS_OPEN,
            }
        )
        self._producer.init_transactions(PATIENCE_S)
        self._producer.begin_transaction()
        for n, value in enumerate(LATER):
            self._producer.produce(name, value, partition=0, timestamp=OPEN_FROM_MS + n)
        self._producer.flush(PATIENCE_S)
        self._is_open = True

    def commit(self) -> None:
        if self._is_open:
            self._producer.commit_transaction(PATIENCE_S)
        self._is_open = False


@pytest.fixture
def opened(broker: Server, topic: Create) -> Iterator[Open]:
    found = Open(broker, topic("open", retention_ms=-1))
    yield found
    found.commit()


@pytest.mark.long
@pytest.mark.parametrize("begin", BEGIN, ids=str)
def test_a_lake_begins_before_it(
    spark: Any, broker: Server, opened: Open, tmp_path: Path, begin: dict[str, Any]
) -> None:
    lake = Lake(spark, broker, tmp_path)
    assert lake.run(opened.name, **begin).facts["rows"] == 0
    opened.commit()
    lake.run(opened.name, **begin)
    assert [row["value"] for row in lake.rows()] == LATER


@pytest.mark.long
@pytest.mark.parametrize(("uncommitted", "count"), [(False, 5), (True, 8)])
def test_a_schema_is_found_in_what_can_be_read(
    spark: Any, broker: Server, opened: Open, tmp_path: Path, uncommitted: bool, count: int
) -> None:
    lake = Lake(spark, broker, tmp_path)
    lake.run(opened.name, decode="json", read_uncommitted=uncommitted)
    assert len(lake.rows()) == count


@pytest.mark.long
@pytest.mark.parametrize("begin", BEGIN, ids=str)
def test_a_transform_begins_before_it(
    spark: Any, broker: Server, opened: Open, topic: Create, tmp_path: Path, begin: dict[str, Any]
) -> None:
    target = topic("out", retention_ms=-1)
    options = TransformOptions(
        bootstrap=broker.bootstrap,
        topics=(opened.name,),
        to=target,
        checkpoint=str(tmp_path / "state"),
        sql="SELECT key, value FROM records",
        **begin,
    )
    for _ in range(2):
        with explained():
            transform.run(spark, options, Progress())
        opened.commit()
    assert [row.value for row in read_committed(broker, target)] == LATER
