"""What a session is given, before any JVM starts."""

import builtins
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.errors import JobError
from penstock.spark.session import (
    SessionSettings,
    check_pyspark,
    confs,
    is_master,
    keep_words,
    local_threads,
)


@pytest.mark.parametrize(
    ("master", "threads"),
    [("local", 1), ("local[3]", 3), ("local[*]", 8), ("local[2,4]", 2), ("spark://h:7077", None)],
)
def test_a_local_master_says_how_many_tasks_run_at_once(master: str, threads: int | None) -> None:
    assert local_threads(master, cores=8) == threads


@pytest.mark.parametrize(
    "text", ["local", "local[*]", "spark://a:1,b:2", "k8s://https://h", "yarn"]
)
def test_masters_are_recognised(text: str) -> None:
    assert is_master(text)


@pytest.mark.parametrize("text", ["", "locl[*]", "local[x]", "127.0.0.1:7077", "spark://"])
def test_what_is_no_master_is_recognised_too(text: str) -> None:
    assert not is_master(text)


def test_a_local_session_stays_on_this_machine_and_in_its_own_directory(tmp_path: Path) -> None:
    found = confs(SessionSettings(name="n", master="local[2]"), tmp_path, cores=8)
    assert found["spark.app.name"] == "n"
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.driver.bindAddress"] == "127.0.0.1"
    assert found["spark.sql.shuffle.partitions"] == "2"
    assert found["spark.local.dir"].startswith(str(tmp_path))


def test_a_cluster_decides_about_its_own_network_and_parallelism(tmp_path: Path) -> None:
    found = confs(SessionSettings(master="spark://h:7077"), tmp_path, cores=8)
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions", "spark.local.dir"} & set(found)


def test_the_caller_has_the_last_word(tmp_path: Path) -> None:
    wanted = {"spark.ui.enabled": "true", "spark.x": "y"}
    found = confs(SessionSettings(confs=wanted), tmp_path, cores=8)
    assert wanted.items() <= found.items()


def test_the_log_settings_are_part_of_the_package(tmp_path: Path) -> None:
    options = confs(SessionSettings(), tmp_path, cores=1)["spark.driver.extraJavaOptions"]
    uri = options.split("log4j2.configurationFile=")[1].split()[0]
    assert Path(uri.removeprefix("file://")).is_file()


def test_a_missing_pyspark_is_answered_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "pyspark":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(JobError, match=r"not installed; .* pip install 'penstock\[spark\]'$"):
        check_pyspark()


@pytest.mark.parametrize("version", ["3.5.1", "4.2.0"])
def test_a_pyspark_that_is_too_old_is_named(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__=version))
    with pytest.raises(JobError, match=f"pyspark is {version}, and 4.3 or newer is needed"):
        check_pyspark()


@pytest.mark.parametrize("version", ["4.3.0", "4.10.0.dev1", "5.0.0"])
def test_a_newer_pyspark_will_do(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(__version__=version))
    check_pyspark()


class Captured(Exception):
    """As pyspark raises it: its text is the JVM's, as long as there is one."""

    is_alive = True
    java_exception: Any = "somewhere in the JVM"

    def __str__(self) -> str:
        assert self.is_alive
        return "what the JVM says"


Captured.__module__ = "pyspark.errors.exceptions.captured"


def test_what_spark_raised_can_be_read_when_the_jvm_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = Captured(), Captured()
    first.__cause__, first.__context__ = JobError("ours"), second
    second.__context__ = first  # chains may be rings
    keep_words(first)
    monkeypatch.setattr(Captured, "is_alive", False)
    assert (str(first), str(second)) == ("what the JVM says",) * 2
    assert isinstance(first, Captured)
    assert type(first).__module__ == Captured.__module__
    assert first.java_exception is None
    late = Captured()
    keep_words(late)
    assert str(late) == "Spark ended"
