"""Which errors of tests with real processes deserve a second run."""

import subprocess

import confluent_kafka
import pytest
from aiokafka.errors import KafkaConnectionError

from tests.support.checker import History, Outcome, Send, assert_sound
from tests.support.failures import DataError, NotInTime, StartFailed, reason_for_second_run
from tests.support.server import until, until_data


def chained(error: BaseException, earlier: BaseException) -> BaseException:
    error.__context__ = earlier
    return error


@pytest.mark.parametrize(
    "error",
    [
        NotInTime("no leader"),
        StartFailed("exit code 1"),
        TimeoutError(),
        ConnectionRefusedError(),
        subprocess.TimeoutExpired("kcat", 60),
        confluent_kafka.KafkaException(confluent_kafka.KafkaError(-185)),
        KafkaConnectionError("refused"),
        RuntimeError("the broker did not start; its log: ..."),
        pytest.fail.Exception("Timeout (>300.0s) from pytest-timeout."),
        ExceptionGroup("two", [TimeoutError(), NotInTime("both")]),
        chained(TimeoutError(), KeyError("cache miss")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_timeouts_and_failed_starts_deserve_a_second_run(error: BaseException) -> None:
    assert reason_for_second_run(error)


@pytest.mark.parametrize(
    "error",
    [
        DataError("lost"),
        AssertionError("1 == 2"),
        ValueError("a bug of the test"),
        RuntimeError("something else"),
        subprocess.CalledProcessError(1, "kcat"),
        confluent_kafka.KafkaException(confluent_kafka.KafkaError(47)),  # INVALID_PRODUCER_EPOCH
        pytest.fail.Exception("DID NOT RAISE"),
        chained(TimeoutError(), DataError("lost")),
        chained(NotInTime("clean-up"), AssertionError("1 == 2")),
        ExceptionGroup("two", [TimeoutError(), DataError("lost")]),
        ExceptionGroup("two", [ExceptionGroup("one", [AssertionError()]), TimeoutError()]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failed_checks_and_unknown_errors_are_final(error: BaseException) -> None:
    assert reason_for_second_run(error) is None


def test_a_chain_of_errors_that_leads_back_to_itself_ends() -> None:
    first, second = TimeoutError(), TimeoutError()
    first.__context__, second.__context__ = second, first
    assert reason_for_second_run(first)


def test_a_history_with_a_lost_record_raises_a_data_error() -> None:
    lost = Send("p", ("t", 0), b"1", outcome=Outcome.DONE, offset=0)
    with pytest.raises(DataError, match="lost"):
        assert_sound(History(sends=[lost], logs={("t", 0): []}))


def test_records_that_do_not_arrive_are_a_data_error_and_states_are_a_timeout() -> None:
    with pytest.raises(DataError, match="all is read"):
        until_data(lambda: False, "all is read", 0.0)
    with pytest.raises(NotInTime, match="a leader"):
        until(lambda: False, "a leader", 0.0)
