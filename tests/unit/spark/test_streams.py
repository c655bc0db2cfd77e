"""A query that is started again, and what is said when it cannot be."""

from collections.abc import Iterator

import pytest

from penstock.spark.errors import JobError
from penstock.spark.streams import see_through

TOO_SLOW = RuntimeError("org.apache.spark.SparkException: Python worker failed to connect back.")


class Query:
    """Ends with what it is told."""

    def __init__(self, end: Exception | int) -> None:
        self.end = end
        self.is_stopped = False

    def wait(self) -> int:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end

    def stop(self) -> None:
        self.is_stopped = True
        raise ConnectionError("Spark is gone")


def starts(*ends: Exception | int) -> tuple[list[Query], Iterator[Query]]:
    queries = [Query(end) for end in ends]
    return queries, iter(queries)


def test_a_query_whose_python_was_too_slow_is_started_again_and_each_is_stopped() -> None:
    queries, started = starts(TOO_SLOW, TOO_SLOW, 17)
    assert see_through(lambda: next(started), Query.wait) == 17
    assert all(query.is_stopped for query in queries)


@pytest.mark.parametrize(
    "said",
    [
        "Python worker failed to connect back.",
        "Timed out while waiting for the Python worker to connect back",
    ],
)
def test_a_query_that_could_not_be_started_is_started_again(said: str) -> None:
    queries, started = starts(17)
    failures = iter([RuntimeError(said), RuntimeError(said)])

    def start() -> Query:
        for failure in failures:
            raise failure
        return next(started)

    assert see_through(start, Query.wait) == 17
    assert queries[0].is_stopped


def test_a_query_that_cannot_be_started_is_told_at_once() -> None:
    failures = iter([KeyError("no such source"), TOO_SLOW])

    def start() -> Query:
        raise next(failures)

    with pytest.raises(KeyError, match="no such source"):
        see_through(start, Query.wait)
    assert list(failures) == [TOO_SLOW]


def test_a_machine_that_stays_too_slow_is_told_so() -> None:
    queries, started = starts(*[TOO_SLOW] * 100)
    with pytest.raises(JobError, match="this machine is too busy for that; run the job again"):
        see_through(lambda: next(started), Query.wait)
    assert sum(query.is_stopped for query in queries) == 5


def test_any_other_failure_is_raised_at_once() -> None:
    queries, started = starts(KeyError("another"), 17)
    with pytest.raises(KeyError, match="another"):
        see_through(lambda: next(started), Query.wait)
    assert [query.is_stopped for query in queries] == [True, False]


def test_lost_data_is_told_with_the_flag_that_goes_on_without() -> None:
    _, started = starts(
        ValueError("offsets 1 to 3 are gone; set the option failOnDataLoss to false")
    )
    with pytest.raises(JobError, match="are gone; give --allow-data-loss"):
        see_through(lambda: next(started), Query.wait)
