"""`audit` of a compacted topic: what compaction took is no fault, and what else is wrong is found."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.spark.audits import Row, damage, faults, run_audit
from tests.spark.lakes import Lake
from tests.spark.topics import Sent, is_compacted, produce
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

KEYS = 10
SETTINGS = {"log.cleaner.backoff.ms": 50, "log.segment.delete.delay.ms": 0}
TOPIC: dict[str, Any] = {
    "cleanup_policy": "compact",
    "segment_bytes": 20_000,
    "min_cleanable_dirty_ratio": 0.01,
    "retention_ms": -1,
}


@pytest.fixture
def cleaning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("cleaning"), SETTINGS) as server:
        yield server


def _offsets(server: Server, topic: str) -> set[int]:
    """Those that are left."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": "g", "enable.auto.commit": False}
    )
    place = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.assign([place])
    _, end = consumer.get_watermark_offsets(place, PATIENCE_S)
    found: set[int] = set()
    while end - 1 not in found:
        found |= {m.offset() or 0 for m in consumer.consume(100, 0.2) if m.error() is None}
    consumer.close()
    return found


def _is_at_rest(server: Server, topic: str) -> bool:
    left = _offsets(server, topic)
    return is_compacted(server, topic, ((offset, b"%d" % (offset % KEYS)) for offset in left))


@pytest.mark.long
def test_what_compaction_took_is_no_fault(spark: Any, cleaning: Server, tmp_path: Path) -> None:
    topic = cleaning.create_topic("latest", **TOPIC)
    lake = Lake(spark, cleaning, tmp_path)
    first = [Sent(b"k%d" % (n % KEYS), b"%d" % n + bytes(1000)) for n in range(40)]
    produce(cleaning, topic, first, linger_ms=0, batch_num_messages=1)
    lake.run(topic, partition_by="none")
    produce(cleaning, topic, first, linger_ms=0, batch_num_messages=1)  # the old ones can go now
    until(lambda: _is_at_rest(cleaning, topic), "the compaction", 4 * PATIENCE_S)
    lake.run(topic, partition_by="none")
    left = _offsets(cleaning, topic)
    assert len(left) < 80
    summary = run_audit(spark, cleaning, topic, table=str(lake.table))
    assert faults(summary) == {}
    rows = lake.rows()
    assert summary.facts["agreed"] + summary.facts["compacted"] == len(rows)
    assert summary.facts["compacted"] >= 5

    lost, doubled, changed, one, other = sorted(left & {row["offset"] for row in rows})[:5]
    gone = min({row["offset"] for row in rows} - left)

    def damaged(row: Row) -> list[Row]:
        match row["offset"]:
            case at if at == lost:
                return []
            case at if at in (doubled, gone):
                return [row, row]
            case at if at == changed:
                return [{**row, "key": b"?"}]
            case at if at in (one, other):
                return [{**row, "offset": one + other - at}]
            case _:
                return [row]

    damage(lake.table, damaged)
    assert faults(run_audit(spark, cleaning, topic, table=str(lake.table))) == {
        "missing": {0: [lost]},
        "duplicate": {0: sorted([gone, doubled])},
        "changed": {0: [changed]},
        "reordered": {0: [one, other]},
    }
