import math
import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.http import exposition
from penstock.telemetry.registry import Registry

SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[a-zA-Z_]\w*=\"(?:[^\"\\\n]|\\[\\n\"])*\",?)*)\})?"
    r" (?P<value>\S+)\n"
)
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\[\\n"])*)"')


def render(registry: Registry) -> str:
    return "".join(line for family in registry.families() for line in exposition.lines(family))


def unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)


def test_every_kind_renders_as_the_format_says() -> None:
    registry = Registry()
    registry.counter("seen_total", "Things seen.", ["topic"]).labels("orders").value += 3
    registry.gauge("level", "How full.").labels().value = 0.5
    registry.gauges_from("size_bytes", "Sizes.", ["topic"], lambda: [(("a",), 1), (("b",), 2)])
    duration = registry.histogram("took_ms", "Time.", ["request"], bounds=(1, 2.5)).labels("Fetch")
    for value in (0.5, 1, 2, 100):
        duration.observe(value)
    assert render(registry) == (
        "# HELP seen_total Things seen.\n"
        "# TYPE seen_total counter\n"
        'seen_total{topic="orders"} 3\n'
        "# HELP level How full.\n"
        "# TYPE level gauge\n"
        "level 0.5\n"
        "# HELP size_bytes Sizes.\n"
        "# TYPE size_bytes gauge\n"
        'size_bytes{topic="a"} 1\n'
        'size_bytes{topic="b"} 2\n'
        "# HELP took_ms Time.\n"
        "# TYPE took_ms histogram\n"
        'took_ms_bucket{request="Fetch",le="1.0"} 2\n'
        'took_ms_bucket{request="Fetch",le="2.5"} 3\n'
        'took_ms_bucket{request="Fetch",le="+Inf"} 4\n'
        'took_ms_sum{request="Fetch"} 103.5\n'
        'took_ms_count{request="Fetch"} 4\n'
    )


@given(st.lists(st.text(), min_size=1, max_size=5, unique=True))
def test_any_label_value_is_one_line_and_reads_back_as_it_was(values: list[str]) -> None:
    registry = Registry()
    family = registry.counter("seen_total", "Things seen.", ["topic"])
    for number, value in enumerate(values):
        family.labels(value).value = number
    samples = render(registry).split("\n", 2)[2]
    found = {}
    position = 0
    while position < len(samples):
        match = SAMPLE.match(samples, position)
        assert match is not None, samples[position:]
        ((_, label),) = LABEL.findall(match["labels"])
        found[unescape(label)] = float(match["value"])
        position = match.end()
    assert found == {value: number for number, value in enumerate(values)}


def test_help_is_escaped_into_one_line() -> None:
    registry = Registry()
    registry.counter("seen_total", 'a\nb\\c "d"')
    assert render(registry).splitlines()[0] == r'# HELP seen_total a\nb\\c "d"'


@given(st.floats())
def test_a_value_reads_back_as_the_same_float(value: float) -> None:
    read = float(exposition.number(value).replace("Inf", "inf"))
    assert read == value or (math.isnan(read) and math.isnan(value))


def test_values_that_are_not_numbers_have_prometheus_names() -> None:
    names = [exposition.number(value) for value in (math.inf, -math.inf, math.nan)]
    assert names == ["+Inf", "-Inf", "NaN"]


@given(st.lists(st.floats(0, 100), max_size=30))
def test_buckets_only_grow_and_end_with_the_count(values: list[float]) -> None:
    registry = Registry()
    histogram = registry.histogram("took_ms", "Time.", bounds=(1, 10, 50)).labels()
    for value in values:
        histogram.observe(value)
    text = render(registry)
    buckets = [int(count) for count in re.findall(r"took_ms_bucket\S+ (\d+)", text)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == len(values)
    assert f"took_ms_count {len(values)}\n" in text
