"""Compute rates, peaks, skew and growth from counts by partition, interval and size. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

DAY_MS: Final = 86_400_000
FIRST_MS: Final = -62_135_596_800_000  # the years 1 to 9999: what dates can say
LAST_MS: Final = 253_402_300_799_999
_STEPS_MS: Final = (
    *(1_000, 10_000, 60_000, 600_000, 3_600_000, 6 * 3_600_000),
    DAY_MS,
)
_INTERVALS: Final = 400  # about as many as a picture can show
_SIZE_CLASSES_PER_DOUBLING: Final = 4
_HOT_SHARE: Final = 2.0  # times the even share
_DAYS_FOR_GROWTH: Final = 3
_RATES: Final = (
    *("first_ms", "after_ms", "records_per_s", "bytes_per_s"),
    *("peak_records_per_s", "peak_bytes_per_s", "peak_at_ms"),
)


class Stored(NamedTuple):
    """Batches of one codec in one partition."""

    topic: str
    partition: int
    codec: str
    batches: int
    records: int
    size_bytes: int
    first_ms: int | None  # of the times that dates can say; None: there are none
    last_ms: int | None


class Cell(NamedTuple):
    """Records of one partition, interval and class of size."""

    topic: str
    partition: int
    interval: int | None  # None: of no time that dates can say, such as microseconds taken for ms
    size_class: int
    records: int
    size_bytes: int  # of keys and values
    largest_bytes: int
    without_key: int
    tombstones: int


class HotKey(NamedTuple):
    topic: str
    key: str
    records: int


def choose_step_ms(stored: Sequence[Stored]) -> int:
    """The shortest interval that gives a picture's worth of them."""
    last_ms = max((row.last_ms for row in stored if row.last_ms is not None), default=0)
    first_ms = min((row.first_ms for row in stored if row.first_ms is not None), default=0)
    span_ms = last_ms - first_ms
    return next((step for step in _STEPS_MS if span_ms / step <= _INTERVALS), DAY_MS)


def report(
    cells: Sequence[Cell],
    stored: Sequence[Stored],
    keys: Sequence[HotKey],
    *,
    step_ms: int,
    partition_counts: Mapping[str, int],
) -> list[dict[str, Any]]:
    """One entry a topic that has records, by name."""
    names = sorted({cell.topic for cell in cells})
    return [
        _topic(
            name,
            [cell for cell in cells if cell.topic == name],
            [row for row in stored if row.topic == name],
            [key for key in keys if key.topic == name],
            step_ms=step_ms,
            partition_count=partition_counts[name],
        )
        for name in names
    ]


def _topic(
    name: str,
    cells: Sequence[Cell],
    stored: Sequence[Stored],
    keys: Sequence[HotKey],
    *,
    step_ms: int,
    partition_count: int,
) -> dict[str, Any]:
    records, size_bytes = _sum(cells, "records"), _sum(cells, "size_bytes")
    stored_bytes = _sum(stored, "size_bytes")
    dated = [cell for cell in cells if cell.interval is not None]
    return {
        "topic": name,
        "records": records,
        "bytes": size_bytes,
        "stored_bytes": stored_bytes,
        "compression": round(size_bytes / stored_bytes, 2) if stored_bytes else None,
        "codecs": _by(stored, lambda row: row.codec, "size_bytes"),
        "records_per_batch": round(_sum(stored, "records") / max(1, _sum(stored, "batches")), 1),
        "without_key": _sum(cells, "without_key"),
        "tombstones": _sum(cells, "tombstones"),
        "record_bytes": sizes(cells),
        "without_date": records - _sum(dated, "records"),
        "rate": rates(dated, step_ms),
        "growth": growth(dated, step_ms),
        "partitions": partitions(cells, stored, partition_count),
        "hot_keys": [
            {"key": key.key, "records": key.records, "share": round(key.records / records, 4)}
            for key in keys
        ],
    }


def sizes(cells: Sequence[Cell]) -> dict[str, Any]:
    """Mean and largest are exact; percentiles are the upper ends of classes a fifth apart."""
    counts = _by(cells, lambda cell: cell.size_class, "records")
    largest = max(cell.largest_bytes for cell in cells)
    total = sum(counts.values())
    found: dict[str, Any] = {"mean": round(_sum(cells, "size_bytes") / total, 1)}
    for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        upper = 2 ** (percentile(counts, part) / _SIZE_CLASSES_PER_DOUBLING)
        found[name] = min(largest, int(upper))
    return {**found, "max": largest}


def percentile(counts: Mapping[int, int], part: float) -> int:
    """The first class up to which lies this part of all records."""
    wanted, seen = part * sum(counts.values()), 0
    for size_class in sorted(counts):
        seen += counts[size_class]
        if seen >= wanted:
            return size_class
    raise AssertionError("the classes together hold all records")


def rates(cells: Sequence[Cell], step_ms: int) -> dict[str, Any]:
    """By interval, with the peaks; the mean counts intervals without records too. Nothing is known of no cells."""
    if not cells:
        return {**dict.fromkeys(_RATES), "intervals": []}
    records = _by(cells, lambda cell: cell.interval, "records")
    size_bytes = _by(cells, lambda cell: cell.interval, "size_bytes")
    first, last = min(records), max(records)
    span_s, step_s = (last - first + 1) * step_ms / 1000, step_ms / 1000
    busiest = max(records, key=lambda interval: (records[interval], -interval))
    return {
        "first_ms": first * step_ms,
        "after_ms": (last + 1) * step_ms,
        "records_per_s": round(sum(records.values()) / span_s, 3),
        "bytes_per_s": round(sum(size_bytes.values()) / span_s, 1),
        "peak_records_per_s": round(records[busiest] / step_s, 3),
        "peak_bytes_per_s": round(max(size_bytes.values()) / step_s, 1),
        "peak_at_ms": busiest * step_ms,
        "intervals": [
            [interval * step_ms, records[interval], size_bytes[interval]]
            for interval in sorted(records)
        ],
    }


def growth(cells: Sequence[Cell], step_ms: int) -> dict[str, Any]:
    """Bytes of each day that has some, and how much more each day brings; the first and last day are seldom whole."""
    by_day = _by(cells, lambda cell: cell.interval * step_ms // DAY_MS, "size_bytes")
    first, last = min(by_day, default=0), max(by_day, default=-1)
    whole = {day - first - 1: amount for day, amount in by_day.items() if first < day < last}
    count = last - first - 1
    change = slope(whole, count) if count >= _DAYS_FOR_GROWTH else None
    return {
        "days": [[_date(day), by_day[day]] for day in sorted(by_day)],
        "span_days": last - first + 1,
        "bytes_per_day_change": None if change is None else round(change, 1),
    }


def slope(amounts: Mapping[int, int], count: int) -> float:
    """Of the straight line that lies nearest to `count` amounts: those that are not named are 0, and may be millions."""
    middle, squares = (count - 1) / 2, count * (count**2 - 1) / 12
    return sum((x - middle) * amount for x, amount in amounts.items()) / squares


def partitions(cells: Sequence[Cell], stored: Sequence[Stored], count: int) -> list[dict[str, Any]]:
    """`share`: 1.0 is an even share of the records; `hot`: twice that and more."""
    records = _by(cells, lambda cell: cell.partition, "records")
    size_bytes = _by(cells, lambda cell: cell.partition, "size_bytes")
    on_disk = _by(stored, lambda row: row.partition, "size_bytes")
    even = sum(records.values()) / count
    return [
        {
            "partition": index,
            "records": records.get(index, 0),
            "bytes": size_bytes.get(index, 0),
            "stored_bytes": on_disk.get(index, 0),
            "share": round(records.get(index, 0) / even, 2),
            "hot": count > 1 and records.get(index, 0) >= _HOT_SHARE * even,
        }
        for index in range(count)
    ]


# For people --------------------------------------------------------------------------------------


def lines(facts: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(line for topic in facts["topics"] for line in _lines(topic))


def _lines(topic: Mapping[str, Any]) -> Iterable[str]:
    rate, size = topic["rate"], topic["record_bytes"]
    yield f"{topic['topic']}: {topic['records']:,} records, {_size(topic['bytes'])}, {_size(topic['stored_bytes'])} stored"
    if rate["intervals"]:
        yield (
            f"  rate      {_rate(rate['records_per_s'])} records/s, {_size(rate['bytes_per_s'])}/s; "
            f"peak {_rate(rate['peak_records_per_s'])} records/s at {_time(rate['peak_at_ms'])}"
        )
    if topic["without_date"]:
        yield (
            f"  times     {topic['without_date']:,} records have times outside the years 1 to 9999, "
            "and are in neither rate nor growth"
        )
    yield f"  size      mean {size['mean']:,.0f} B, p50 {size['p50']:,} B, p99 {size['p99']:,} B, largest {size['max']:,} B"
    change = topic["growth"]["bytes_per_day_change"]
    yield f"  growth    {_change(change, topic['growth']['span_days'])}"
    hot = [
        f"{row['partition']} ({row['share']} times the even share)"
        for row in topic["partitions"]
        if row["hot"]
    ]
    yield f"  partitions {len(topic['partitions'])}, hot: {', '.join(hot) or 'none'}"
    for key in topic["hot_keys"]:
        yield f"  key       {key['key']}  {key['records']:,} records, {key['share']:.1%}"


def _change(change: float | None, days: int) -> str:
    if change is None:
        return f"unknown: {_DAYS_FOR_GROWTH} whole days are needed"
    sign = "+" if change >= 0 else "-"
    return f"each day brings {sign}{_size(abs(change))} to the one before, over {days} days"


def _rate(per_s: float) -> str:
    """Few are not none."""
    return f"{per_s:,.1f}" if per_s >= 1 else f"{per_s:.2g}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def _time(timestamp_ms: int) -> str:
    return date_text(timestamp_ms, "%Y-%m-%d %H:%M:%SZ")


def _date(day: int) -> str:
    return date_text(day * DAY_MS, "%Y-%m-%d")


def date_text(timestamp_ms: float, form: str) -> str:
    """What dates cannot say is given as options take it, such as @1763400000000000: intervals may begin before a time."""
    if not FIRST_MS <= timestamp_ms <= LAST_MS:
        return f"@{timestamp_ms:.0f}"
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime(form)


def _sum(rows: Iterable[Any], name: str) -> int:
    return sum(int(getattr(row, name)) for row in rows)


def _by(rows: Iterable[Any], key: Callable[[Any], Any], name: str) -> dict[Any, int]:
    found: defaultdict[Any, int] = defaultdict(int)
    for row in rows:
        found[key(row)] += int(getattr(row, name))
    return dict(found)
