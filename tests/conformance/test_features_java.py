"""Kafka's own `kafka-features` and Java client, and levels that go down and up: skipped where Maven Central is out of reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.conformance.test_other_clients import POM, fetched, run
from tests.conformance.test_transactions_java import BOTH, said
from tests.support.command import penstock_command

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def broker() -> Iterator[Broker]:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 50}
    with Broker(settings, subprocess=True) as started:
        yield started


def test_kafka_features_shows_lowers_and_raises_levels(broker: Broker, tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(POM)
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=tmp_path)

    def features(*words: str) -> str:
        tool = ("java", "org.apache.kafka.tools.FeatureCommand")
        where = ("--bootstrap-server", broker.bootstrap)
        return run(*tool, *where, *words, env={"CLASSPATH": f"{tmp_path}/lib/*"})

    def levels() -> dict[str, str]:
        rows = [line.split("\t") for line in features("describe").splitlines()]
        return {row[0].split()[1]: row[3].split()[1] for row in rows}

    assert levels() == {
        "group.version": "1",
        "mirror.version": "1",
        "penstock.version": "1",
        "transaction.version": "2",
    }
    for words in (
        ("downgrade", "--feature", "transaction.version=1"),
        ("disable", "--unsafe", "--feature", "group.version"),
        ("upgrade", "--dry-run", "--feature", "transaction.version=2"),
    ):
        features(*words)
    assert levels() == {
        "group.version": "0",
        "mirror.version": "1",
        "penstock.version": "1",
        "transaction.version": "1",
    }
    with pytest.raises(AssertionError, match="1 out of 1 operation"):
        features("upgrade", "--feature", "transaction.version=3")
    features("upgrade", "--feature", "transaction.version=2", "--feature", "group.version=1")
    assert levels() == {
        "group.version": "1",
        "mirror.version": "1",
        "penstock.version": "1",
        "transaction.version": "2",
    }


def test_a_client_that_knows_version_2_of_transactions_uses_version_1_while_that_is_the_level(
    broker: Broker, tmp_path: Path
) -> None:
    to = ("--to", "transaction.version=1", "--bootstrap", broker.bootstrap)
    done = penstock_command("cluster", "features", "downgrade", *to)
    assert done.status == 0, done.err
    found = said(broker, tmp_path, "4.1.0", "old")
    assert found == {**BOTH, "version": "1", "epoch": "0", "end.committed": "10"}
