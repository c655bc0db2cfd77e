"""A session ends with its block; what was raised in it can be read afterwards."""

import subprocess
import sys

import pytest

from tests.support.command import environment

pytestmark = pytest.mark.spark

RAISES = """
import traceback

from penstock.spark.errors import explain
from penstock.spark.session import SessionSettings, open_session

try:
    with open_session(SessionSettings(master="local[1]")) as spark:
        try:
            spark.sql("SELECT a FROM nowhere")
        except Exception:
            spark._jvm.java.lang.Integer.parseInt("seven")
except Exception as error:
    traceback.print_exception(error)
    while error is not None:
        print(explain(error))
        error = error.__context__
"""


def test_what_was_raised_can_be_read_after_the_session_has_ended() -> None:
    words = [sys.executable, "-c", RAISES]
    ended = subprocess.run(words, env=environment(), capture_output=True, text=True, check=True)
    first, *before = ended.stdout.splitlines()
    assert first == 'For input string: "seven"'
    assert any(text.startswith("The table or view `nowhere` cannot be found.") for text in before)
    assert "str() failed" not in ended.stderr
    assert 'For input string: "seven"' in ended.stderr
