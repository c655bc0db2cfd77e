"""`replay` is killed while it writes to a topic, and started again with the same command: each record is there once, in order."""

import signal

import pytest

from tests.spark.topics import Create, numbered, produce
from tests.spark.transforms import Command, read_committed
from tests.support.server import Server

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(3600)]


def test_killed_before_and_after_a_commit_and_in_a_worker(broker: Server, topic: Create) -> None:
    forever = {"retention_ms": -1}  # the records are old, and this may take long
    source, target = topic("in", partitions=2, **forever), topic("again", partitions=2, **forever)
    produce(broker, source, numbered(200, 2))
    words = (source, "--to", target, "--id", f"id-{target}", "--batch-records", "50")
    job = Command(broker, "replay", *words)
    assert job.run("transaction:offsets#2") == -signal.SIGKILL
    assert job.run("transaction:committed") == -signal.SIGKILL
    produce(broker, source, numbered(10, 2))  # too late to be replayed
    assert job.run("transaction:first-sent") == 1
    assert job.run() == 0
    assert [row.value for row in read_committed(broker, target)] == [
        b"value %d" % n for partition in range(2) for n in range(partition, 200, 2)
    ]
