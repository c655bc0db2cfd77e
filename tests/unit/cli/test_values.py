import contextlib
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli import values
from penstock.cli.values import End, Instant, Offset, Start

NOW_MS = 1_763_193_600_000  # 2025-11-15T08:00:00Z


@given(
    st.integers(0, 10**6),
    st.sampled_from([("ms", 1), ("s", 1000), ("h", 3_600_000), ("d", 86_400_000)]),
)
def test_a_duration_is_its_number_times_its_unit(number: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    assert values.parse_duration_ms(f"{number}{name}") == number * factor


@given(
    st.integers(0, 10**6),
    st.sampled_from([("KiB", 1024), ("kb", 1000), ("MB", 10**6), ("GiB", 2**30)]),
)
def test_a_size_is_its_number_times_its_unit(number: int, unit: tuple[str, int]) -> None:
    name, factor = unit
    assert values.config_value("segment.bytes", f"{number}{name}") == str(number * factor)


@given(st.integers(0, 2**63 - 1))
def test_kafkas_raw_numbers_pass_unchanged(number: int) -> None:
    assert values.parse_duration_ms(str(number)) == number
    assert values.config_value("segment.bytes", str(number)) == str(number)
    assert values.config_value("retention.ms", str(number)) == str(number)


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1)))
def test_a_printed_time_is_read_back_to_the_millisecond(moment: datetime) -> None:
    timestamp_ms = int(moment.replace(tzinfo=UTC).timestamp() * 1000)
    assert values.parse_time_ms(values.format_time(timestamp_ms), now_ms=NOW_MS) == timestamp_ms


@given(st.text(max_size=20))
def test_any_text_is_a_position_or_a_value_error(text: str) -> None:
    for parse in (
        lambda: values.parse_position(text, now_ms=NOW_MS),
        lambda: values.parse_duration_ms(text),
    ):
        with contextlib.suppress(ValueError):
            parse()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", Start()),
        ("beginning", Start()),  # as kcat says
        ("end", End()),
        ("42", Offset(42)),
        ("@42", Instant(42)),
        ("-2h", Instant(NOW_MS - 7_200_000)),
        ("-15s", Instant(NOW_MS - 15_000)),
        ("now", Instant(NOW_MS)),
        ("2025-11-15T08:00:00Z", Instant(NOW_MS)),
        ("2025-11-15T09:00:00+01:00", Instant(NOW_MS)),
        ("2025-11-15T08:00", Instant(NOW_MS)),
        ("2025-11-15T08:00:00.250Z", Instant(NOW_MS + 250)),
    ],
)
def test_a_position_is_an_end_an_offset_or_a_time(text: str, expected: values.Position) -> None:
    assert values.parse_position(text, now_ms=NOW_MS) == expected
    assert type(values.parse_position(text, now_ms=NOW_MS)) is type(expected)


@pytest.mark.parametrize("text", ["-2", "-2x", "@", "@-5", "1969-01-01", "later", "", "--2h", "²"])
def test_what_is_no_position_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="expected start, end, an offset, or a time"):
        values.parse_position(text, now_ms=NOW_MS)


def test_settings_take_units_and_leave_the_rest_to_the_broker() -> None:
    assert values.config_value("retention.ms", "7d") == "604800000"
    assert values.config_value("segment.bytes", "64MiB") == "67108864"
    assert values.config_value("retention.ms", "soon") == "soon"
    assert values.config_value("retention.bytes", "-1") == "-1"
    assert values.config_value("cleanup.policy", "7d") == "7d"


@pytest.mark.parametrize(
    ("text", "pair"), [("a=b", ("a", "b")), ("a=", ("a", "")), ("a=b=c", ("a", "b=c"))]
)
def test_an_assignment_splits_at_its_first_equals_sign(text: str, pair: tuple[str, str]) -> None:
    assert values.parse_assignment(text) == pair


@pytest.mark.parametrize("text", ["a", "=b", ""])
def test_an_assignment_needs_a_key_and_an_equals_sign(text: str) -> None:
    with pytest.raises(ValueError, match="expected key=value"):
        values.parse_assignment(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 2**40, "3.0 TiB")],
)
def test_sizes_are_printed_for_people(size_bytes: int, text: str) -> None:
    assert values.format_size(size_bytes) == text


def test_a_time_outside_the_calendar_is_printed_as_a_number() -> None:
    assert values.format_time(2**63 - 1) == f"@{2**63 - 1}"
    assert values.format_time(-1) == "-"
