"""Progress is one line on a terminal, few lines in a log, and never a flood."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from threading import Event, Thread, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.errors import ClientError
from penstock.model.errors import ErrorCode
from penstock.spark.errors import JobError
from penstock.spark.job import Job, JobOptions, Plan, Summary, run_job
from penstock.spark.offsets import DataLoss
from penstock.spark.progress import Meter, Progress, is_end, lag
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
    progress.show("the summary")
    assert not progress.end_soon(), "asked again: what follows may be slow, too"
    progress.show("the summary")


def test_a_pause_ends_when_the_job_is_to_end() -> None:
    progress = Progress(StringIO(), clock=Clock())
    progress.pause(0)
    asking = Timer(0.05, progress.end_soon)
    asking.start()
    with pytest.raises(KeyboardInterrupt):
        progress.pause(1e9)
    asking.join()


class Lost:
    """A query whose JVM ended."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        raise self._error

    def awaitTermination(self, seconds: float) -> bool:
        assert seconds > 0
        raise self._error

    def stop(self) -> None:
        raise self._error


def raised_by(module: str, text: str, **more: Any) -> Exception:
    """As pyspark or py4j raises it."""
    kind = type("Raised", (Exception,), {"__module__": module, **more})
    return kind(text)  # type: ignore[no-any-return]  # type() does not tell


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class Unspeakable(Exception):
    """Its text is the JVM's to tell."""

    def __str__(self) -> str:
        raise ConnectionRefusedError


Unspeakable.__module__ = "py4j.protocol"
JAVA: dict[str, Any] = {"java_exception": None}
STREAM = "pyspark.errors.exceptions.captured"
CANCELLED = raised_by("py4j.protocol", "[SPARK_JOB_CANCELLED] Job 3 cancelled ", **JAVA)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError("Spark is gone"),
        EOFError("Spark is gone"),
        raised_by("py4j.protocol", "Answer from Java side is empty"),
        CANCELLED,
        raised_by(STREAM, "[STREAM_FAILED] Job 7 cancelled because SparkContext was shut down"),
        raised_by(STREAM, "Cannot call methods on a stopped SparkContext."),
        raised_by(STREAM, "Job aborted", _stackTrace="Caused by: Job 7 cancelled because"),
        raised_by(STREAM, "Python worker exited unexpectedly (crashed)"),
        Unspeakable(),
        caused(JobError("the repair fails: it was cancelled"), CANCELLED),
    ],
)
def test_spark_may_end_first_when_all_are_to_end(error: Exception) -> None:
    """A service manager tells every process of the job at the same time."""
    progress = Progress(StringIO(), clock=Clock())
    with pytest.raises(type(error)):
        progress.follow(Lost(error))
    progress.end_soon()
    assert progress.follow(Lost(error)).was_interrupted
    assert progress.follow(Lost(error)).was_interrupted, "also after it was told"


@pytest.mark.parametrize(
    "error",
    [
        JobError("another run writes to the table; stop one"),
        DataLoss("offsets 1 to 3 are gone"),
        caused(
            ClientError("no broker answers", ErrorCode.NETWORK_EXCEPTION), ConnectionResetError()
        ),
        OSError("no space left on device"),
        ZeroDivisionError("a bug"),
        raised_by("py4j.protocol", "java.lang.OutOfMemoryError: Java heap space", **JAVA),
        raised_by(STREAM, "[STREAM_FAILED] Traceback:\nValueError: the order was cancelled"),
        raised_by(
            STREAM,
            "Python worker exited unexpectedly\npenstock.spark.errors.JobError: stop one",
        ),
    ],
)
def test_a_failure_is_told_also_when_the_job_is_to_end(error: Exception) -> None:
    progress = Progress(StringIO(), clock=Clock())
    progress.end_soon()
    with pytest.raises(type(error)):
        progress.follow(Lost(error))


@pytest.mark.parametrize("stopped", [True, None])
def test_what_fails_when_spark_is_stopped_is_its_end(
    monkeypatch: pytest.MonkeyPatch, stopped: bool | None
) -> None:
    def is_stopped() -> bool:
        if stopped is None:
            raise ConnectionRefusedError
        return stopped

    scala = SimpleNamespace(isStopped=is_stopped)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: scala))
    pyspark = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=context))
    monkeypatch.setitem(sys.modules, "pyspark", pyspark)
    assert is_end(raised_by(STREAM, "RpcEnv already stopped."))
    assert not is_end(raised_by(STREAM, "Traceback:\npenstock.spark.errors.JobError: stop one"))
    assert not is_end(JobError("stop one"))


def test_rows_of_a_query_that_is_started_again_are_counted_together() -> None:
    class Failing(Query):
        def awaitTermination(self, timeout_s: float) -> bool:
            super().awaitTermination(timeout_s)
            raise ZeroDivisionError

    progress, meter = Progress(StringIO(), clock=Clock()), Meter()
    with pytest.raises(ZeroDivisionError):
        progress.follow(Failing(1), meter)
    assert meter.rows == 10, "of the batch that ended before the failure, too"
    again = Query(1)
    again.recentProgress = [report(0, 10)]  # it tells of the first batch once more
    assert progress.follow(again, meter) is meter
    assert meter.rows == 20


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
        raise CANCELLED


def test_tasks_of_a_job_that_is_to_end_are_cancelled() -> None:
    progress, session = Progress(StringIO(), clock=Clock()), Context()
    with pytest.raises(KeyboardInterrupt), progress.tasks(session, "copying"):
        session.run(progress)
    with pytest.raises(ZeroDivisionError), progress.tasks(session, "copying"):
        raise ZeroDivisionError


class Gone(Context):
    """Its JVM ends."""

    def cancelAllJobs(self) -> None:
        super().cancelAllJobs()
        raise ConnectionRefusedError

    def statusTracker(self) -> "Context":
        if self._cancelled.is_set():
            raise ConnectionRefusedError
        return self


def test_tasks_of_a_spark_that_is_gone_end_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)  # it would print a stack
    progress, session = Progress(StringIO(), clock=Clock()), Gone()
    with pytest.raises(KeyboardInterrupt), progress.tasks(session, "copying"):
        session.run(progress)
    assert broken == []
    with pytest.raises(KeyboardInterrupt), progress.tasks(session, "copying"):
        pytest.fail("nothing can be asked")


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
