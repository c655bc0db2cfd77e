"""Quantities are read as people write them, and impossible ones are refused with what was expected."""

import pytest

from penstock.planner import quantities as q


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (q.parse_size, "1KB", 1000),
        (q.parse_size, "1kb", 1000),
        (q.parse_size, "64KiB", 65_536),
        (q.parse_size, "7.5TB", 7.5e12),
        (q.parse_size, "2 PB", 2e15),
        (q.parse_size, 1500, 1500),
        (q.parse_size, "1_500 B", 1500),
        (q.parse_duration, "7d", 604_800),
        (q.parse_duration, "500ms", 0.5),
        (q.parse_duration, "1.5h", 5400),
        (q.parse_message_rate, "5000", 5000),
        (q.parse_message_rate, "1M/s", 1e6),
        (q.parse_message_rate, "1B/day", 1e9 / 86_400),
        (q.parse_message_rate, "60k/min", 1000),
        (q.parse_byte_rate, "10Gbit/s", 1.25e9),
        (q.parse_byte_rate, "500MB/s", 5e8),
        (q.parse_byte_rate, "1GiB/s", 2**30),
        (q.parse_share, "70%", 0.7),
        (q.parse_share, 0.7, 0.7),
        (q.parse_ratio, "3:1", 3),
        (q.parse_ratio, 2.5, 2.5),
        (q.parse_count, "10k", 10_000),
        (q.parse_count, 12, 12),
        (q.parse_number, "1e3", 1000),
    ],
)
def test_a_quantity_is_read(parse: q.Parse, text: object, value: float) -> None:
    assert parse(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "value", "reason"),
    [
        (q.parse_size, "5lb", "expected a size such as 1KB, 64KiB or 7.5TB, not '5lb'"),
        (q.parse_size, "", "expected a size"),
        (q.parse_size, "KB", "expected a size"),
        (q.parse_size, "1KB/s", "expected a size"),
        (q.parse_size, "1.2.3KB", "expected a size"),
        (q.parse_size, True, "expected a size"),
        (q.parse_size, [1], "expected a size"),
        (q.parse_size, None, "expected a size"),
        (q.parse_size, "nan", "not a finite number"),
        (q.parse_size, "-inf", "not a finite number"),
        (q.parse_size, float("nan"), "not a finite number"),
        (q.parse_size, float("inf"), "not a finite number"),
        (q.parse_size, "1e308TB", "not a finite number"),
        (q.parse_size, "9" * 400, "not a finite number"),
        (q.parse_size, 10**400, "not a finite number"),
        (q.parse_duration, "7 fortnights", "expected a duration"),
        (q.parse_message_rate, "5/fortnight", "expected messages a second"),
        (q.parse_message_rate, "5MB/s/s", "expected messages a second"),
        (q.parse_byte_rate, "10Gbps", "expected bytes a second"),
        (q.parse_count, "2.5", "expected a whole number"),
        (q.parse_count, "\u0663", "expected a whole number"),
        (q.parse_ratio, "3:2", "expected a ratio"),
    ],
)
def test_an_impossible_quantity_is_refused(parse: q.Parse, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as told:
        parse(value)
    assert len(str(told.value)) < 150


def test_an_integer_that_python_does_not_print_is_refused() -> None:
    with pytest.raises(ValueError, match="thousands of digits is not a finite number"):
        q.parse_size(10**6000)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (q.format_bytes(0), "0 B"),
        (q.format_bytes(61.5), "61.5 B"),
        (q.format_bytes(999.96), "1 KB"),
        (q.format_bytes(1012.95), "1.01 KB"),
        (q.format_bytes(1.847e15), "1.85 PB"),
        (q.format_bytes(604.8e12), "605 TB"),
        (q.format_count(9999), "9,999"),
        (q.format_count(12_500), "12.5 k"),
        (q.format_count(1e9), "1 bn"),
        (q.format_count(0.5), "0.5"),
        (q.format_share(0.001), "< 1%"),
        (q.format_share(0.667), "67%"),
        (q.format_duration(604_800), "7 d"),
        (q.format_duration(0.5), "0.5 s"),
        (q.format_money(527_459.4, "$"), "$527,459"),
        (q.format_money(12.345, "$"), "$12.35"),
        (q.format_money(0.20071, "$"), "$0.201"),
        (q.format_money(0.0000123, "$"), "$0.0000123"),
        (q.format_money(0, "$"), "$0"),
    ],
)
def test_a_quantity_is_shown(text: str, shown: str) -> None:
    assert text == shown
