"""Progress is one line on a terminal, few lines in a log, and never a flood."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.spark.job import Job, JobOptions, Plan, Summary, run_job
from penstock.spark.progress import Meter, Progress, lag
from tests.support.server import until


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def report(batch: int, rows: int, **more: Any) -> dict[str, Any]:
    return {"batchId": batch, "numInputRows": rows, "processedRowsPerSecond": rows * 2.0, **more}


def test_on_a_terminal_the_line_is_rewritten_and_in_the_end_removed() -> None:
    stream, clock = Terminal(), Clock()
    with Progress(stream, clock=clock) as progress:
        progress.show("1 row")
        progress.show("too soon")
        clock.now_s += 1
        progress.show("2 rows")
    assert stream.getvalue() == "\r\x1b[K1 row\r\x1b[K2 rows\r\x1b[K"


def test_elsewhere_there_is_a_line_every_ten_seconds() -> None:
    stream, clock = StringIO(), Clock()
    with Progress(stream, clock=clock) as progress:
        for second in range(25):
            progress.show(f"after {second} s")
            clock.now_s += 1
    assert stream.getvalue() == "after 10 s\nafter 20 s\n"


def test_what_is_said_stays() -> None:
    stream = Terminal()
    with Progress(stream, clock=Clock()) as progress:
        progress.show("1 row")
        progress.say("done")
    assert stream.getvalue() == "\r\x1b[K1 row\r\x1b[Kdone\n"


def test_rows_of_a_batch_count_once_however_often_it_is_reported() -> None:
    meter = Meter()
    meter.see([report(0, 10), report(1, 5)])
    meter.see([report(0, 10), report(1, 5), report(2, 0), report(2, 7)])
    assert meter.rows == 22
    assert meter.line() == "22 rows, 14 rows/s"


def test_lag_is_what_the_brokers_have_and_the_query_has_not() -> None:
    source = {"endOffset": '{"t":{"0":5,"1":9}}', "latestOffset": '{"t":{"0":8,"1":9,"2":4}}'}
    assert lag({"sources": [source]}) == 7
    assert lag({"sources": [source, source]}) == 14
    meter = Meter()
    meter.see([report(0, 1000, sources=[source])])
    assert meter.line() == "1,000 rows, 2,000 rows/s, lag 7"


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"endOffset": "17", "latestOffset": "19"},
        {"latestOffset": "what?"},
        {"latestOffset": None},
    ],
)
def test_a_source_that_does_not_tell_has_no_lag(source: dict[str, Any]) -> None:
    assert lag({"sources": [source]}) is None


class Query:
    """Ends after some looks, by itself or by Ctrl-C."""

    def __init__(self, looks: int, *, interrupted: bool = False) -> None:
        self.stopped = False
        self._interrupted = interrupted
        self.recentProgress: list[dict[str, Any]] = []
        self._looks = looks

    def awaitTermination(self, timeout_s: float) -> bool:
        assert timeout_s > 0
        self.recentProgress.append(report(len(self.recentProgress), 10))
        self._looks -= 1
        if self._interrupted and not self._looks:
            raise KeyboardInterrupt
        return self._looks == 0

    def stop(self) -> None:
        self.stopped = True


def test_a_query_is_followed_to_its_end() -> None:
    stream = Terminal()
    meter = Progress(stream, clock=Clock()).follow(Query(3))
    assert meter.rows == 30
    assert "10 rows, 20 rows/s" in stream.getvalue()


def test_ctrl_c_ends_a_query_in_order() -> None:
    query = Query(2, interrupted=True)
    meter = Progress(StringIO(), clock=Clock()).follow(query)
    assert query.stopped
    assert meter.was_interrupted
    assert meter.rows == 20


def test_a_job_that_is_to_end_does_so_where_it_shows_how_far_it_is() -> None:
    progress = Progress(StringIO(), clock=Clock())
    query = Query(9)
    assert progress.end_soon()
    assert not progress.end_soon(), "asked again: it has not ended"
    meter = progress.follow(query)
    assert query.stopped
    assert meter.was_interrupted
    assert progress.end_soon(), "it was told, and what it does now ends by itself"
    with pytest.raises(KeyboardInterrupt):
        progress.say("it goes on when it can")
    progress.show("the summary")


class Lost:
    """A query whose JVM ended."""

    def awaitTermination(self, seconds: float) -> bool:
        raise RuntimeError(f"Spark is gone, and not only for {seconds} s")

    def stop(self) -> None:
        raise RuntimeError("Spark is gone")


def test_spark_may_end_first_when_all_are_to_end() -> None:
    """A service manager tells every process of the job at the same time."""
    progress = Progress(StringIO(), clock=Clock())
    with pytest.raises(RuntimeError, match="gone"):
        progress.follow(Lost())
    progress.end_soon()
    assert progress.follow(Lost()).was_interrupted


def test_only_the_main_thread_is_interrupted() -> None:
    progress = Progress(StringIO(), clock=Clock())
    progress.end_soon()
    other = Thread(target=progress.show, args=["3 rows"])
    other.start()
    other.join()
    with pytest.raises(KeyboardInterrupt):
        progress.show("3 rows")


class Context:
    """Of a session, for `tasks`: one job that runs until it is cancelled."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._cancelled = Event()

    def statusTracker(self) -> "Context":
        return self

    def getActiveStageIds(self) -> list[int]:
        return []

    def cancelAllJobs(self) -> None:
        self._cancelled.set()

    def run(self, progress: Progress) -> None:
        progress.end_soon()
        assert self._cancelled.wait(20)
        raise RuntimeError("cancelled")


def test_tasks_of_a_job_that_is_to_end_are_cancelled() -> None:
    progress, session = Progress(StringIO(), clock=Clock()), Context()
    with pytest.raises(KeyboardInterrupt), progress.tasks(session, "copying"):
        session.run(progress)
    with pytest.raises(ZeroDivisionError), progress.tasks(session, "copying"):
        raise ZeroDivisionError


def test_what_takes_long_says_what_it_is_until_something_else_is_shown() -> None:
    stream = Terminal()
    progress = Progress(stream)
    with progress.doing("starting Spark"):
        until(lambda: stream.getvalue().count("starting Spark") > 2, "it is shown again")
        until(lambda: _shows(progress, stream, "3 rows"), "it shows what comes next")
        shown = stream.getvalue()
        time.sleep(1.5)  # it looks twice a second
        assert stream.getvalue() == shown


def _shows(progress: Progress, stream: Terminal, text: str) -> bool:
    progress.show(text)
    return stream.getvalue().endswith(text)


def test_before_the_first_batch_there_are_no_rows_to_tell_of() -> None:
    meter = Meter()
    assert meter.line() == "the first batch is under way"
    meter.see([report(0, 0)])
    assert meter.line() == "0 rows, 0 rows/s"


def test_a_job_says_what_it_does_before_it_has_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, seen = Terminal(), list[str]()

    def see(text: str) -> None:
        until(lambda: text in stream.getvalue(), text)
        seen.append(text)

    @contextmanager
    def open_session(_: Any) -> Iterator[Any]:
        see("starting Spark")
        yield SimpleNamespace(started_in_s=1.0)

    def run(*_: Any) -> Summary:
        see("reading what there is to do")
        return Summary({}, ())

    monkeypatch.setattr("penstock.spark.job.open_session", open_session)
    monkeypatch.setattr("penstock.spark.job.check_pyspark", lambda: None)
    job = Job(name="test", options=JobOptions, plan=lambda _: Plan({}, ()), run=run, examples=())
    run_job(job, JobOptions(), progress=Progress(stream))
    assert seen == ["starting Spark", "reading what there is to do"]
