"""The Java client, which speaks transactions version 2: fetched from Maven Central, skipped where that is out of reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.conformance.test_other_clients import PROGRAMS, fetched, fresh, run

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>{}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(settings, subprocess=True) as started:
        yield started


def said(broker: Broker, folder: Path, version: str, *more: str) -> dict[str, str]:
    """What the program prints with that version of the client."""
    (folder / "pom.xml").write_text(POM.format(version))
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=folder)
    topic = fresh("java")
    broker.create_topic(topic, partitions=3)
    program = str(PROGRAMS / "Transactions.java")
    text = run("java", "-cp", f"{folder}/lib/*", program, broker.bootstrap, topic, *more)
    return dict(line.split("=", 1) for line in text.splitlines())


BOTH = {
    "version": "2",
    "state": "CompleteAbort",
    "committed": "6",
    "all": "12",
    "zombie.send": "InvalidProducerEpochException",
    "zombie.commit": "refused",
    "zombie.committed": "9",
    "offset.false": "none",
    "offset.true": "1",
}


def test_a_client_of_version_1(broker: Broker, tmp_path: Path) -> None:
    expected = {**BOTH, "epoch": "0", "end.committed": "10"}
    assert said(broker, tmp_path, "3.9.1", "old") == expected


def test_a_client_of_version_2(broker: Broker, tmp_path: Path) -> None:
    """The same transactional ids go on; one that takes too long aborts, and goes on."""
    found = said(broker, tmp_path, "4.1.0")
    assert int(found.pop("epoch")) >= 4, "each end takes one"
    assert found == {
        **BOTH,
        "late.commit": "TransactionAbortableException",
        "end.committed": "16",
    }
