"""A job that fails says why in one line: what Spark, the JVM and Python's workers wrap around a cause is taken off."""

import re
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

_TRACEBACK: Final = "Traceback (most recent call last):"
_CAUSED_BY: Final = "Caused by: "
_QUERY: Final = "=== Streaming Query ==="  # what follows is for those who know the plan
_LOST_TASK: Final = re.compile(r"Lost task [^:]*\(TID[^)]*\)[^:]*: ")
_CLASS: Final = re.compile(r"(?:[A-Za-z_$][\w$]*\.)+(?P<name>[A-Za-z_$][\w$]*)(?:: |$)")
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5}.*$", re.DOTALL)
_FAILED_BEFORE: Final = ("org.apache.spark.", "java.", "py4j.", "pyspark.", "penstock.")
_DEEPEST: Final = 20


class JobError(Exception):
    """The job cannot be done; the message is for people, and names the remedy."""


class BadOption(JobError):
    """What an option says cannot be: wrong usage, though it is seen only when the job looks at it."""


def explain(error: BaseException) -> str:
    """The cause of what Spark raised, in one line."""
    java = getattr(error, "java_exception", None)
    try:
        if java is not None:  # py4j's: its own text is a stack of Java
            return innermost(_java_messages(java))
    except Exception:  # noqa: BLE001  # the JVM that knew more is gone
        return "Spark ended"
    return cause(str(error)) or type(error).__name__


def innermost(messages: Sequence[str]) -> str:
    """What the deepest of nested exceptions says that says anything."""
    told = [text for text in map(cause, messages) if text]
    return told[-1] if told else "Spark failed and does not say why"


def cause(text: str) -> str:
    """One line out of a text that may hold stacks of Java and tracebacks of Python."""
    text = text.split(_QUERY, 1)[0]
    if _TRACEBACK in text:
        return _python_cause(text)
    if _CAUSED_BY in text:
        text = text.rsplit(_CAUSED_BY, 1)[1]
    elif lost := list(_LOST_TASK.finditer(text)):
        text = text[lost[-1].end() :]
    lines = takewhile(
        lambda line: not line.startswith(("\tat ", "Driver stacktrace")), text.splitlines()
    )
    said = " ".join(line.strip() for line in lines if line.strip() and not _is_plan(line))
    return _plain(_SQLSTATE.sub("", said))


def _python_cause(text: str) -> str:
    """The exception under the last traceback: the one that reached Spark."""
    lines = text.rsplit(_TRACEBACK, 1)[1].splitlines()
    rest = [line for line in lines if line.strip() and not line.startswith((" ", "\t"))]
    said: list[str] = []
    for line in rest:
        if said and (line.startswith("\tat ") or _CLASS.match(line) or "SQLSTATE" in line):
            break
        said.append(line.strip())
    return _plain(_SQLSTATE.sub("", " ".join(said)))


def _plain(said: str) -> str:
    """Without the name of an exception that says nothing to a user, and without Spark's condition."""
    while (found := _CLASS.match(said)) and said.startswith(_FAILED_BEFORE):
        rest = said[found.end() :]
        if not rest:
            return found["name"]
        said = rest
    return _CONDITION.sub("", said).strip()


def _is_plan(line: str) -> bool:
    """A query plan, which Spark adds to what it says."""
    return line.lstrip().startswith(("+- ", ":- ", "== ", "'Project", "!", "~"))


def _java_messages(error: Any) -> list[str]:
    found: list[str] = []
    while error is not None and len(found) < _DEEPEST:
        found.append(str(error.getMessage() or ""))
        error = error.getCause()
    return found
