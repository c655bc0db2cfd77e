"""Draw a traffic report as SVG text: rates over time above, partitions below, one band per topic.

Light or dark as the reader's screen is. Without styles, dark on white.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from xml.sax.saxutils import escape

from penstock.spark.jobs.traffic.report import DAY_MS, date_text

_WIDTH: Final = 960
_LEFT: Final = 90
_RIGHT: Final = 30
_PLOT: Final = _WIDTH - _LEFT - _RIGHT
_RATES: Final = 160  # height
_BARS: Final = 70
_TITLE: Final = 62
_BAND: Final = _RATES + _BARS + 124
_LABEL: Final = 14
_MOST_BARS: Final = 400
_WIDEST_BAR: Final = 60
_NUMBER: Final = 40  # width of the room for a partition's number
_LONGEST_NAME: Final = 70
_TICKS: Final = 4
_INK, _FAINT, _LINE, _AREA, _HOT = "#1f2430", "#8a91a0", "#2563a8", "#c9def3", "#c2410c"
_STYLE: Final = """<style>
@media (prefers-color-scheme: dark) {
  .paper { fill: #14171f } .ink { fill: #e6e9ef } .faint { stroke: #6b7280 } .mean { stroke: #e6e9ef }
  .area { fill: #1e3a5f; stroke: #6aaef2 } .bar { fill: #6aaef2 } .hot { fill: #fb923c }
}
</style>"""
_UNITS: Final = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))


def draw(facts: Mapping[str, Any]) -> str:
    """`facts`: the summary of a traffic job."""
    topics = facts["topics"]
    height = _TITLE + _BAND * len(topics)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12">',
        _STYLE,
        f'<rect class="paper" width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(_LEFT, 26, f"Traffic of cluster {facts['cluster']}", size=16),
        _text(
            _LEFT, 42, "Records/s over time, and records of each partition. Times are UTC.", size=10
        ),
    ]
    for index, topic in enumerate(topics):
        parts.extend(_band(topic, _TITLE + 18 + index * _BAND, facts["step_ms"]))
    return "\n".join([*parts, "</svg>", ""])


def _band(topic: Mapping[str, Any], top: int, step_ms: int) -> Iterator[str]:
    name = topic["topic"]
    shown = name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…"
    yield _text(_LEFT, top, f"{shown}: {topic['records']:,} records", size=14)
    yield from _rates(topic["rate"], top + 16, step_ms)
    yield from _bars(topic["partitions"], top + _RATES + 62)


def _rates(rate: Mapping[str, Any], top: int, step_ms: int) -> Iterator[str]:
    if not rate["intervals"]:
        yield _text(_LEFT, top + _RATES / 2, "no record has a time in the years 1 to 9999")
        return
    first_ms, after_ms = float(rate["first_ms"]), float(rate["after_ms"])
    peak = max(records for _, records, _ in rate["intervals"]) * 1000 / step_ms
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
    yield from _times(first_ms, after_ms, top, bottom)
    yield f'<polygon class="area" points="{path}" fill="{_AREA}" stroke="{_LINE}"/>'
    mean = sum(records for _, records, _ in rate["intervals"]) * 1000 / (after_ms - first_ms)
    yield from _levels(mean, peak, top)


def _times(first_ms: float, after_ms: float, top: int, bottom: int) -> Iterator[str]:
    """The first and the last are written towards the middle, so that none is cut."""
    for tick in range(_TICKS + 1):
        x = _LEFT + _PLOT * tick / _TICKS
        anchor = {0: "start", _TICKS: "end"}.get(tick, "middle")
        at_ms = first_ms + (after_ms - first_ms) * tick / _TICKS
        yield _line(x, top, x, bottom + 4, "faint", _FAINT, width=0.5)
        yield _text(x, bottom + 17, _time(at_ms, after_ms - first_ms), anchor=anchor)


def _levels(mean: float, peak: float, top: int) -> Iterator[str]:
    """Peak and mean, each with its number; the mean's moves down where they would lie over each other."""
    y = top + _RATES * (1 - min(1.0, mean / peak))
    yield _line(_LEFT, y, _LEFT + _PLOT, y, "mean", _INK, dash="4 4")
    yield _text(_LEFT - 8, top + 4, f"{_short(peak)}/s", anchor="end")
    yield _text(_LEFT - 8, top + 4 + _LABEL, "peak", anchor="end", size=10)
    label = min(max(y + 4, top + 4 + 2.4 * _LABEL), top + _RATES - _LABEL)
    yield _text(_LEFT - 8, label, f"{_short(mean)}/s", anchor="end")
    yield _text(_LEFT - 8, label + _LABEL - 2, "mean", anchor="end", size=10)


def _gap(last_x: float, next_x: float, bottom: int) -> list[tuple[float, float]]:
    """Where nothing came, the line is on the ground."""
    return [(last_x, float(bottom)), (next_x, float(bottom))] if next_x - last_x > 0.01 else []


def _bars(partitions: Sequence[Mapping[str, Any]], top: int) -> Iterator[str]:
    """Many partitions: the busiest."""
    shown = sorted(partitions, key=lambda row: -row["records"])[:_MOST_BARS]
    shown.sort(key=lambda row: row["partition"])
    most, width = max(row["records"] for row in shown), min(_WIDEST_BAR, _PLOT / len(shown))
    for index, row in enumerate(shown):
        height = _BARS * row["records"] / max(1, most)
        kind, color = ("hot", _HOT) if row["hot"] else ("bar", _LINE)
        yield (
            f'<rect class="{kind}" x="{_LEFT + index * width:.1f}" y="{top + _BARS - height:.1f}" '
            f'width="{width * (0.8 if width > 4 else 1):.1f}" height="{height:.1f}" fill="{color}">'
            f"<title>partition {row['partition']}: {row['records']:,} records, "
            f"{row['share']} times the even share</title></rect>"
        )
    yield from _numbers([row["partition"] for row in shown], width, top + _BARS + 14)
    if len(partitions) > 1:
        even = sum(row["records"] for row in partitions) / len(partitions)
        y = top + _BARS * (1 - even / max(1, most))
        yield _line(_LEFT, y, _LEFT + width * len(shown), y, "mean", _INK, dash="4 4")
    yield _text(_LEFT - 8, top + 8, _short(most), anchor="end")
    yield _text(_LEFT - 8, top + 8 + _LABEL - 2, "records", anchor="end", size=10)
    yield _text(_LEFT, top + _BARS + 30, _partitions(partitions, len(shown)))


def _numbers(partitions: Sequence[int], width: float, y: float) -> Iterator[str]:
    """As many as there is room for."""
    every = next(step for step in (1, 2, 5, 10, 20, 50) if step * width >= _NUMBER)
    for index in range(0, len(partitions), every):
        x = _LEFT + (index + 0.4) * width
        yield _text(x, y, str(partitions[index]), anchor="middle", size=10)


def _partitions(partitions: Sequence[Mapping[str, Any]], shown: int) -> str:
    count, hot = len(partitions), sum(row["hot"] for row in partitions)
    said = f"{count} partition{'s' * (count > 1)}"
    if shown < count:
        said += f", the busiest {shown} shown"
    if hot:
        said += f", {hot} hot (twice the even share or more)"
    return f"{said}; dashed: the even share" if count > 1 else said


def _line(
    x1: float,
    y1: float,
    x2: float,
    y2: float,
    kind: str,
    color: str,
    *,
    width: float = 1,
    dash: str = "none",
) -> str:
    return (
        f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        f'stroke="{color}" stroke-width="{width}" stroke-dasharray="{dash}"/>'
    )


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text class="ink" x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{_INK}">{escape(text)}</text>'
    )


def _short(number: float) -> str:
    """Three digits that count.

    >>> _short(47_226_491), _short(443.4), _short(0.00083)
    ('47.2 M', '443', '0.00083')
    """
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def _time(timestamp_ms: float, span_ms: float) -> str:
    """As exact as the time that is shown needs it."""
    seconds = "" if span_ms >= 4 * DAY_MS else ":%S"
    return date_text(timestamp_ms, f"%Y-%m-%d %H:%M{seconds}")
