"""A job is declared once; what goes wrong in its run is told in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.spark.errors import JobError
from penstock.spark.job import (
    Job,
    JobOptions,
    Kind,
    Plan,
    StreamOptions,
    Summary,
    explained,
    option,
    options_of,
    run_job,
)
from penstock.spark.jobs import JOBS, load
from penstock.spark.progress import Progress
from penstock.spark.session import SessionSettings


@dataclass(frozen=True, kw_only=True)
class Options(StreamOptions):
    topics: tuple[str, ...] = option("which", many=True, positional=True)
    limit_bytes: int = option("at most", kind=Kind.SIZE, default=1024)
    deep: bool = option("look further", kind=Kind.FLAG)


class Unavailable(Exception):
    """As pyspark raises it."""


Unavailable.__module__ = "pyspark.errors.exceptions.captured"


def test_options_are_read_from_the_fields() -> None:
    found = {each.name: each for each in options_of(Options)}
    assert list(found) == ["bootstrap", "checkpoint", "topics", "limit_bytes", "deep"]
    assert found["limit_bytes"].flag == "--limit-bytes"
    assert found["limit_bytes"].default == 1024
    assert found["checkpoint"].is_required
    assert found["topics"].is_required
    assert found["topics"].is_positional
    assert not found["deep"].is_required
    assert found["deep"].default is False


@pytest.mark.parametrize("name", JOBS)
def test_every_job_of_the_table_is_there_and_explains_its_options(name: str) -> None:
    job = load(name)
    assert job.name == name
    assert job.examples
    for each in options_of(job.options):
        assert each.help


def make_job(done: list[str], **changes: Any) -> Job[Any]:
    def plan(_: Options) -> Plan:
        done.append("plan")
        return Plan({}, ())

    def run(session: Any, *_: Any) -> Summary:
        done.append(f"run {session.name}")
        return Summary({"rows": 1}, ("1 row",))

    parts: dict[str, Any] = {"plan": plan, "run": run, **changes}
    return Job(name="test", options=Options, examples=(), **parts)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[SessionSettings]:
    """Sessions that were asked for; none has a JVM."""
    asked: list[SessionSettings] = []

    @contextmanager
    def open_session(settings: SessionSettings) -> Iterator[Any]:
        asked.append(settings)
        yield SimpleNamespace(name=settings.name, started_in_s=1.25)

    monkeypatch.setattr("penstock.spark.job.open_session", open_session)
    monkeypatch.setattr("penstock.spark.job.check_pyspark", lambda: None)
    return asked


def test_a_run_is_planned_first_then_given_a_session(opened: list[SessionSettings]) -> None:
    done: list[str] = []
    job = make_job(
        done, confs=lambda options: {"spark.task.maxFailures": "1", "a": options.checkpoint}
    )
    options = Options(checkpoint="/c", topics=("t",))
    summary = run_job(
        job, options, master="local[1]", confs={"b": "2"}, progress=Progress(StringIO())
    )
    assert done == ["plan", "run penstock test"]
    assert summary.facts == {"rows": 1, "spark_started_in_s": 1.2}
    assert opened[0].master == "local[1]"
    assert opened[0].confs == {"spark.task.maxFailures": "1", "a": "/c", "b": "2"}


def test_a_plan_that_fails_spares_the_start_of_spark(opened: list[SessionSettings]) -> None:
    def plan(_: Options) -> Plan:
        raise ClientError("topic 't' does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    with pytest.raises(ClientError):
        run_job(make_job([], plan=plan), Options(checkpoint="/c", topics=("t",)))
    assert opened == []


def test_what_spark_raises_becomes_one_line() -> None:
    with pytest.raises(JobError, match=r"^it is gone$"), explained():
        raise Unavailable("[SOME_CONDITION] it is gone SQLSTATE: 38000")


def test_a_bug_of_ours_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), explained():
        raise ZeroDivisionError


def test_every_job_has_a_broker_to_ask() -> None:
    assert JobOptions().bootstrap == "127.0.0.1:9092"
