"""Plots as SVG, written by hand: ratios with their spread, and curves of a figure against a size."""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from benchmarks.comparison.ratios import Spread

_COLOURS: Final = ("#1f6feb", "#d1581c", "#2da44e", "#8250df", "#bf8700")
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_LABEL_WIDTH: Final = 430
_PLOT_WIDTH: Final = 420
_ROW_HEIGHT: Final = 20
_TOP: Final = 50
_CURVE_HEIGHT: Final = 260


class Point(NamedTuple):
    """One row of a plot of ratios."""

    label: str
    found: Spread


class LogScale(NamedTuple):
    """From values to pixels; equal factors are equal distances."""

    low: float
    high: float
    start_px: float
    end_px: float

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start_px + share * (self.end_px - self.start_px)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every decade that lie inside."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        all_of_them = (
            digit * 10.0**power for power in range(first, last + 1) for digit in (1, 2, 5)
        )
        return [tick for tick in all_of_them if self.low <= tick <= self.high]


def log_scale(values: Sequence[float], start_px: float, end_px: float) -> LogScale:
    """A little wider than the values, and never empty."""
    return LogScale(min(values) / 1.25, max(values) * 1.25, start_px, end_px)


def ratio_plot(title: str, points: Sequence[Point]) -> str:
    """A dot at each median on a line from the least to the most; a stroke where both are equal."""
    ends = [value for point in points for value in (point.found.low, point.found.high) if value > 0]
    scale = log_scale([1.0, *ends], _LABEL_WIDTH, _LABEL_WIDTH + _PLOT_WIDTH)
    bottom = _TOP + _ROW_HEIGHT * len(points)
    parts = [_ticks_below(scale, bottom), _line(scale.at(1), _TOP - 8, scale.at(1), bottom, "#888")]
    for number, point in enumerate(points):
        y = _TOP + _ROW_HEIGHT * (number + 0.5)
        parts.append(_text(_LABEL_WIDTH - 10, y + 4, point.label, "end"))
        if point.found.low > 0:
            low, high = scale.at(point.found.low), scale.at(point.found.high)
            parts.append(_line(low, y, high, y, _COLOURS[0], 2))
            middle = scale.at(point.found.median)
            parts.append(f'<circle cx="{middle:.1f}" cy="{y:.1f}" r="4" fill="{_COLOURS[0]}"/>')
    return _svg(title, _LABEL_WIDTH + _PLOT_WIDTH + 40, bottom + 40, parts)


def curve_plot(title: str, x_title: str, series: Mapping[str, Mapping[float, Spread]]) -> str:
    """A line for each name, against x; both scales are logarithmic."""
    found = [it for points in series.values() for it in points.items() if it[1].low > 0]
    left, bottom = 80, _TOP + _CURVE_HEIGHT
    xs = log_scale([x for x, _ in found] or [1.0], left, left + _PLOT_WIDTH)
    ends = [end for _, it in found for end in (it.low, it.high)]
    ys = log_scale(ends or [1.0], bottom, _TOP)
    parts = [
        _ticks_below(xs, bottom),
        _text(left + _PLOT_WIDTH / 2, bottom + 38, x_title, "middle"),
    ]
    for tick in ys.ticks():
        parts.append(_line(left, ys.at(tick), left + _PLOT_WIDTH, ys.at(tick), "#ddd"))
        parts.append(_text(left - 8, ys.at(tick) + 4, _short(tick), "end"))
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts += _curve(xs, ys, points, colour)
        y = _TOP + 16 * number + 10
        parts.append(_line(left + _PLOT_WIDTH + 15, y, left + _PLOT_WIDTH + 35, y, colour, 2))
        parts.append(_text(left + _PLOT_WIDTH + 42, y + 4, name))
    return _svg(title, left + _PLOT_WIDTH + 150, bottom + 55, parts)


def _curve(xs: LogScale, ys: LogScale, points: Mapping[float, Spread], colour: str) -> list[str]:
    drawn = [(xs.at(x), it) for x, it in sorted(points.items()) if it.low > 0]
    path = " ".join(f"{x:.1f},{ys.at(it.median):.1f}" for x, it in drawn)
    whiskers = [_line(x, ys.at(it.low), x, ys.at(it.high), colour) for x, it in drawn]
    dots = [
        f'<circle cx="{x:.1f}" cy="{ys.at(it.median):.1f}" r="3" fill="{colour}"/>'
        for x, it in drawn
    ]
    line = f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    return [line, *whiskers, *dots]


def _ticks_below(scale: LogScale, bottom: float) -> str:
    marks = []
    for tick in scale.ticks():
        x = scale.at(tick)
        marks.append(_line(x, _TOP - 8, x, bottom, "#ddd"))
        marks.append(_text(x, bottom + 18, _short(tick), "middle"))
    return "\n".join(marks)


def _short(value: float) -> str:
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{letter}"
    return f"{value:g}"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {_FONT}>{escape(text)}</text>'


def _svg(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">'
    )
    background = f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>'
    heading = f'<text x="10" y="22" {_FONT} font-weight="bold">{escape(title)}</text>'
    return "\n".join([head, background, heading, *parts, "</svg>"]) + "\n"
