"""Error types of tests with real processes, and the rule which errors deserve a second run.

A busy machine makes processes start late and clients time out. It never loses, reorders or duplicates
data. So a failed check on data is final, and so is every error that this module does not name.
"""

import subprocess
from collections.abc import Iterator
from typing import Final


class DataError(AssertionError):
    """Data is lost, duplicated, reordered, not fenced or wrong. Never retried."""


class NotInTime(AssertionError):
    """A condition did not become true before its deadline."""


class StartFailed(AssertionError):
    """A process did not start."""


_TIMEOUTS: Final = (
    NotInTime,
    StartFailed,
    TimeoutError,
    ConnectionError,
    subprocess.TimeoutExpired,
)
_CLIENT_TIMEOUTS: Final = frozenset(  # classes of kafka-python and aiokafka, by name: no import
    {"KafkaTimeoutError", "KafkaConnectionError", "NoBrokersAvailable"}
)
_LIBRDKAFKA_TIMEOUTS: Final = frozenset(
    {"_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT"}
)
_TEXTS: Final = {  # errors that have no type of their own: class name, text
    "Failed": "Timeout (",  # pytest-timeout
    "RuntimeError": "the broker did not start",  # penstock.testing
}


def reason_for_second_run(error: BaseException) -> str | None:
    """Return why a busy machine may have caused `error`, or None if the error is final.

    A failed assertion anywhere in the chain of errors is final: a time-out during the clean-up
    after a failed check does not hide that check.
    """
    if any(_is_failed_check(each) for each in _chain(error)):
        return None
    if isinstance(error, BaseExceptionGroup):
        reasons = [reason_for_second_run(each) for each in error.exceptions]
        return reasons[0] if all(reasons) else None
    return _reason(error)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and the errors that it was raised from or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_failed_check(error: BaseException) -> bool:
    return isinstance(error, AssertionError) and not isinstance(error, NotInTime | StartFailed)


def _reason(error: BaseException) -> str | None:
    name = type(error).__name__
    if isinstance(error, _TIMEOUTS) or name in _CLIENT_TIMEOUTS:
        return name
    if name in _TEXTS and _TEXTS[name] in str(error):
        return _TEXTS[name].rstrip(" (")
    if name == "KafkaException" and (code := _code_name(error)) in _LIBRDKAFKA_TIMEOUTS:
        return code
    return None


def _code_name(error: BaseException) -> str:
    """Return librdkafka's name of the error code, for example `_TIMED_OUT`."""
    name = getattr(error.args[0] if error.args else None, "name", None)
    return str(name()) if callable(name) else ""
