"""Metrics as text: the Prometheus text format, version 0.0.4. Pure: families in, lines out."""

from collections.abc import Iterator, Sequence
from typing import Final

from penstock.telemetry.instruments import Counter, Gauge, Histogram
from penstock.telemetry.registry import AnyFamily, LabelValues, SampledFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_INFINITY: Final = float("inf")


def lines(family: AnyFamily) -> Iterator[str]:
    """Every line of one metric, each with its line end. Children that appear meanwhile are left for the next scrape."""
    yield f"# HELP {family.name} {family.help.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {family.name} {family.kind}\n"
    if isinstance(family, SampledFamily):
        for values, value in family.samples():
            yield _line(family.name, _labels(family.label_names, values), value)
        return
    children: list[tuple[LabelValues, Counter | Gauge | Histogram]] = [*family.children.items()]
    for values, instrument in children:
        labels = _labels(family.label_names, values)
        if isinstance(instrument, Histogram):
            yield from _histogram_lines(family.name, labels, instrument)
        else:
            yield _line(family.name, labels, instrument.value)


def number(value: float) -> str:
    """A value as Prometheus reads it."""
    if value != value:
        return "NaN"
    if value in (_INFINITY, -_INFINITY):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def _histogram_lines(name: str, labels: Sequence[str], histogram: Histogram) -> Iterator[str]:
    counts = list(histogram.counts)
    total = 0
    for bound, count in zip((*histogram.bounds, _INFINITY), counts, strict=True):
        total += count
        yield _line(f"{name}_bucket", [*labels, f'le="{number(float(bound))}"'], total)
    yield _line(f"{name}_sum", labels, histogram.sum)
    yield _line(f"{name}_count", labels, total)


def _labels(names: Sequence[str], values: LabelValues) -> list[str]:
    return [
        f'{name}="{value.translate(_LABEL_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    ]


def _line(name: str, labels: Sequence[str], value: float) -> str:
    return (
        f"{name}{{{','.join(labels)}}} {number(value)}\n" if labels else f"{name} {number(value)}\n"
    )
