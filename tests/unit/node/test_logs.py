import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.node.logs import JsonFormatter, LogFormat, TextFormatter, set_up_logging, structure


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("penstock")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def record(template: object, *arguments: object, name: str = "penstock.test") -> logging.LogRecord:
    made = logging.LogRecord(name, logging.INFO, "file.py", 1, template, arguments, None)
    made.created = 1_763_193_600.25
    return made


def text(template: object, *arguments: object) -> str:
    return (
        TextFormatter()
        .format(record(template, *arguments))
        .removeprefix("2025-11-15T08:00:00.250Z INFO ")
    )


def as_json(template: object, *arguments: object) -> dict[str, object]:
    line = JsonFormatter().format(record(template, *arguments))
    parsed: dict[str, object] = json.loads(line)
    return parsed


def logged(log_format: LogFormat, level: int) -> list[str]:
    stream = io.StringIO()
    set_up_logging(log_format, level, stream)
    logger = logging.getLogger("penstock.test")
    logger.debug("small n=%d", 1)
    logger.info("big n=%d", 2)
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    return stream.getvalue().splitlines()


def test_an_event_is_one_line_with_time_level_and_fields() -> None:
    line = TextFormatter().format(record("listener-open name=%s port=%d", "PLAINTEXT", 9092))
    assert line == "2025-11-15T08:00:00.250Z INFO listener-open name=PLAINTEXT port=9092"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain/x:1", "plain/x:1"),
        ("", '""'),
        ("two words", '"two words"'),
        ('a"b', r'"a\"b"'),
        ("a=b", '"a=b"'),
        ("line\nbreak", r'"line\nbreak"'),
        (None, "None"),
        (1.5, "1.5"),
    ],
)
def test_values_are_quoted_where_they_could_be_misread(value: object, shown: str) -> None:
    assert text("event key=%s", value) == f"event key={shown}"


@given(st.text())
def test_no_value_makes_a_second_line(value: str) -> None:
    assert "\n" not in text("event key=%s", value)
    assert as_json("event key=%s", value)["key"] == value


def test_json_keeps_numbers_as_numbers() -> None:
    assert as_json("event name=%s count=%d ratio=%.2f gone=%s", "n", 3, 0.5, None) == {
        "time": "2025-11-15T08:00:00.250Z",
        "level": "info",
        "event": "event",
        "logger": "penstock.test",
        "name": "n",
        "count": 3,
        "ratio": 0.5,
        "gone": None,
    }


@pytest.mark.parametrize("arguments", [(), ("x",)])
def test_what_is_not_written_as_an_event_is_kept_as_a_message(arguments: tuple[str, ...]) -> None:
    template = "Something happened%s" if arguments else "Something happened"
    message = template % arguments
    assert text(template, *arguments) == f'log logger=penstock.test message="{message}"'
    assert as_json(template, *arguments)["message"] == message


def test_a_trace_follows_indented_and_is_one_field_in_json() -> None:
    made = record("request-failed api=%s", "Fetch")
    try:
        raise RuntimeError("a bug")
    except RuntimeError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    first, *rest = TextFormatter().format(made).splitlines()
    assert first.endswith("request-failed api=Fetch")
    assert rest[-1] == "    RuntimeError: a bug"
    assert all(line.startswith("    ") for line in rest)
    assert json.loads(JsonFormatter().format(made))["trace"].endswith("RuntimeError: a bug")


def test_info_shows_our_events_and_only_the_warnings_of_libraries() -> None:
    lines = logged("text", logging.INFO)
    assert [line.split(" ", 2)[2] for line in lines] == [
        "big n=2",
        "log logger=library message=trouble",
    ]


def test_debug_shows_more_of_ours_and_setting_up_twice_does_not_double_lines() -> None:
    logged("text", logging.INFO)
    lines = logged("json", logging.DEBUG)
    assert [json.loads(line)["event"] for line in lines] == ["small", "big", "log"]


def logging_calls() -> Iterator[tuple[str, list[ast.expr]]]:
    """Where each call such as `_log.info(...)` is in the source, its template and its values."""
    for file in Path(penstock.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("_log", "logger")
            ):
                yield f"{file.name}:{node.lineno}", node.args[node.func.attr == "log" :]


def test_everything_that_we_log_is_an_event() -> None:
    calls = dict(logging_calls())
    assert len(calls) > 20
    for place, (template, *values) in calls.items():
        assert isinstance(template, ast.Constant), place
        event, fields = structure(record(template.value, *range(len(values))))
        assert event != "log", f"{place}: {template.value!r} is no event"
        assert len(fields) == len(values), place
