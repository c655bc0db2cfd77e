"""The table of inputs: name, parser, bounds, meaning. Flags, keys and messages come from it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock.planner import quantities as q
from penstock.planner.inputs import PlanError
from penstock.planner.quantities import Parse, nearest

_CENTURY_S: Final = 100 * 365.0 * q.DAY_S


class Field(NamedTuple):
    """One input. `name` is an attribute of its class in inputs.py, and the key in the file."""

    name: str
    parse: Parse
    low: float
    high: float
    meaning: str
    sample: str
    is_whole: bool = False
    above_low: bool = False  # `low` itself is impossible

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    def read(self, value: object, place: str) -> float | int:
        """Return the checked value; raise PlanError with `place` in front."""
        try:
            number = self.parse(value)
        except ValueError as error:
            raise PlanError(f"{place}: {error}") from None
        if not self.low <= number <= self.high or (self.above_low and number == self.low):
            raise PlanError(f"{place}: {self._bounds()}, not {_shown(value)}")
        return int(number) if self.is_whole else number

    def _bounds(self) -> str:
        low = "more than" if self.above_low else "at least"
        return f"expected {low} {self._text(self.low)} and at most {self._text(self.high)}"

    def _text(self, number: float) -> str:
        if self.parse is q.parse_size:
            return q.format_bytes(number)
        if self.parse is q.parse_byte_rate:
            return q.format_byte_rate(number)
        if self.parse is q.parse_duration:
            return q.format_duration(number)
        if self.parse is q.parse_share:
            return q.format_share(number)
        return q.format_count(number)


def _count(name: str, low: float, high: float, meaning: str, sample: str) -> Field:
    return Field(name, q.parse_count, low, high, meaning, sample, is_whole=True)


def _positive(name: str, parse: Parse, high: float, meaning: str, sample: str) -> Field:
    return Field(name, parse, 0, high, meaning, sample, above_low=True)


def _share(name: str, meaning: str, sample: str) -> Field:
    return Field(name, q.parse_share, 0, 1, meaning, sample)


TOPIC: Final = (
    Field("rate", q.parse_message_rate, 0, 1e12, "messages a second, average", "1M/s"),
    Field("message", q.parse_size, 1, 1e9, "size of a message: key, value and headers", "1KB"),
    Field("peak", q.parse_number, 1, 1000, "highest rate / average rate", "3"),
    _positive("retention", q.parse_duration, _CENTURY_S, "how long messages are kept", "7d"),
    _count("replication_factor", 1, 100, "replicas of a partition", "3"),
    _count("min_insync_replicas", 1, 100, "replicas that acks=all waits for at least", "2"),
    _count("groups", 0, 10_000, "consumer groups that read every message", "2"),
    _count("members", 0, 1_000_000, "consumers of the largest group", "12"),
    Field("compression", q.parse_ratio, 1, 100, "uncompressed bytes / compressed bytes", "3:1"),
    Field("batch", q.parse_number, 1, 1e6, "messages in a record batch", "64"),
    _count("partitions", 0, 10_000_000, "partitions (0: as many as are needed)", "48"),
    Field("segment", q.parse_size, 1e4, 2.0**31, "segment.bytes", "1GiB"),
    Field("kept", q.parse_size, 0, 1e21, "bytes of one copy, instead of rate x retention", "20GB"),
)
CLUSTER: Final = (
    _count("brokers", 1, 100_000, "check exactly so many, one on each machine", "6"),
    _count("lose", 0, 1000, "machines that may be lost at the peak", "1"),
    _count("zones", 1, 100, "zones (racks) that the machines are spread over", "3"),
    _share("cold_reads", "share of reads that the page cache misses", "5%"),
    Field("lag", q.parse_duration, 0, 365 * q.DAY_S, "how far consumers may fall behind and still read from memory", "60s"),
)  # fmt: skip
MACHINE: Final = (
    _count("cores", 1, 4096, "cores", "16"),
    Field("memory", q.parse_size, 1e8, 1e15, "memory", "64GB"),
    _positive("network", q.parse_byte_rate, 1e13, "network, each way", "10Gbit/s"),
    _positive("disk_write", q.parse_byte_rate, 1e13, "what the disks write", "500MB/s"),
    _positive("disk_read", q.parse_byte_rate, 1e13, "what the disks read", "1GB/s"),
    Field("disk", q.parse_size, 1e9, 1e18, "disk space", "7.5TB"),
    Field("price_month", q.parse_number, 0, 1e9, "price of a machine for a month, without disks", "500"),
)  # fmt: skip
PRICES: Final = (
    Field("disk_gb_month", q.parse_number, 0, 1e6, "price of a GB of disk for a month", "0.10"),
    Field("zone_gb", q.parse_number, 0, 1e6, "price of a GB across zones, both directions", "0.02"),
    Field("egress_gb", q.parse_number, 0, 1e6, "price of a GB that consumers read", "0.05"),
)
LIMITS: Final = tuple(
    Field(name, q.parse_share, 0.01, 1, f"how full {meaning} may be at the peak", "70%")
    for name, meaning in (
        ("cpu", "the cores"),
        ("network", "the network"),
        ("disk_speed", "the disks' speed"),
        ("disk_space", "the disks"),
        ("memory", "the memory"),
    )
)
CPU: Final = (
    _positive("append", q.parse_number, 1000, "CPU seconds of a leader for a GB that it appends", "0.98"),
    Field("batch", q.parse_duration, 0, 1, "CPU time of a leader for a batch", "0.019ms"),
    Field("serve_follower", q.parse_number, 0, 1000, "CPU seconds of a leader for a GB to a follower", "0.66"),
    Field("follow", q.parse_number, 0, 1000, "CPU seconds of a follower for a GB", "1.92"),
    Field("read", q.parse_number, 0, 1000, "CPU seconds for a GB to consumers", "0.19"),
)  # fmt: skip


def read_table(
    table: Mapping[str, object], fields: Iterable[Field], place: str, extra: Iterable[str] = ()
) -> dict[str, Any]:
    """Return a table's checked values by name. The caller reads the `extra` keys."""
    known = {field.name: field for field in fields}
    read: dict[str, Any] = {}
    for key, value in table.items():
        if key in known:
            read[key] = known[key].read(value, f"{place}{key}")
        elif key not in extra:
            names = [*known, *extra]
            hint = nearest(key, names) or f" (known: {', '.join(names)})"
            raise PlanError(f"{place}{key}: unknown key{hint}")
    return read


def _shown(value: object) -> str:
    text = str(value).strip()
    return text if len(text) <= 40 else f"{text[:37]}..."
