"""Paths in a TOML file mean what they mean as flags: they begin where the command is run, not where the file lies."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.topics import Create, numbered, produce
from tests.support.command import penstock_command
from tests.support.server import Server

pytestmark = pytest.mark.spark

CONFIG = """
[lake]
table = "lake/orders"
checkpoint = "state"
decode = "json"
schema = "order.ddl"
unknown-fields = "reject"

[audit]
table = "lake/orders"
dead-letters = "bad"
without_values = true

[dlq]
table = "bad"
sql = "repair.sql"

[traffic]
picture = "out.svg"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in one directory, and another one in which commands run."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "run" / "bad").mkdir(parents=True)
    (tmp_path / "run" / "order.ddl").write_text("id BIGINT")
    (tmp_path / "run" / "repair.sql").write_text("SELECT * FROM letters")
    path = tmp_path / "etc" / "pipeline.toml"
    path.write_text(CONFIG)
    monkeypatch.chdir(tmp_path / "run")
    return path


@pytest.fixture
def stored(broker: Server, topic: Create) -> str:
    name = topic("paths", retention_ms=-1)
    produce(broker, name, numbered(3))
    return name


def _plan(config: Path, broker: Server, *words: str) -> Any:
    common = ("--config", str(config), "--bootstrap", broker.bootstrap, "--dry-run", "--json")
    done = penstock_command("pipeline", *words, *common)
    assert (done.status, done.err) == (0, "")
    return done.json()


def test_paths_begin_where_the_command_is_run(config: Path, broker: Server, stored: str) -> None:
    home = config.parents[1] / "run"
    lake = _plan(config, broker, "lake", stored)
    assert lake["table"] == f"{home}/lake/orders"
    assert lake["dead_letters_table"] == f"{home}/lake/orders_dead_letters"
    assert lake["checkpoint"] == f"{home}/state"
    assert _plan(config, broker, "dlq")["source"] == f"{home}/bad"
    state = home / "lake" / "orders" / "_penstock" / "job"
    state.mkdir(parents=True)
    facts = {"topics": [stored], "dead_letters": f"{home}/bad", "decode": "raw"}
    (state / "job.json").write_text(json.dumps(facts))
    assert _plan(config, broker, "audit", stored)["with"] == f"{home}/lake/orders"
    assert _plan(config, broker, "traffic", stored)["writes"] == [f"{home}/out.svg"]


def test_a_flag_wins_over_the_file(config: Path, broker: Server, stored: str) -> None:
    elsewhere = config.parent / "elsewhere"
    words = ("lake", stored, "--table", str(elsewhere), "--unknown-fields", "count")
    assert _plan(config, broker, *words)["table"] == str(elsewhere)
