"""Clients of other languages and ages, fetched from their registries; skipped where those are out of reach."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from penstock.testing import Broker

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

COUNT = 100
EXPECTED = sorted(f"value-{n}/{n}" for n in range(COUNT))
PROGRAMS = Path(__file__).parent / "clients"
FETCH_S = 400  # registries can be slow
RUN_S = 200

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>4.1.0</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>4.1.0</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>"""


def fetched(*command: str, cwd: Path) -> None:
    """Fetch a client, or skip: a registry that is out of reach says nothing about the broker."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{command[0]} did not fetch the client in {FETCH_S} s")
    if done.returncode:
        pytest.skip(f"{command[0]} cannot fetch the client: {done.stderr.decode()[-200:]}")


def run(*command: str, stdin: str = "", env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def test_kafkajs_produces_consumes_and_administers(broker: Broker, tmp_path: Path) -> None:
    fetched("npm", "install", "--no-audit", "--no-fund", "kafkajs@2.2.4", cwd=tmp_path)
    program = str(shutil.copy(PROGRAMS / "kafkajs.js", tmp_path))

    seen = json.loads(run("node", program, broker.bootstrap, fresh("js"), str(COUNT)))

    assert sorted(seen["values"]) == EXPECTED
    assert seen["end"] == COUNT


def test_kafka_python_of_2020_still_works(broker: Broker, tmp_path: Path) -> None:
    if sys.version_info >= (3, 12):
        pytest.skip("kafka-python 2.0.2 does not run on Python 3.12 and later")
    fetched(sys.executable, "-m", "venv", "old", cwd=tmp_path)
    fetched(
        str(tmp_path / "old/bin/pip"), "install", "-q", "kafka-python==2.0.2", "six", cwd=tmp_path
    )
    program = str(PROGRAMS / "old_kafka_python.py")

    seen = json.loads(
        run(str(tmp_path / "old/bin/python"), program, broker.bootstrap, fresh("old"), str(COUNT))
    )

    assert seen["version"] == "2.0.2"
    assert sorted(seen["values"]) == EXPECTED


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which `java` finds Kafka's own tools."""
    folder = tmp_path_factory.mktemp("java")
    (folder / "pom.xml").write_text(POM)
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    return {"CLASSPATH": f"{folder}/lib/*"}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_own_tools_work(broker: Broker, java: dict[str, str], protocol: str) -> None:
    topic, tools = fresh("java"), "org.apache.kafka.tools"
    where = ("--bootstrap-server", broker.bootstrap)
    lines = "".join(f"line {n}\n" for n in range(COUNT))

    run(
        "java",
        f"{tools}.TopicCommand",
        *where,
        "--create",
        "--topic",
        topic,
        "--partitions",
        "3",
        env=java,
    )
    run(
        "java",
        f"{tools}.ConsoleProducer",
        *where,
        "--topic",
        topic,
        "--compression-codec",
        "zstd",
        stdin=lines,
        env=java,
    )
    read = run(
        "java", f"{tools}.consumer.ConsoleConsumer", *where, "--topic", topic, "--from-beginning",
        "--group", topic, "--consumer-property", f"group.protocol={protocol}",
        "--max-messages", str(COUNT), env=java,
    )  # fmt: skip
    group = run(
        "java",
        f"{tools}.consumer.group.ConsumerGroupCommand",
        *where,
        "--describe",
        "--group",
        topic,
        env=java,
    )
    configs = run(
        "java", "kafka.admin.ConfigCommand", *where, "--describe", "--all",
        "--entity-type", "topics", "--entity-name", topic, env=java,
    )  # fmt: skip

    assert sorted(read.splitlines()) == sorted(lines.splitlines())
    assert topic in group
    assert "cleanup.policy=delete" in configs


def test_kafkas_own_dump_tool_reads_our_segments(broker: Broker, java: dict[str, str]) -> None:
    topic = fresh("dump")
    lines = "".join(f"line {n}\n" for n in range(COUNT))
    run(
        "java", "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", broker.bootstrap,
        "--topic", topic, stdin=lines, env=java,
    )  # fmt: skip

    (segment,) = Path(broker.data_dir).glob(f"{topic}/partition-0/*.log")
    dumped = run(
        "java", "kafka.tools.DumpLogSegments", "--files", str(segment), "--print-data-log", env=java
    )

    assert [f"payload: line {n}\n" in dumped for n in range(COUNT)] == [True] * COUNT
