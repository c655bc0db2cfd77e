"""What Spark raises becomes the one line that a person needs."""

from typing import Any

import pytest

from penstock.spark.errors import cause, explain

WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read: Traceback (most recent call last):
  File "/lib/pyspark/worker.py", line 82, in main
    func()
  File "/lib/penstock/spark/cluster.py", line 12, in ask
    raise ClientError("x")
penstock.client.errors.ClientError: topic 'orders' does not exist; create it with: penstock topic create orders

SQLSTATE: 38000"""
STAGE = """Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times, most recent failure: \
Lost task 0.0 in stage 3.0 (TID 5) (127.0.0.1 executor driver): java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)

Driver stacktrace:"""
CHAINED = """Traceback (most recent call last):
  File "a.py", line 1, in f
ModuleNotFoundError: No module named 'pandas'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "a.py", line 2, in f
    g()
    ^^^
ValueError: first line
second line

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:645)
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("just so", "just so"),
        (WORKER, "topic 'orders' does not exist; create it with: penstock topic create orders"),
        (STAGE, "No space left on device"),
        (CHAINED, "ValueError: first line second line"),
        (
            "[PATH_NOT_FOUND] Path does not exist: file:/no/such. SQLSTATE: 42K03",
            "Path does not exist: file:/no/such.",
        ),
        (
            "[X.Y] A column `a` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n"
            "'Project ['a]\n+- Range (0, 3, step=1)\n",
            "A column `a` cannot be resolved.",
        ),
        (
            "org.apache.spark.SparkException: outer\n\tat a.b(C.scala)\n"
            "Caused by: java.lang.IllegalStateException: inner\n\tat d.e(F.scala)",
            "inner",
        ),
        ("java.lang.OutOfMemoryError", "OutOfMemoryError"),
    ],
)
def test_the_cause_is_one_line(text: str, line: str) -> None:
    assert cause(text) == line


class _Java:
    def __init__(self, message: str | None, cause: "_Java | None" = None) -> None:
        self._message, self._cause = message, cause

    def getMessage(self) -> str | None:
        return self._message

    def getCause(self) -> "_Java | None":
        return self._cause


class _Raised(Exception):
    java_exception: Any


def test_of_nested_java_exceptions_the_innermost_that_speaks_is_shown() -> None:
    error = _Raised("An error occurred while calling o42.start.\n: a.b.C")
    error.java_exception = _Java("outer", _Java("[A_B] inner", _Java(None)))
    assert explain(error) == "inner"


def test_an_exception_of_a_jvm_that_is_gone_is_still_one_line() -> None:
    error = _Raised("text")
    error.java_exception = object()
    assert explain(error) == "Spark ended"


def test_an_exception_without_words_is_named() -> None:
    assert explain(ZeroDivisionError()) == "ZeroDivisionError"
