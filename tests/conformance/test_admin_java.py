"""Kafka's own admin tools on the quorum and on settings: skipped where Maven Central is out of reach."""

from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.conformance.test_other_clients import POM, fetched, run

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CONFIGS = "kafka.admin.ConfigCommand"


def test_kafkas_tools_show_the_quorum_and_set_groups_and_brokers(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "pom.xml").write_text(POM)
    fetched("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", cwd=tmp_path)

    def tool(name: str, *words: str) -> str:
        where = ("--bootstrap-server", broker.bootstrap)
        return run("java", name, *where, *words, env={"CLASSPATH": f"{tmp_path}/lib/*"})

    lines = tool(QUORUM, "describe", "--status").splitlines()
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    assert (status["LeaderId"], status["MaxFollowerLag"]) == ("1", "0")
    assert int(status["HighWatermark"]) > 0
    assert broker.bootstrap in status["CurrentVoters"]
    assert status["CurrentObservers"] == "[]"
    (leader,) = tool(QUORUM, "describe", "--replication").splitlines()[1:]
    assert (leader.split()[0], leader.split()[-1]) == ("1", "Leader")

    def configured(kind: str, name: str, settings: str) -> str:
        entity = ("--entity-type", kind, "--entity-name", name)
        tool(CONFIGS, *entity, "--alter", "--add-config", settings)
        return tool(CONFIGS, *entity, "--describe")

    group = configured("groups", "g", "consumer.session.timeout.ms=50000")
    assert "consumer.session.timeout.ms=50000" in group
    itself = configured("brokers", "1", "num.io.threads=16,cleanup.policy=delete")
    assert "num.io.threads=16" in itself
    assert "cleanup.policy=null sensitive=true" in itself
    topic = configured("topics", broker.create_topic(), "cleanup.policy=")
    assert "cleanup.policy= " in topic
