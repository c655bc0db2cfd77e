"""`penstock pipeline`: flags over file over defaults, and errors that say what to do. No Spark starts here."""

import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import pipeline
from penstock.cli.arguments import Parser, UsageError
from penstock.cli.main import main
from penstock.spark.errors import JobError
from penstock.spark.job import Job, Kind, Plan, StreamOptions, Summary, option, options_of
from penstock.spark.jobs import JOBS, load


@dataclass(frozen=True, kw_only=True)
class Options(StreamOptions):
    topics: tuple[str, ...] = option("which", metavar="TOPIC", many=True, positional=True)
    limit: int = option("at most", kind=Kind.SIZE, default=1024)
    every: int = option("how often", kind=Kind.DURATION, default=1000)
    since: int | None = option("from when", kind=Kind.TIME, default=None)
    count: int = option("how many", kind=Kind.COUNT, default=3)
    header: tuple[tuple[str, str], ...] = option("to add", kind=Kind.PAIR, many=True, default=())
    form: str = option("which form", choices=("raw", "json"), default="raw")
    deep: bool = option("look further", kind=Kind.FLAG)

    def __post_init__(self) -> None:
        if self.count == 13:
            raise ValueError("--count must not be 13")


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job[Any]:
    """Stands in for the jobs of the table."""
    made: Job[Any] = Job(
        name="test",
        options=Options,
        plan=lambda options: Plan({"topics": list(options.topics)}, (f"read {options.topics[0]}",)),
        run=lambda *_: Summary({}, ()),
        examples=("penstock pipeline test orders",),
    )
    monkeypatch.setattr(pipeline, "JOBS", {"test": "try things", "other": "try more"})
    monkeypatch.setattr(pipeline, "load", lambda _: made)
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    return made


def options(job: Job[Any], *words: object, given: dict[str, Any] | None = None) -> Options:
    parser = Parser(prog="penstock pipeline")
    pipeline.configure(parser)
    arguments = parser.parse_args(["test", *map(str, words)])
    made = pipeline.make_options(job, given or {}, arguments)
    assert isinstance(made, Options)
    return made


def read(job: Job[Any], tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "job.toml"
    path.write_text(text)
    return pipeline.read_file(path, job)


def test_flags_become_options(job: Job[Any]) -> None:
    found = options(
        *(job, "a", "b", "--checkpoint", "/c", "--limit", "64KiB", "--every", "5m", "--deep"),
        *("--since", "@17", "--header", "x=1", "--header", "y=a=b", "--form", "json"),
    )
    assert found == Options(
        topics=("a", "b"),
        checkpoint="/c",
        limit=65536,
        every=300_000,
        since=17,
        header=(("x", "1"), ("y", "a=b")),
        form="json",
        deep=True,
    )


def test_what_is_not_given_is_the_default(job: Job[Any]) -> None:
    assert options(job, "a", "--checkpoint", "/c") == Options(topics=("a",), checkpoint="/c")


def test_flags_win_over_the_file_and_the_file_over_the_environment(
    job: Job[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "env:1")
    assert options(job, "a", "--checkpoint", "/c").bootstrap == "env:1"
    given = read(
        job, tmp_path, 'bootstrap = "file:1"\ntopics = ["f"]\ncheckpoint = "/f"\ndeep = true'
    )
    found = options(job, given=given)
    assert (found.bootstrap, found.topics, found.checkpoint, found.deep) == (
        "file:1",
        ("f",),
        "/f",
        True,
    )
    found = options(job, "a", "--bootstrap", "flag:1", "--no-deep", given=given)
    assert (found.bootstrap, found.topics, found.checkpoint, found.deep) == (
        "flag:1",
        ("a",),
        "/f",
        False,
    )


def test_a_file_writes_values_as_people_do(job: Job[Any], tmp_path: Path) -> None:
    found = read(
        *(job, tmp_path),
        """
        topics = "one"
        limit = "1MiB"
        every = 250
        since = 2026-11-15T08:00:00Z
        count = 7
        [header]
        a = "1"
        """,
    )
    assert found == {
        "topics": ("one",),
        "limit": 1 << 20,
        "every": 250,
        "since": 1_794_729_600_000,
        "count": 7,
        "header": (("a", "1"),),
    }


def test_a_table_of_the_jobs_name_wins_and_those_of_others_are_theirs(
    job: Job[Any], tmp_path: Path
) -> None:
    text = "count = 1\nlimit = 5\n[test]\ncount = 2\n[other]\nwhatever = true\n"
    assert read(job, tmp_path, text) == {"count": 2, "limit": 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cuont = 1", "test has no option 'cuont'; did you mean count?"),
        ("zzz = 1", "test has no option 'zzz'; see: penstock pipeline test --help"),
        ("count = 'many'", "count: expected a whole number, not 'many'"),
        ("deep = 1", "deep: expected true or false, not 1"),
        ("limit = 1.5", "limit: expected a text or a whole number, not 1.5"),
        ("form = 'xml'", "form: expected one of raw, json, not 'xml'"),
        ("since = 'soon'", "since: expected a time such as"),
        ("= 1", "Invalid"),
        ("test = 1", "test is a table: [test]"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong_in_it(
    job: Job[Any], tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(job, tmp_path, text)
    assert "job.toml: " in str(caught.value)
    assert said in str(caught.value)


def test_a_file_that_is_not_utf_8_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes('table = "caf\xe9"'.encode("latin-1"))
    assert main(["pipeline", "traffic", "--config", str(path), "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"penstock: {path}: TOML is UTF-8, and byte 12 (0xe9) is not; save the file as UTF-8\n"
    )


def test_what_is_missing_is_named(job: Job[Any]) -> None:
    with pytest.raises(UsageError, match="test needs --checkpoint, TOPIC; see: penstock pipeline"):
        options(job)


def test_what_a_job_refuses_is_wrong_usage(job: Job[Any]) -> None:
    with pytest.raises(UsageError, match="--count must not be 13"):
        options(job, "a", "--checkpoint", "/c", "--count", "13")


def settings(*words: str, **given: Any) -> tuple[str, dict[str, str]]:
    parser = Parser(prog="penstock pipeline")
    pipeline.configure(parser)
    return pipeline.spark_settings(given, parser.parse_args(["test", *words]))


@pytest.mark.usefixtures("job")
def test_sparks_settings_come_from_file_and_flags() -> None:
    table = {"sql": {"shuffle": {"partitions": 8}}, "spark.ui.enabled": True, "a": "b"}
    assert settings(spark=table) == (
        "local[*]",
        {"spark.sql.shuffle.partitions": "8", "spark.ui.enabled": "true", "spark.a": "b"},
    )
    found = settings("--master", "local[3]", "--conf", "spark.a=c", master="yarn", spark=table)
    assert found[0] == "local[3]"
    assert found[1]["spark.a"] == "c"
    assert settings(master="yarn")[0] == "yarn"


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("given", [{"master": "there"}, {"master": 3}, {"spark": 3}])
def test_wrong_settings_are_wrong_usage(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        settings(**given)


@pytest.mark.usefixtures("job")
def test_a_dry_run_shows_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["pipeline", "test", "orders", "--checkpoint", "/c", "--dry-run"]
    assert main(words) == 0
    assert capsys.readouterr().out == "read orders\n"
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == '{"topics": ["orders"]}\n'


def run_with(monkeypatch: pytest.MonkeyPatch, outcome: Summary | Exception) -> int:
    def run_job(*_: Any, **__: Any) -> Summary:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(pipeline, "run_job", run_job)
    return main(["pipeline", "test", "orders", "--checkpoint", "/c"])


@pytest.mark.usefixtures("job")
def test_exit_codes_tell_done_from_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, Summary({}, ("3 rows",))) == 0
    assert run_with(monkeypatch, Summary({}, ("1 lost",), passed=False)) == 1
    assert capsys.readouterr().out == "3 rows\n1 lost\n"
    assert run_with(monkeypatch, JobError("no Java; install one")) == 1
    assert capsys.readouterr().err == "penstock: no Java; install one\n"


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_terminated_ends_as_with_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def follow(*_: Any, **__: Any) -> Summary:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(number)
            pytest.fail("it went on")
        return Summary({}, ("3 rows",))

    def copy(*_: Any, **__: Any) -> Summary:
        signal.raise_signal(number)
        pytest.fail("it went on")

    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody took the signal"))
    try:
        words = ["pipeline", "test", "orders", "--checkpoint", "/c"]
        monkeypatch.setattr(pipeline, "run_job", follow)
        assert main(words) == 0
        assert capsys.readouterr().out == "3 rows\n"
        monkeypatch.setattr(pipeline, "run_job", copy)
        assert main(words) == 1
        assert capsys.readouterr().err == "penstock: interrupted\n"
        assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler, "as it was"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_pyspark_the_remedy_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert main(["pipeline", "traffic", "orders"]) == 1
    assert capsys.readouterr().err == (
        "penstock: pyspark is not installed; install it with: pip install 'penstock[spark]'\n"
    )


def test_a_config_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "traffic", "--config", "no/such.toml"]) == 1
    assert capsys.readouterr().err == "penstock: no/such.toml: no such file or directory\n"


@pytest.mark.parametrize("job_name", JOBS)
def test_every_job_explains_itself(job_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", job_name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"examples:\n  penstock pipeline {job_name}" in shown
    for each in options_of(load(job_name).options):
        assert each.is_positional or each.flag in shown
