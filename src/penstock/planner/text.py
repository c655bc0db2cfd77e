"""Print a report as text for a terminal, at most 80 columns wide."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.planner.report import Report, Section

WIDTH: Final = 80
_GAP: Final = "  "
_LEAST_COLUMN: Final = 12


def render_text(report: Report, width: int = WIDTH) -> str:
    lines: list[str] = []
    for sentence in report.headline:
        lines += textwrap.wrap(sentence, width)
    for section in report.sections:
        lines += ["", section.title.upper(), *_section(section, width)]
    lines += ["", "ASSUMPTIONS"]
    for assumption in report.assumptions:
        lines += textwrap.wrap(assumption, width, initial_indent="- ", subsequent_indent="  ")
    return "\n".join(lines) + "\n"


def render_section(section: Section, width: int = WIDTH) -> str:
    return "\n".join((section.title.upper(), *_section(section, width))) + "\n"


def _section(section: Section, width: int) -> Iterator[str]:
    if section.rows:
        yield from _table(section.columns, section.rows, width)
    for note in section.notes:
        yield from textwrap.wrap(note, width)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    right = [column.startswith(">") for column in columns]
    heading = [column.removeprefix(">") for column in columns]
    shown = [heading, *rows] if any(heading) else list(rows)
    widths = _widths(shown, width)
    for row in shown:
        cells = [textwrap.wrap(cell, size) or [""] for cell, size in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells))):
            parts = [
                _aligned(cell[line] if line < len(cell) else "", size, aligned_right)
                for cell, size, aligned_right in zip(cells, widths, right, strict=True)
            ]
            yield _GAP.join(parts).rstrip()


def _widths(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Start from the widths of the cells; narrow the widest column until the table fits."""
    widths = [max(1, *map(len, cells)) for cells in zip(*rows, strict=True)]
    room = width - len(_GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > _LEAST_COLUMN:
        widths[widths.index(max(widths))] -= 1
    return widths


def _aligned(text: str, width: int, right: bool) -> str:
    return text.rjust(width) if right else text.ljust(width)
