"""Draws a traffic report as SVG, with nothing but text: rates over time above, partitions below, one band a topic."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from xml.sax.saxutils import escape

_WIDTH: Final = 960
_LEFT: Final = 90
_RIGHT: Final = 30
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_RATES: Final = 160  # height
_BARS: Final = 70
_BAND: Final = _RATES + _BARS + 110
_LABEL: Final = 16
_MOST_BARS: Final = 400
_INK, _LINE, _AREA, _HOT = "#1f2430", "#2563a8", "#c9def3", "#c2410c"


def draw(facts: Mapping[str, Any]) -> str:
    """`facts`: the summary of a traffic job."""
    topics = facts["topics"]
    height = 50 + _BAND * len(topics)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 28, f"Traffic of cluster {facts['cluster']}", size=16),
    ]
    for index, topic in enumerate(topics):
        parts.extend(_band(topic, 60 + index * _BAND, facts["step_ms"]))
    return "\n".join([*parts, "</svg>", ""])


def _band(topic: Mapping[str, Any], top: int, step_ms: int) -> Iterator[str]:
    yield _text(_LEFT, top, f"{topic['topic']}: {topic['records']:,} records", size=14)
    yield from _rates(topic["rate"], top + 14, step_ms)
    yield from _bars(topic["partitions"], top + _RATES + 52)


def _rates(rate: Mapping[str, Any], top: int, step_ms: int) -> Iterator[str]:
    first_ms, after_ms = float(rate["first_ms"]), float(rate["after_ms"])
    peak = rate["peak_records_per_s"]
    bottom = top + _RATES

    def x(timestamp_ms: float) -> float:
        return _LEFT + _PLOT * (timestamp_ms - first_ms) / (after_ms - first_ms)

    points = [(x(first_ms), float(bottom))]
    for start_ms, records, _ in rate["intervals"]:
        y = bottom - _RATES * (records * 1000 / step_ms) / peak
        points += _gap(points[-1][0], x(start_ms), bottom)
        points += [(x(start_ms), y), (x(start_ms + step_ms), y)]
    points.append((points[-1][0], float(bottom)))
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    yield f'<polygon points="{path}" fill="{_AREA}" stroke="{_LINE}"/>'
    mean = bottom - _RATES * rate["records_per_s"] / peak
    yield (
        f'<line x1="{_LEFT}" x2="{_LEFT + _PLOT}" y1="{mean:.1f}" y2="{mean:.1f}" '
        f'stroke="{_INK}" stroke-dasharray="4 4"/>'
    )
    yield _text(_LEFT - 8, top + 10, f"{peak:,.0f}/s", anchor="end")
    if mean - top > _LABEL:  # or it would lie over the peak's
        yield _text(_LEFT - 8, mean + 4, f"{rate['records_per_s']:,.0f}/s", anchor="end")
    yield _text(_LEFT, bottom + 16, _time(first_ms))
    yield _text(_LEFT + _PLOT, bottom + 16, _time(after_ms), anchor="end")


def _gap(last_x: float, next_x: float, bottom: int) -> list[tuple[float, float]]:
    """Where nothing came, the line is on the ground."""
    return [(last_x, float(bottom)), (next_x, float(bottom))] if next_x - last_x > 0.01 else []


def _bars(partitions: Sequence[Mapping[str, Any]], top: int) -> Iterator[str]:
    """Many partitions: the busiest."""
    shown = sorted(partitions, key=lambda row: -row["records"])[:_MOST_BARS]
    shown.sort(key=lambda row: row["partition"])
    most, width = max(row["records"] for row in shown), _PLOT / len(shown)
    for index, row in enumerate(shown):
        height = _BARS * row["records"] / most
        yield (
            f'<rect x="{_LEFT + index * width:.1f}" y="{top + _BARS - height:.1f}" '
            f'width="{max(width * 0.8, 0.5):.1f}" height="{height:.1f}" '
            f'fill="{_HOT if row["hot"] else _LINE}"><title>partition {row["partition"]}: '
            f"{row['records']:,} records, {row['share']} times the even share</title></rect>"
        )
    yield _text(_LEFT - 8, top + 10, f"{most:,}", anchor="end")
    hot = sum(row["hot"] for row in partitions)
    yield _text(_LEFT, top + _BARS + 16, f"{len(partitions)} partitions, {hot} hot")


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _time(timestamp_ms: float) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
