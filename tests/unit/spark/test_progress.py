"""Progress is one line on a terminal, few lines in a log, and never a flood."""

from io import StringIO
from typing import Any

import pytest

from penstock.spark.progress import Meter, Progress, lag


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
