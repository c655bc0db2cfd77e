"""Counts become rates, sizes, skew and growth, and a picture that is well-formed."""

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.jobs.traffic.job import show_key
from penstock.spark.jobs.traffic.options import TrafficOptions
from penstock.spark.jobs.traffic.picture import draw
from penstock.spark.jobs.traffic.report import (
    DAY_MS,
    FIRST_MS,
    LAST_MS,
    Cell,
    HotKey,
    Stored,
    choose_step_ms,
    date_text,
    growth,
    lines,
    partitions,
    percentile,
    rates,
    report,
    sizes,
    slope,
)


def cell(**changes: Any) -> Cell:
    plain = Cell("t", 0, 0, 27, 10, 1000, 100, 0, 0)
    return plain._replace(**changes)


def stored(**changes: Any) -> Stored:
    return Stored("t", 0, "lz4", 2, 10, 500, 0, 1000)._replace(**changes)


def facts(cells: list[Cell], step_ms: int = 1000, count: int = 2) -> dict[str, Any]:
    topics = report(
        cells, [stored()], [HotKey("t", "<k>", 4)], step_ms=step_ms, partition_counts={"t": count}
    )
    return {"job": "traffic", "cluster": "a&b", "step_ms": step_ms, "topics": topics}


@pytest.mark.parametrize(
    ("span_ms", "step_ms"),
    [
        (0, 1000),
        (400_000, 1000),
        (401_000, 10_000),
        (7 * DAY_MS, 3_600_000),
        (9000 * DAY_MS, DAY_MS),
    ],
)
def test_intervals_are_as_short_as_a_picture_can_show(span_ms: int, step_ms: int) -> None:
    assert choose_step_ms([stored(first_ms=5, last_ms=5 + span_ms)]) == step_ms


def test_rates_count_the_time_in_which_nothing_came() -> None:
    found = rates([cell(interval=0), cell(interval=9, records=30, size_bytes=10)], 1000)
    assert found["records_per_s"] == 4
    assert found["peak_records_per_s"] == 30
    assert found["peak_at_ms"] == 9000
    assert found["peak_bytes_per_s"] == 1000
    assert (found["first_ms"], found["after_ms"]) == (0, 10_000)


def test_sizes_are_exact_where_they_can_be() -> None:
    small = cell(size_class=27, records=99, size_bytes=9900, largest_bytes=100)
    large = cell(size_class=40, records=1, size_bytes=1000, largest_bytes=1000)
    found = sizes([small, large])
    assert found == {"mean": 109.0, "p50": 107, "p95": 107, "p99": 107, "max": 1000}
    assert sizes([large])["p50"] == 1000


@given(st.dictionaries(st.integers(0, 100), st.integers(1, 50), min_size=1), st.floats(0.01, 1.0))
def test_a_percentile_is_what_sorting_finds(counts: dict[int, int], part: float) -> None:
    everything = sorted(size for size, count in counts.items() for _ in range(count))
    found = percentile(counts, part)
    below = sum(size < found for size in everything)
    upto = sum(size <= found for size in everything)
    assert below < part * len(everything) <= upto


def test_a_partition_is_hot_from_twice_the_even_share_on() -> None:
    found = partitions([cell(records=60), cell(partition=1, records=20)], [stored()], 4)
    assert [row["share"] for row in found] == [3.0, 1.0, 0.0, 0.0]
    assert [row["hot"] for row in found] == [True, False, False, False]
    assert found[0]["stored_bytes"] == 500
    assert not partitions([cell()], [], 1)[0]["hot"]


def test_growth_is_told_from_whole_days_only() -> None:
    cells = [cell(interval=day, size_bytes=100 + 10 * day) for day in range(6)]
    found = growth(cells, DAY_MS)
    assert found["bytes_per_day_change"] == 10
    assert found["days"][0] == ["1970-01-01", 100]
    assert growth(cells[:4], DAY_MS)["bytes_per_day_change"] is None


@given(st.integers(-100, 100), st.integers(0, 1000), st.integers(2, 50))
def test_the_slope_of_a_straight_line_is_its_own(step: int, start: int, count: int) -> None:
    line = {x: start + step * x for x in range(count)}
    assert slope(line, count) == pytest.approx(step)


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1000)))
def test_days_without_bytes_count_though_they_are_not_named(amounts: dict[int, int]) -> None:
    named = {day: amounts.get(day, 0) for day in range(10)}
    assert slope(amounts, 10) == pytest.approx(slope(named, 10))


@pytest.mark.parametrize("odd", [None, LAST_MS // DAY_MS, FIRST_MS // DAY_MS])
def test_one_record_of_a_time_far_away_spoils_nothing(odd: int | None) -> None:
    days = [cell(interval=day, size_bytes=100 + 10 * day) for day in range(6)]
    found = facts([*days, cell(interval=odd, records=1)], DAY_MS)
    (topic,) = found["topics"]
    assert topic["records"] == 61
    assert len(topic["growth"]["days"]) == (6 if odd is None else 7)
    assert topic["without_date"] == (1 if odd is None else 0)
    assert (topic["growth"]["bytes_per_day_change"] == 10) == (odd is None)
    assert ("1 records have times outside" in "".join(lines(found))) == (odd is None)
    assert ElementTree.fromstring(draw(found)).tag.endswith("svg")


def test_a_topic_of_nothing_but_impossible_times_has_sizes_and_no_rate() -> None:
    found = facts([cell(interval=None)])
    (topic,) = found["topics"]
    assert topic["record_bytes"]["mean"] == 100
    assert (topic["rate"]["records_per_s"], topic["rate"]["intervals"]) == (None, [])
    assert not any("  rate  " in line for line in lines(found))
    assert "no record has a time in the years 1 to 9999" in draw(found)
    assert choose_step_ms([stored(first_ms=None, last_ms=None)]) == 1000


@pytest.mark.parametrize(
    ("timestamp_ms", "shown"),
    [
        (FIRST_MS - 1, "@-62135596800001"),
        (LAST_MS, "9999-12-31"),
        (LAST_MS + 1, "@253402300800000"),
        (1_763_400_000_000_000_000, "@1763400000000000000"),
    ],
)
def test_a_time_that_dates_cannot_say_is_shown_in_milliseconds(
    timestamp_ms: int, shown: str
) -> None:
    assert date_text(timestamp_ms, "%Y-%m-%d") == shown


def test_people_get_the_numbers_that_matter() -> None:
    shown = lines(facts([cell(), cell(partition=1, records=90, interval=3)]))
    assert shown[0] == "t: 100 records, 2.0 KiB, 500 B stored"
    assert any("peak 90.0 records/s at 1970-01-01 00:00:03Z" in line for line in shown)
    assert any("<k>  4 records, 4.0%" in line for line in shown)


def test_few_records_are_not_none() -> None:
    shown = lines(facts([cell(records=1), cell(records=1, interval=99)]))
    assert any("rate      0.02 records/s" in line for line in shown), shown


def test_growth_is_told_in_words() -> None:
    days = [cell(interval=day, size_bytes=9000 - 1024 * day) for day in range(6)]
    assert "  growth    unknown: 3 whole days are needed" in lines(facts(days[:2], DAY_MS))
    told = "  growth    each day brings -1.0 KiB to the one before, over 6 days"
    assert told in lines(facts(days, DAY_MS))


def test_the_picture_is_well_formed_and_shows_hot_partitions() -> None:
    cells = [cell(partition=index, interval=index * 3) for index in range(3)]
    hot = cell(partition=3, interval=1, records=500)
    text = draw(facts([*cells, hot], count=4))
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg")
    assert "Traffic of cluster a&amp;b" in text
    assert text.count("<title>") == 4
    assert "partition 3: 500 records, 3.77 times the even share" in text
    assert "4 partitions, 1 hot (twice the even share or more); dashed: the even share" in text


def test_no_label_of_the_picture_is_cut() -> None:
    """About 0.6 of its size is as wide as a letter is."""
    name = "x" * 249
    few = report(
        [cell(topic=name, records=3)], [], [], step_ms=3_600_000, partition_counts={name: 1}
    )
    many = [cell(partition=n, records=10**9 + n, interval=n) for n in range(900)]
    most = report(many, [], [], step_ms=1000, partition_counts={"t": 900})
    root = ElementTree.fromstring(
        draw({"cluster": "c" * 22, "step_ms": 1000, "topics": [*few, *most]})
    )
    for label in root.iter("{http://www.w3.org/2000/svg}text"):
        x, width = (
            float(label.attrib["x"]),
            0.6 * float(label.attrib["font-size"]) * len(label.text or ""),
        )
        left = x - {"start": 0, "middle": width / 2, "end": width}[label.attrib["text-anchor"]]
        assert left >= 0, label.text
        assert left + width <= float(root.attrib["width"]), label.text


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (b"abc", "abc"),
        ("é".encode(), "é"),
        (b"\xff\x00", "0xff00"),
        (b"a\nb", "0x610a62"),
        (b"", ""),
    ],
)
def test_keys_are_shown_as_text_where_they_are_text(key: bytes, shown: str) -> None:
    assert show_key(key) == shown


def test_a_long_key_is_cut() -> None:
    assert len(show_key(b"x" * 10_000)) == 201


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"topics": ()}, "needs a TOPIC"),
        ({"step": 0}, "--step must be at least 1ms"),
        ({"since": 5, "until": 5}, "--since must be before --until"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrafficOptions(**{"topics": ("t",), **changes})
