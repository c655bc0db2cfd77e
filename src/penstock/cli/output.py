"""Results go to stdout: tables on a terminal, aligned text in a pipe, JSON when asked. The rest goes to stderr."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

Row = Sequence[object]


class Output:
    """One command's results. `as_json` chooses the machine's form; the terminal decides about colours."""

    def __init__(self, *, as_json: bool = False, stream: TextIO | None = None) -> None:
        self.as_json = as_json
        self._stream = sys.stdout if stream is None else stream

    def line(self, text: str) -> None:
        self._stream.write(text + "\n")

    def document(self, value: Any) -> None:
        """One JSON value, indented for people on a terminal and on one line in a pipe."""
        indent = 2 if self._stream.isatty() else None
        self.line(json.dumps(value, indent=indent, ensure_ascii=False))

    def table(self, columns: Sequence[str], rows: Sequence[Row], *, title: str = "") -> None:
        """Rows under headings; numbers are right-aligned."""
        texts = [[_text(cell) for cell in row] for row in rows]
        numeric = [_is_numeric(rows, column) for column in range(len(columns))]
        if self._stream.isatty():
            self._rich_table(columns, texts, numeric, title)
        else:
            self._plain_table(columns, texts, numeric, title)

    def fields(self, pairs: Mapping[str, object]) -> None:
        """Names and values, one pair a line."""
        width = max((len(name) for name in pairs), default=0)
        for name, value in pairs.items():
            self.line(f"{name.replace('_', ' '):<{width}}  {_text(value)}".rstrip())

    def _plain_table(
        self, columns: Sequence[str], texts: list[list[str]], numeric: list[bool], title: str
    ) -> None:
        if title:
            self.line(title)
        headings = [column.upper() for column in columns]
        widths = [max(map(len, cells)) for cells in zip(headings, *texts, strict=True)]
        for cells in (headings, *texts):
            aligned = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(cells, widths, numeric, strict=True)
            ]
            self.line("  ".join(aligned).rstrip())

    def _rich_table(
        self, columns: Sequence[str], texts: list[list[str]], numeric: list[bool], title: str
    ) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for column, right in zip(columns, numeric, strict=True):
            table.add_column(column, justify="right" if right else "left", overflow="fold")
        for cells in texts:
            table.add_row(*map(Text, cells))
        Console(file=self._stream).print(table)


def note(text: str) -> None:
    """What is no result: progress, counts, hints."""
    sys.stderr.write(text + "\n")


def counted(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _text(cell: object) -> str:
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case float():
            return f"{cell:.1f}"
        case list() | tuple():
            return ",".join(map(_text, cell))
        case _:
            return str(cell)


def _is_numeric(rows: Sequence[Row], column: int) -> bool:
    cells = [row[column] for row in rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
    )
