"""Spark's own connector, from Maven Central, gives the same rows as ours for the same queries."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark import both_connectors
from tests.spark.topics import Create, Sent, numbered, produce, transactions
from tests.support.command import environment
from tests.support.server import Server
from tests.support.spark_connector import NotToBeHad, fetch_jars

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

RUN_S = 500


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Skipped only where they cannot be had."""
    try:
        return [str(path) for path in fetch_jars(tmp_path_factory.mktemp("connector"))]
    except NotToBeHad as reason:
        pytest.skip(str(reason))


def asked(bootstrap: str, plain: str, txn: str) -> dict[str, Any]:
    base = {"kafka.bootstrap.servers": bootstrap, "subscribe": plain}
    offsets = {"0": 7, "1": -2, "2": 3}
    ends = {"0": 20, "1": -1, "2": 4}
    stamp = 1_700_000_000_000

    def batch(**options: object) -> dict[str, Any]:
        texts = {name.replace("__", "."): str(value) for name, value in options.items()}
        return {"kind": "batch", "options": {**base, **texts}}

    def stream(**options: object) -> dict[str, Any]:
        return {**batch(startingOffsets="earliest", **options), "kind": "stream"}

    return {
        "all": batch(),
        "headers": batch(includeHeaders="true"),
        "offsets": batch(
            startingOffsets=json.dumps({plain: offsets}), endingOffsets=json.dumps({plain: ends})
        ),
        "timestamps": batch(startingTimestamp=stamp + 100, endingTimestamp=stamp + 200),
        "split": batch(minPartitions=7, maxRecordsPerPartition=60),
        "transactions": batch(subscribe=txn),
        "committed": batch(subscribe=txn, kafka__isolation__level="read_committed"),
        "limited": stream(maxOffsetsPerTrigger=100),
        "streamed": stream(subscribe=txn, kafka__isolation__level="read_committed"),
    }


def test_both_connectors_give_the_same_rows(
    broker: Server, topic: Create, jars: list[str], tmp_path: Path
) -> None:
    plain, txn = topic("same", partitions=3), topic("same-txn")
    produce(broker, plain, numbered(300, partitions=3), compression_type="zstd")
    produce(broker, plain, [Sent(None, None), Sent(b"", b"", headers=(("a", b"1"), ("b", None)))])
    transactions(broker, txn, [True, False, True])
    queries = asked(broker.bootstrap, plain, txn)

    done = subprocess.run(
        [sys.executable, both_connectors.__file__],
        input=json.dumps({"jars": jars, "home": str(tmp_path), "queries": queries}),
        capture_output=True,
        text=True,
        env=environment(PYSPARK_PYTHON=sys.executable),
        timeout=RUN_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-4000:]
    answers = json.loads(done.stdout.rsplit("ANSWERS ", 1)[1])
    assert answers.keys() == queries.keys()
    for name, answer in answers.items():
        assert answer["penstock"] == answer["kafka"], name
    assert len(answers["all"]["kafka"]["rows"]) == 302
    assert len(answers["limited"]["kafka"]["batches"]) == 4
