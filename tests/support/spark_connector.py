"""Spark's own connector for Kafka, fetched by Maven: what ours is compared with."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

_FETCH_S: Final = 300

# Ever older: a registry may lack the newest connector, or the newest of its parts.
_VERSIONS: Final = (("4.3.0", "4.3.0"), ("4.2.0", "4.2.0"), ("4.2.0", "4.1.0-preview1"))
_DEPENDENCY: Final = """<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"""
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>{}</dependencies></project>"""


class NotToBeHad(Exception):
    """Says why."""


def fetch_jars(home: Path) -> list[Path]:
    """Put into a directory under `home`, which exists."""
    if shutil.which("mvn") is None:
        raise NotToBeHad("mvn is not installed")
    reason = ""
    for connector, tokens in _VERSIONS:
        (home / "pom.xml").write_text(_pom(connector, tokens))
        words = ("mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib")
        try:
            done = subprocess.run(
                words, cwd=home, capture_output=True, text=True, timeout=_FETCH_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotToBeHad(f"mvn did not fetch Spark's own connector in {_FETCH_S} s") from None
        if done.returncode == 0:
            return sorted((home / "lib").glob("*.jar"))
        reason = done.stdout[:300]
    raise NotToBeHad(f"Spark's own connector cannot be fetched: {reason}")


def _pom(connector: str, tokens: str) -> str:
    parts = (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", connector),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.1"),
    )
    return _POM.format("".join(_DEPENDENCY.format(group=g, name=n, version=v) for g, n, v in parts))
