"""`traffic` measures what is in a topic: the numbers of a topic whose contents are known."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import confluent_kafka
import pytest

from penstock.spark.errors import JobError
from penstock.spark.jobs.traffic.job import plan, run
from penstock.spark.jobs.traffic.options import TrafficOptions
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


@pytest.mark.long
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


@pytest.mark.long
def test_records_of_a_time_are_all_counted_in_whatever_order_they_lie(
    spark: Any, broker: Server, topic: Callable[..., str]
) -> None:
    """As cut by offset: the hour would begin at the first record of it, and end at the first that is younger."""
    name, minute_ms = topic("unordered", retention_ms=-1), 60_000
    for minute in (-5, 0, 10, 70, 20, -1, 30, 60, 80, 40):
        producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        at_ms = START_MS + minute * minute_ms
        producer.produce(name, b"v", b"old" if minute < 0 else b"new", timestamp=at_ms)
        assert producer.flush(PATIENCE_S) == 0
    hour: dict[str, Any] = {"since": START_MS, "until": START_MS + 60 * minute_ms}
    options = TrafficOptions(bootstrap=broker.bootstrap, topics=(name,), step=minute_ms, **hour)
    assert "up to 9 offsets" in plan(options).lines[0]
    (found,) = run(spark, options, Progress()).facts["topics"]
    assert found["records"] == 5
    assert found["records_per_batch"] == 1
    assert found["hot_keys"] == [{"key": "new", "records": 5, "share": 1.0}]
    assert sum(row["records"] for row in found["partitions"]) == 5
    since = replace(options, until=None)
    assert run(spark, since, Progress()).facts["topics"][0]["records"] == 8
    until = replace(options, since=None)
    assert run(spark, until, Progress()).facts["topics"][0]["records"] == 7
    nothing = replace(options, since=START_MS + minute_ms, until=START_MS + 2 * minute_ms)
    with pytest.raises(JobError, match="no messages of that time to measure"):
        run(spark, nothing, Progress())


@pytest.mark.long
def test_records_with_impossible_times_are_counted_apart(
    spark: Any, broker: Server, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic("odd", message_timestamp_after_max_ms=2**63 - 1)
    milliseconds, microseconds = START_MS, START_MS * 1_000
    for timestamp in (milliseconds, milliseconds + 999, microseconds, START_MS * 1_000_000):
        producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(name, b"v", timestamp=timestamp)
        assert producer.flush(PATIENCE_S) == 0
    options = TrafficOptions(
        bootstrap=broker.bootstrap, topics=(name,), picture=str(tmp_path / "odd.svg")
    )
    summary = run(spark, options, Progress())
    (found,) = summary.facts["topics"]
    assert (summary.facts["step_ms"], found["records"], found["without_date"]) == (1000, 4, 2)
    assert found["rate"]["records_per_s"] == 2


@pytest.mark.long
def test_what_cannot_be_measured_or_written_is_told_by_the_plan(
    broker: Server, topic: Callable[..., str], measured: str, tmp_path: Path
) -> None:
    options = TrafficOptions(bootstrap=broker.bootstrap, topics=(measured,))
    with pytest.raises(JobError, match="no messages to measure there"):
        plan(replace(options, topics=(topic("empty"),)))
    with pytest.raises(JobError, match="no messages of that time to measure there"):
        plan(replace(options, since=START_MS + 10**9))
    with pytest.raises(JobError, match="is a directory; give the name of a file"):
        plan(replace(options, output=str(tmp_path)))


def test_the_plan_needs_no_spark(broker: Server, measured: str) -> None:
    options = TrafficOptions(bootstrap=broker.bootstrap, topics=(measured,))
    shown = plan(options)
    assert shown.facts["offsets"] == COUNT
    assert shown.facts["partitions"] == 4
    assert f"read {measured} from" in shown.lines[0]


@pytest.mark.long
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


@pytest.mark.long
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
