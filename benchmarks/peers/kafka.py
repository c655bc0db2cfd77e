"""Apache Kafka from its Maven artefacts: KRaft, each node broker and controller; heap and JVM options as its start script has them."""

import subprocess
from pathlib import Path
from typing import Final

from benchmarks.peers.base import System
from benchmarks.peers.process import DidNotStart, Server
from benchmarks.peers.registry import java, maven_libraries, version_of

VERSION: Final = "4.1.0"
_ARTEFACTS: Final = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
_HEAP: Final = ("-Xmx1G", "-Xms1G")
_JVM: Final = (
    *("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
_LOGGING: Final = """rootLogger.level = WARN
rootLogger.appenderRef.stdout.ref = STDOUT
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
"""
_CLUSTER_ID: Final = "cGVuc3RvY2stYmVuY2gtMQ"  # any 16 bytes
_FORMAT_TIMEOUT_S: Final = 120.0


class Kafka(System):
    name = "kafka"
    speaks_kafka = True
    settings = "KRaft, combined mode; heap 1 GB, G1 and all options of its start script; else defaults, but deleted files go at once"
    ports_each = 2

    def get(self) -> None:
        self._java = java()
        self._libraries = maven_libraries(f"kafka-{VERSION}", _ARTEFACTS)
        self.version = f"{VERSION} on {version_of([self._java, '--version'])}"

    def prepare(self, home: Path) -> None:
        (home / "log4j2.properties").write_text(_LOGGING)
        for number in range(1, self.count + 1):
            path = home / f"server-{number}.properties"
            lines = (f"{key}={value}" for key, value in self._properties(home, number).items())
            path.write_text("\n".join(lines) + "\n")
            self._format(home, path)

    def _properties(self, home: Path, number: int) -> dict[str, str]:
        controllers = self.ports[self.count :]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(controllers, 1))
        replicas = str(self.count)
        return {
            "process.roles": "broker,controller",
            "node.id": str(number),
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[number - 1]},CONTROLLER://127.0.0.1:{controllers[number - 1]}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.ports[number - 1]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(home / f"data-{number}"),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.segment.delete.delay.ms": "500",  # a run waits until the last one's files are gone
            "log.initial.task.delay.ms": "500",
        }

    def _format(self, home: Path, properties: Path) -> None:
        words = ["format", "-t", _CLUSTER_ID, "-c", str(properties)]
        done = subprocess.run(
            self._command(home, "kafka.tools.StorageTool", ("-Xmx256M",), words),
            capture_output=True,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise DidNotStart(f"formatting failed: {done.stdout[-500:]}{done.stderr[-500:]}")

    def launch(self, home: Path, number: int, cores: frozenset[int]) -> Server:
        words = [str(home / f"server-{number}.properties")]
        command = self._command(home, "kafka.Kafka", _HEAP + _JVM, words)
        return Server(command, home / f"log-{number}", cores)

    def _command(
        self, home: Path, main_class: str, options: tuple[str, ...], words: list[str]
    ) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}"
        return [self._java, *options, logging, "-cp", f"{self._libraries}/*", main_class, *words]
