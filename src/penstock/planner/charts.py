"""Draw bars and curves as inline SVG. Colours are classes that the page defines."""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

_WIDTH: Final = 680
_LABELS: Final = 190  # room for the names at the left
_VALUES: Final = 110  # room for the values at the right
_ROW: Final = 26
_BAR: Final = 14
_PLOT_HEIGHT: Final = 220
_LEFT: Final = 80
_BOTTOM: Final = 40
_TOP: Final = 14


class Bar(NamedTuple):
    label: str
    value: float
    text: str  # the value for people
    second: float | None = None  # a lighter bar behind the first, for the same thing after a loss
    limit: float | None = None  # a mark across the bar
    stands_out: bool = False


def bars(title: str, rows: Sequence[Bar], most: float | None = None) -> str:
    """Draw horizontal bars; `most` is the value of the full width."""
    full = most or max((max(row.value, row.second or 0) for row in rows), default=0) or 1.0
    height = _ROW * len(rows) + 4
    parts = [_open(title, height)]
    for number, row in enumerate(rows):
        parts.append(_bar(row, 2 + number * _ROW, full))
    return "".join((*parts, "</svg>"))


def _bar(row: Bar, top: float, full: float) -> str:
    room = _WIDTH - _LABELS - _VALUES
    middle = top + _ROW / 2 + 4
    bar_top = top + (_ROW - _BAR) / 2
    parts = [f'<text x="{_LABELS - 10}" y="{middle:.1f}" class="name">{escape(row.label)}</text>']
    if row.second is not None:
        parts.append(_rectangle(bar_top, _length(row.second, full, room), "after"))
    parts.append(
        _rectangle(
            bar_top, _length(row.value, full, room), "main strong" if row.stands_out else "main"
        )
    )
    if row.limit is not None:
        x = _LABELS + _length(row.limit, full, room)
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bar_top - 4:.1f}" '
            f'y2="{bar_top + _BAR + 4:.1f}" class="limit"/>'
        )
    end = _LABELS + max(
        _length(amount, full, room) for amount in (row.value, row.second or 0, row.limit or 0)
    )
    parts.append(f'<text x="{end + 8:.1f}" y="{middle:.1f}">{escape(row.text)}</text>')
    return "".join(parts)


def _length(value: float, full: float, room: float) -> float:
    return min(1.0, max(0.0, value / full)) * room


def _rectangle(top: float, width: float, kind: str) -> str:
    place = f'x="{_LABELS}" y="{top:.1f}" width="{width:.1f}" height="{_BAR}"'
    return f'<rect {place} rx="2" class="{kind}"/>'


class Point(NamedTuple):
    x: float
    y: float
    text: str  # for people who point at it


def curve(
    title: str, points: Sequence[Point], axes: tuple[str, str], marked: float, ticks: Sequence[str]
) -> str:
    """Draw a line through points, from zero.

    `marked` is the x of the point that stands out; `ticks` are the texts at 0, half and all of y.
    """
    height = _PLOT_HEIGHT + _TOP + _BOTTOM
    full_x, full_y = max(point.x for point in points), curve_top(points)
    right, bottom = _WIDTH - 20, _TOP + _PLOT_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / full_x * (right - _LEFT), bottom - y / full_y * _PLOT_HEIGHT

    parts = [_open(title, height)]
    for share, text in zip((0.0, 0.5, 1.0), ticks, strict=True):
        y = bottom - share * _PLOT_HEIGHT
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" class="name">{escape(text)}</text>')
    line = " ".join("{:.1f},{:.1f}".format(*place(point.x, point.y)) for point in points)
    parts.append(f'<polyline points="{line}" class="line"/>')
    for point in points:
        x, y = place(point.x, point.y)
        kind = "dot strong" if point.x == marked else "dot"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{kind}">'
            f"<title>{escape(point.text)}</title></circle>"
            f'<text x="{x:.1f}" y="{bottom + 16}" class="middle">{point.x:g}x</text>'
        )
    parts.append(f'<text x="{right}" y="{bottom + 34}" class="name">{escape(axes[0])}</text>')
    parts.append(f'<text x="{_LEFT + 6}" y="{_TOP + 14}">{escape(axes[1])}</text></svg>')
    return "".join(parts)


def curve_top(points: Sequence[Point]) -> float:
    """Return a number with one or two digits that no point exceeds."""
    most = max(point.y for point in points) or 1.0
    power = 10.0 ** math.floor(math.log10(most))
    return next(power * step for step in (1, 1.2, 1.5, 2, 3, 4, 6, 8, 10) if power * step >= most)


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title, {chr(34): "&quot;"})}">'
    )
