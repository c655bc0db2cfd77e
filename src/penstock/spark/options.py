"""The options of `format("penstock")` when it reads: those of Spark's own `kafka` source, and a few more.

Every one is honoured, or refused by its name. What only tunes a client that is not used here is named as `ignored`.

Ours: `mode` (`records`, or `rawbatches`: a row for each stored batch), `columns` (those to read, with commas), `groupId`.
A stream publishes its progress as the offsets of a consumer group that has no members, so that its lag can be seen with
`penstock group describe`. It does so only when a name is given: `groupId` or `kafka.group.id` is the name itself;
`groupIdPrefix` makes one of the prefix and a digest of what is read, which is the same after a restart.
"""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias, TypeVar

from penstock.model.ids import TopicPartition
from penstock.spark.kafka_options import HONOURED, refusal
from penstock.spark.offsets import EARLIEST, LATEST, Offsets, parse_offsets, parse_partitions
from penstock.spark.option_values import (
    boolean,
    buffer_bytes,
    duration_ms,
    either,
    natural,
    positive,
    ttl,
    words,
)

T = TypeVar("T")

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"
RAW_COLUMNS: Final = (
    *("topic", "partition", "baseOffset", "lastOffset", "maxTimestamp", "recordCount", "codec"),
    *("producerId", "isControl", "isTransactional", "batch"),
)

SUBSCRIPTIONS: Final = ("assign", "subscribe", "subscribePattern")
_NAMES: Final = (
    *SUBSCRIPTIONS,
    *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
    *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestampStrategy", "failOnDataLoss", "includeHeaders"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"),
    *("minPartitions", "maxRecordsPerPartition", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs"),
    *("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "partition.metadata.cache.ttl.ms"),
    *("mode", "columns", "groupId"),
)
_CANONICAL: Final = {name.lower(): name for name in _NAMES}
_STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
_KAFKA: Final = "kafka."
_FETCH_BYTES: Final = 8 << 20


class OptionError(ValueError):
    """An option is missing, wrong, or not supported; the message names it."""


class End(Enum):
    EARLIEST = EARLIEST
    LATEST = LATEST


class AtOffsets(NamedTuple):
    offsets: Offsets  # may have -2 and -1


class AtTimestamps(NamedTuple):
    timestamps_ms: Offsets


class AtTimestamp(NamedTuple):
    timestamp_ms: int


Limit: TypeAlias = End | AtOffsets | AtTimestamps | AtTimestamp


class Assign(NamedTuple):
    partitions: tuple[TopicPartition, ...]


class Subscribe(NamedTuple):
    topics: tuple[str, ...]


class Pattern(NamedTuple):
    pattern: str  # found anywhere in a topic's name


Subscription: TypeAlias = Assign | Subscribe | Pattern


class Shape(NamedTuple):
    """What rows look like."""

    raw: bool
    columns: tuple[str, ...]


class Fetching(NamedTuple):
    """How records are read."""

    bootstrap: str
    client_id: str
    rack: str  # "": any replica is as near as the leader
    read_committed: bool
    fail_on_data_loss: bool
    fetch_bytes: int
    max_wait_ms: int
    request_timeout_ms: int
    api_timeout_ms: int
    receive_buffer_bytes: int | None
    poll_timeout_ms: int  # how long a task may get nothing
    offset_attempts: int
    offset_pause_ms: int


class SourceOptions(NamedTuple):
    subscription: Subscription
    starting: Limit
    ending: Limit
    or_latest: bool  # where no record is as young as the starting timestamp
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    min_partitions: int | None
    max_records_per_partition: int | None
    metadata_ttl_ms: int
    group: str | None
    fetching: Fetching
    ignored: tuple[str, ...]  # accepted, and without effect


def parse_shape(given: Mapping[str, str]) -> Shape:
    """`mode`, `columns` and `includeHeaders`."""
    options = _Given(given)
    raw = options.read("mode", either("records", "rawbatches"), False)
    has_headers = options.read("includeHeaders", boolean, False)
    if raw and has_headers:
        raise OptionError("includeHeaders has no meaning with mode=rawbatches")
    known = RAW_COLUMNS if raw else (*COLUMNS, HEADERS)
    default = RAW_COLUMNS if raw else COLUMNS + (HEADERS,) * has_headers
    wanted = tuple(words(options.get("columns") or "")) or default
    for name in wanted:
        if name not in known:
            raise OptionError(f"columns: there is no column {name!r}; there are {', '.join(known)}")
    if len(set(wanted)) < len(wanted):
        raise OptionError(f"columns: {', '.join(wanted)} names a column twice")
    return Shape(raw, wanted)


def parse_batch(given: Mapping[str, str]) -> SourceOptions:
    options = _Given(given)
    starting = _limit(options, "starting", End.EARLIEST)
    ending = _limit(options, "ending", End.LATEST)
    if starting is End.LATEST or _has(starting, LATEST):
        raise OptionError(
            "startingOffsets cannot be latest in a batch query: nothing would be read"
        )
    if ending is End.EARLIEST or _has(ending, EARLIEST):
        raise OptionError(
            "endingOffsets cannot be earliest in a batch query: nothing would be read"
        )
    _check_order(starting, ending)
    without_effect = [name for name in _STREAM_ONLY if options.get(name) is not None]
    return _parse(options, starting, ending, without_effect)


def parse_stream(given: Mapping[str, str]) -> SourceOptions:
    options = _Given(given)
    for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
        if options.get(name) is not None:
            raise OptionError(f"{name} is for batch queries: a streaming query has no end")
    return _parse(options, _limit(options, "starting", End.LATEST), End.LATEST, [])


def _parse(
    options: "_Given", starting: Limit, ending: Limit, without_effect: list[str]
) -> SourceOptions:
    parse_shape(options.values)
    options.check_names()
    least = options.find("minOffsetsPerTrigger", positive)
    most = options.find("maxOffsetsPerTrigger", positive)
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})"
        )
    subscription = _subscription(options)
    return SourceOptions(
        subscription=subscription,
        starting=starting,
        ending=ending,
        or_latest=options.read(
            "startingOffsetsByTimestampStrategy", either("error", "latest"), False
        ),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.read("maxTriggerDelay", duration_ms, 15 * 60_000),
        min_partitions=options.find("minPartitions", positive),
        max_records_per_partition=options.find("maxRecordsPerPartition", positive),
        metadata_ttl_ms=options.read("partition.metadata.cache.ttl.ms", ttl, -1),
        group=_group(options, subscription),
        fetching=_fetching(options),
        ignored=(*without_effect, *options.ignored()),
    )


def _fetching(options: "_Given") -> Fetching:
    bootstrap = options.get("kafka.bootstrap.servers")
    if bootstrap is None:
        raise OptionError("the option kafka.bootstrap.servers is missing: host:port of a broker")
    whole = options.read("kafka.fetch.max.bytes", positive, _FETCH_BYTES)
    one = options.read("kafka.max.partition.fetch.bytes", positive, whole)
    return Fetching(
        bootstrap=bootstrap,
        client_id=options.get("kafka.client.id") or "penstock-spark",
        rack=options.get("kafka.client.rack") or "",
        read_committed=options.read(
            "kafka.isolation.level", either("read_uncommitted", "read_committed"), False
        ),
        fail_on_data_loss=options.read("failOnDataLoss", boolean, True),
        fetch_bytes=min(whole, one),
        max_wait_ms=options.read("kafka.fetch.max.wait.ms", positive, 500),
        request_timeout_ms=options.read("kafka.request.timeout.ms", positive, 30_000),
        api_timeout_ms=options.read("kafka.default.api.timeout.ms", positive, 60_000),
        receive_buffer_bytes=options.find("kafka.receive.buffer.bytes", buffer_bytes),
        poll_timeout_ms=options.read("kafkaConsumer.pollTimeoutMs", positive, 120_000),
        offset_attempts=options.read("fetchOffset.numRetries", positive, 3),
        offset_pause_ms=options.read("fetchOffset.retryIntervalMs", natural, 10),
    )


def _subscription(options: "_Given") -> Subscription:
    given = [name for name in SUBSCRIPTIONS if options.get(name) is not None]
    if len(given) != 1:
        what = "only one of" if given else "one of"
        raise OptionError(f"{what} the options {', '.join(SUBSCRIPTIONS)} must be given")
    subscription = options.find(given[0], _SUBSCRIPTION_PARSERS[given[0]])
    assert subscription is not None, "it is given"
    return subscription


def _assign(text: str) -> Subscription:
    if not (partitions := parse_partitions(text)):
        raise ValueError("it names no partition")
    return Assign(tuple(partitions))


def _subscribe(text: str) -> Subscription:
    if not (topics := words(text)):
        raise ValueError(f"it names no topic ({text!r})")
    return Subscribe(tuple(dict.fromkeys(topics)))


def _pattern(text: str) -> Subscription:
    if not text:
        raise ValueError("it is empty")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return Pattern(text)


_SUBSCRIPTION_PARSERS: Final[dict[str, Callable[[str], Subscription]]] = {
    "assign": _assign,
    "subscribe": _subscribe,
    "subscribePattern": _pattern,
}


def _group(options: "_Given", subscription: Subscription) -> str | None:
    name = options.get("groupId") or options.get("kafka.group.id")
    prefix = options.get("groupIdPrefix")
    if name is not None or prefix is None:
        return name
    return f"{prefix}-{sha256(repr(subscription).encode()).hexdigest()[:8]}"


def _limit(options: "_Given", which: str, default: End) -> Limit:
    """The most general of the options that are given: one timestamp, one for each partition, offsets."""
    timestamp_ms = options.find(f"{which}Timestamp", natural)
    if timestamp_ms is not None:
        return AtTimestamp(timestamp_ms)
    timestamps_ms = options.find(f"{which}OffsetsByTimestamp", _timestamps)
    if timestamps_ms is not None:
        return AtTimestamps(timestamps_ms)
    return options.find(f"{which}Offsets", _offset_limit) or default


def _offset_limit(text: str) -> Limit:
    if text.lower() in ("earliest", "latest"):
        return End[text.upper()]
    return AtOffsets(
        _from(EARLIEST, parse_offsets(text), "an offset, -1 (latest) or -2 (earliest)")
    )


def _timestamps(text: str) -> Offsets:
    return _from(0, parse_offsets(text), "milliseconds since 1970")


def _from(lowest: int, given: Offsets, expected: str) -> Offsets:
    """All of them, if none is lower: brokers give other numbers below 0 meanings of their own."""
    for partition, number in given.items():
        if number < lowest:
            raise ValueError(f"expected {expected} for {partition}, not {number}")
    return given


def _has(limit: Limit, offset: int) -> bool:
    return isinstance(limit, AtOffsets) and offset in limit.offsets.values()


def _check_order(starting: Limit, ending: Limit) -> None:
    """Both given for each partition: the same partitions, and no start after its end."""
    match starting, ending:
        case AtOffsets(start), AtOffsets(end):
            option = "Offsets"
        case AtTimestamps(start), AtTimestamps(end):
            option = "OffsetsByTimestamp"
        case _:
            return
    if start.keys() != end.keys():
        raise OptionError(f"starting{option} and ending{option} must name the same partitions")
    for partition, first in start.items():
        if first > end[partition] >= 0:
            raise OptionError(
                f"starting{option} of {partition} ({first}) is after its ending{option} ({end[partition]})"
            )


# How texts are read --------------------------------------------------------------------------


class _Given:
    """The options as they came, by lower-case name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = {name.lower(): str(value) for name, value in values.items()}

    def get(self, name: str) -> str | None:
        value = self.values.get(name.lower())
        return None if value is None else value.strip()

    def read(self, name: str, parse: Callable[[str], T], default: T) -> T:
        value = self.find(name, parse)
        return default if value is None else value

    def find(self, name: str, parse: Callable[[str], T]) -> T | None:
        """A text that does not parse is an OptionError with the option's name."""
        text = self.get(name)
        try:
            return None if text is None else parse(text)
        except ValueError as error:
            raise OptionError(f"option {name}: {error}") from None

    def check_names(self) -> None:
        """An option that nobody reads is a mistake."""
        for name, value in self.values.items():
            if name.startswith(_KAFKA):
                reason = refusal(name.removeprefix(_KAFKA), value)
                if reason is not None:
                    raise OptionError(reason)
            elif name not in _CANONICAL:
                near = get_close_matches(name, _CANONICAL, n=1)
                hint = f"; did you mean {_CANONICAL[near[0]]}?" if near else ""
                raise OptionError(f"the penstock source has no option {name!r}{hint}")

    def ignored(self) -> list[str]:
        names = [name for name in self.values if name.startswith(_KAFKA)]
        ignored = [name for name in names if name.removeprefix(_KAFKA) not in HONOURED]
        is_named = self.get("groupId") or self.get("kafka.group.id")
        return ignored + ["groupIdPrefix"] * bool(is_named and self.get("groupIdPrefix"))
