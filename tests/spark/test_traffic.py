"""`traffic` measures what is in a topic: the numbers of a topic whose contents are known."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import confluent_kafka
import pytest

from penstock.spark.jobs.traffic import TrafficOptions, plan, run
from penstock.spark.progress import Progress
from tests.support.command import penstock_command, start_penstock
from tests.support.server import PATIENCE_S, Server

pytestmark = pytest.mark.spark

START_MS = 1_700_000_000_000
COUNT = 3000  # 100 a second


@pytest.fixture(scope="module")
def measured(broker: Server, topic: Callable[..., str]) -> str:
    """Partition 0 has two thirds of all, each third record the same key, half a minute of time."""
    name = topic("traffic", partitions=4, message_timestamp_type="CreateTime")
    producer: Any = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "compression.type": "lz4"}
    )
    for number in range(COUNT):
        producer.produce(
            name,
            None if number == 7 else b"v" * (1000 if number == 5 else 95),
            b"hot!!" if number % 3 == 0 else b"k%04d" % number,
            partition=0 if number % 3 else 1 + number // 3 % 2,
            timestamp=START_MS + number * 10,
        )
    assert producer.flush(PATIENCE_S) == 0
    return name


def test_the_numbers_of_a_known_topic(
    spark: Any, broker: Server, measured: str, tmp_path: Path
) -> None:
    output, picture = tmp_path / "traffic.json", tmp_path / "traffic.svg"
    options = TrafficOptions(
        bootstrap=broker.bootstrap,
        topics=(measured,),
        hot_keys=2,
        step=1000,
        output=str(output),
        picture=str(picture),
    )
    summary = run(spark, options, Progress())
    (found,) = summary.facts["topics"]
    assert found["records"] == COUNT
    assert found["bytes"] == COUNT * 100 + 905 - 95
    assert found["tombstones"] == 1
    assert found["without_key"] == 0
    assert list(found["codecs"]) == ["lz4"]
    assert 0 < found["stored_bytes"] < found["bytes"]
    assert found["record_bytes"]["max"] == 1005
    assert 100 <= found["record_bytes"]["p50"] <= 119
    assert found["rate"]["records_per_s"] == 100
    assert found["rate"]["peak_records_per_s"] == 100
    assert len(found["rate"]["intervals"]) == 30
    assert [row["records"] for row in found["partitions"]] == [2000, 500, 500, 0]
    assert [row["hot"] for row in found["partitions"]] == [True, False, False, False]
    assert found["hot_keys"] == [
        {"key": "hot!!", "records": 1000, "share": 0.3333},
        {"key": "k0001", "records": 1, "share": 0.0003},
    ]
    assert json.loads(output.read_text()) == summary.facts
    assert ElementTree.parse(picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert any(measured in line for line in summary.lines)


def test_a_stretch_of_time_is_measured_alone(spark: Any, broker: Server, measured: str) -> None:
    options = TrafficOptions(
        bootstrap=broker.bootstrap,
        topics=(measured,),
        since=START_MS + 10_000,
        until=START_MS + 20_000,
        hot_keys=0,
    )
    (found,) = run(spark, options, Progress()).facts["topics"]
    assert found["records"] == 1000
    assert found["hot_keys"] == []


def test_the_plan_needs_no_spark(broker: Server, measured: str) -> None:
    options = TrafficOptions(bootstrap=broker.bootstrap, topics=(measured,))
    shown = plan(options)
    assert shown.facts["offsets"] == COUNT
    assert shown.facts["partitions"] == 4
    assert f"read {measured} from" in shown.lines[0]


def test_the_command_runs_the_job_in_a_process_of_its_own(broker: Server, measured: str) -> None:
    with start_penstock(
        *("pipeline", "traffic", measured, "--bootstrap", broker.bootstrap),
        *("--json", "--hot-keys", 0, "--master", "local[2]", "--conf", "spark.driver.memory=512m"),
    ) as process:
        out, err = process.communicate(timeout=5 * PATIENCE_S)
    assert process.returncode == 0, err
    assert json.loads(out)["topics"][0]["records"] == COUNT
    shown = ("starting Spark", "reading ", "counting ")  # on a slow machine
    assert all(line.startswith(shown) for line in err.splitlines()), err


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_topic_that_does_not_exist_is_told_before_spark_starts(
    broker: Server, more: list[str]
) -> None:
    done = penstock_command("pipeline", "traffic", "nope", "--bootstrap", broker.bootstrap, *more)
    assert done.status == 1
    assert done.out == ""
    assert done.err == (
        "penstock: topic 'nope' does not exist; create it with: penstock topic create nope\n"
    )
