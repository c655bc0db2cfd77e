"""The jobs run on a Spark cluster as they do on one machine: an executor that is killed in the middle costs no row and doubles none."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.spark.lakes import places, read
from tests.spark.standalone import QUICK_JVM, standalone_cluster
from tests.spark.topics import Create, numbered, produce
from tests.support.command import command, environment
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # six JVMs, also on a busy machine

RUN_S = 8 * PATIENCE_S
RECORDS = 2_000
BATCH = 200


def test_an_executor_that_is_killed_costs_no_row(
    broker: Server, topic: Create, tmp_path: Path
) -> None:
    name, table = topic("spread", partitions=4, retention_ms=-1), tmp_path / "table"
    produce(broker, name, numbered(RECORDS, partitions=4))
    confs = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
    }
    with standalone_cluster(tmp_path) as cluster:
        lake = subprocess.Popen(
            command(
                *("pipeline", "lake", name, "--table", table, "--bootstrap", broker.bootstrap),
                *("--batch-records", BATCH, "--json", "--master", cluster.master),
                *(word for pair in confs.items() for word in ("--conf", "=".join(pair))),
            ),
            env=environment(JAVA_TOOL_OPTIONS=QUICK_JVM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            until(
                lambda: (
                    lake.poll() is not None
                    or (any(table.glob("topic=*/**/*.parquet")) and len(cluster.executors()) == 2)
                ),
                "rows of both executors",
                RUN_S,
            )
            for victim in cluster.executors()[:1]:
                victim.kill()  # SIGKILL, to this process alone
            was_running = lake.poll() is None
            out, err = lake.communicate(timeout=RUN_S)
        finally:
            if lake.poll() is None:
                lake.kill()
                lake.wait()
    assert lake.returncode == 0, err
    assert was_running, "it had ended before anything was killed"
    assert json.loads(out)["rows"] == RECORDS
    assert places(read(table)) == Counter(
        {(name, p, o): 1 for p in range(4) for o in range(RECORDS // 4)}
    )
