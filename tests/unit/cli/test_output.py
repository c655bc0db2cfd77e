import io
import json
from typing import Any

from penstock.cli.output import Output


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


ROWS: list[list[Any]] = [["orders", 12, [1, 2], True], ["eu", 3, [], None]]
COLUMNS = ["name", "partitions", "replicas", "internal"]


def test_a_piped_table_is_aligned_text_with_numbers_on_the_right() -> None:
    stream = io.StringIO()
    Output(stream=stream).table(COLUMNS, ROWS)
    assert stream.getvalue().splitlines() == [
        "NAME    PARTITIONS  REPLICAS  INTERNAL",
        "orders          12  1,2       yes",
        "eu               3            -",
    ]


def test_a_table_without_rows_still_names_its_columns() -> None:
    stream = io.StringIO()
    Output(stream=stream).table(COLUMNS, [])
    assert stream.getvalue() == "NAME  PARTITIONS  REPLICAS  INTERNAL\n"


def test_a_terminal_table_keeps_markup_like_text_as_it_is() -> None:
    stream = Terminal()
    Output(stream=stream).table(["value"], [["[red]not markup[/red]"]])
    assert "[red]not markup[/red]" in stream.getvalue()


def test_json_in_a_pipe_is_one_line_and_keeps_unicode() -> None:
    stream = io.StringIO()
    Output(as_json=True, stream=stream).document({"name": "größe", "count": 2})
    assert stream.getvalue().count("\n") == 1
    assert "größe" in stream.getvalue()
    assert json.loads(stream.getvalue()) == {"name": "größe", "count": 2}


def test_fields_are_aligned_under_each_other() -> None:
    stream = io.StringIO()
    Output(stream=stream).fields({"id": 1, "cluster": "abc", "rack": None})
    assert stream.getvalue().splitlines() == ["id       1", "cluster  abc", "rack     -"]
