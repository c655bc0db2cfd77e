"""What `format("penstock")` reads: plans made on the driver, and Arrow batches that tasks read and decode.

Readers are pickled, so nothing is opened before it is asked for. A plan is a function of the offsets that it is given
and of what the brokers say; where a query stands is kept by Spark's checkpoint alone. A reader does not see that: until the
first batch is in it, a query that is started again takes `latest`, or a timestamp, anew.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.client.errors import ClientError
from penstock.model.ids import TopicPartition
from penstock.spark.cluster import Cluster, Location
from penstock.spark.fetching import RangeReader
from penstock.spark.offsets import (
    EARLIEST,
    LATEST,
    DataLoss,
    OffsetJson,
    OffsetRange,
    Offsets,
    all_named,
    available,
    batch_ranges,
    from_json,
    limited,
    split,
    stream_ranges,
    to_json,
)
from penstock.spark.options import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    End,
    Limit,
    OptionError,
    Shape,
    SourceOptions,
    Subscription,
    parse_batch,
    parse_shape,
    parse_stream,
)
from penstock.spark.rows import decoded, raw_batches, schema_of

_log: Final = logging.getLogger("penstock.spark")


class Range(InputPartition):
    """What one task reads."""

    def __init__(self, range_: OffsetRange, location: Location) -> None:
        super().__init__(range_)
        self.range = range_
        self.location = location


class _Reader:
    """What batch and stream have in common: the task's side, and resolving offsets."""

    def __init__(self, options: SourceOptions, shape: Shape, schema: StructType) -> None:
        self._options = options
        self._shape = _checked(shape, schema)
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs in a task."""
        if isinstance(partition, Range):  # a plan without ranges has one that is none
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            rows = raw_batches if self._shape.raw else decoded
            how = self._options.fetching
            with RangeReader(partition.range, partition.location, how) as fetches:
                yield from rows(fetches, partition.range, arrow, how.read_committed)

    def _tasks(
        self, ranges: Sequence[OffsetRange], locations: Mapping[TopicPartition, Location]
    ) -> list[InputPartition]:
        pieces = split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )
        return [Range(piece, locations[piece.partition]) for piece in pieces]

    def _report(self, losses: Iterable[str]) -> None:
        for loss in losses:
            if self._options.fetching.fail_on_data_loss:
                raise DataLoss(f"{loss}; to go on, set the option failOnDataLoss to false")
            _log.warning("data-lost goes-on-because=%s reason=%s", "failOnDataLoss=false", loss)


class BatchReader(_Reader, DataSourceReader):
    """One plan, when the query runs."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(_warned(parse_batch(options)), parse_shape(options), schema)

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster(options.fetching)
        try:
            locations = cluster.partitions(options.subscription)
            start = resolved(cluster, locations, options.starting, "starting", options.or_latest)
            end = resolved(cluster, locations, options.ending, "ending", or_latest=True)
        finally:
            cluster.close()
        planned = batch_ranges(start, end)
        self._report(planned.losses)
        return self._tasks(planned.ranges, locations)


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as the query, on the driver; copies of it read in tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        super().__init__(_warned(parse_stream(options)), parse_shape(options), schema)
        self._cluster: Cluster | None = None
        self._known = _Known(self._options.subscription, self._options.metadata_ttl_ms)
        self._initial: Offsets | None = None
        self._latest: Offsets = {}
        self._has_end = False  # Trigger.AvailableNow
        self._target: Offsets | None = None  # where it ends
        self._last_trigger_s: float | None = None
        self._published: Offsets = {}
        self._topic_ids: dict[str, bytes] = {}

    def initialOffset(self) -> OffsetJson:
        """Asked for twice by Spark for the first batch, before its end is fixed and after: the end must not come to lie before the start."""
        if self._initial is None:
            locations = self._known.locations(self._connected())
            starting, or_latest = self._options.starting, self._options.or_latest
            self._initial = resolved(self._connected(), locations, starting, "starting", or_latest)
        return to_json(self._initial)

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is what there is when the first offset is asked for: only then is known what was read before."""
        self._has_end = True

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark gives it back to `latestOffset`, or says that there is none."""
        most, least = self._options.max_offsets_per_trigger, self._options.min_offsets_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        begin = from_json(start)
        self._publish(begin)  # all of it was processed
        self._latest = self._target or self._now(begin)
        if self._has_end:
            self._target = self._latest
        earliest = self._connected().earliest(self._latest.keys() - begin.keys())
        if self._options.fetching.fail_on_data_loss:  # before the end is written to the checkpoint
            self._report(stream_ranges(begin, self._latest, earliest).losses)
        return to_json(self._limited(begin, self._latest, earliest, limit))

    def reportLatestOffset(self) -> OffsetJson | None:
        return to_json(self._latest) or None

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        begin, finish = from_json(start), from_json(end)
        if begin == finish:
            return []
        cluster = self._connected()
        locations = self._locations(finish)
        new = finish.keys() - begin.keys()
        planned = stream_ranges(begin, finish, cluster.earliest(new & locations.keys()))
        self._report(planned.losses)
        if gone := sorted({r.partition for r in planned.ranges} - locations.keys()):
            self._report(f"{partition} was deleted before it was read" for partition in gone)
        return self._tasks([r for r in planned.ranges if r.partition in locations], locations)

    def commit(self, end: OffsetJson) -> None:
        self._publish(from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None

    def _connected(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options.fetching)
        return self._cluster

    def _locations(self, offsets: Offsets) -> dict[TopicPartition, Location]:
        """Of what is subscribed to. A topic of `offsets` that is missing is a loss, and not a wrong name."""
        topics = {partition.topic for partition in offsets}
        locations = self._known.locations(self._connected(), but_for=topics)
        ids = {partition.topic: location.topic_id for partition, location in locations.items()}
        before, self._topic_ids = self._topic_ids, {**self._topic_ids, **ids}
        self._report(
            f"topic {topic!r} was deleted and created again while it was read"
            for topic, topic_id in ids.items()
            if topic in topics and before.get(topic, topic_id) != topic_id
        )
        return locations

    def _now(self, start: Offsets) -> Offsets:
        """Where each partition ends. One that ends before `start` is asked again: it may be a leader that is new."""
        cluster, how = self._connected(), self._options.fetching
        locations = self._locations(start)
        latest = cluster.latest(locations)
        for _ in range(how.offset_attempts - 1):
            if all(offset >= start.get(partition, 0) for partition, offset in latest.items()):
                break
            time.sleep(how.offset_pause_ms / 1000)
            latest = cluster.latest(locations)
        return latest

    def _limited(
        self, start: Offsets, latest: Offsets, earliest: Offsets, limit: ReadLimit
    ) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return latest
        least = self._options.min_offsets_per_trigger
        if least is not None and not self._has_end:
            now_s, delay_s = time.monotonic(), self._options.max_trigger_delay_ms / 1000
            is_due = self._last_trigger_s is None or now_s - self._last_trigger_s >= delay_s
            if not is_due and available(start, latest, earliest) < least:
                return start
            self._last_trigger_s = now_s
        if isinstance(limit, ReadMaxRows):
            return limited(limit.max_rows, start, latest, earliest)
        return latest

    def _publish(self, offsets: Offsets) -> None:
        """A query does not fail for want of an audience."""
        group = self._options.group
        if group is None or not offsets or offsets == self._published:
            return
        self._published = offsets
        try:
            self._connected().publish(group, offsets)
        except ClientError as error:
            _log.warning("progress-not-published group=%s error=%s", group, error)


class _Known:
    """The partitions of a subscription, asked again when the answer is older than it may be."""

    def __init__(self, subscription: Subscription, ttl_ms: int) -> None:
        self._subscription = subscription
        self._ttl_ms = ttl_ms
        self._asked_s = 0.0
        self._locations: dict[TopicPartition, Location] = {}

    def locations(
        self, cluster: Cluster, *, but_for: Iterable[str] = ()
    ) -> dict[TopicPartition, Location]:
        now_s = time.monotonic()
        if not self._locations or (now_s - self._asked_s) * 1000 >= self._ttl_ms:
            self._locations = cluster.partitions(self._subscription, but_for=but_for)
            self._asked_s = now_s
        return self._locations


def resolved(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    limit: Limit,
    which: str,
    or_latest: bool,
) -> Offsets:
    """`limit` as an offset for each partition."""
    offsets = _named(cluster, list(partitions), limit, which, or_latest)
    named = {place: [p for p, o in offsets.items() if o == place] for place in (EARLIEST, LATEST)}
    return offsets | cluster.earliest(named[EARLIEST]) | cluster.latest(named[LATEST])


def _named(
    cluster: Cluster, wanted: list[TopicPartition], limit: Limit, which: str, or_latest: bool
) -> Offsets:
    match limit:
        case End():
            return dict.fromkeys(wanted, limit.value)
        case AtOffsets(given):
            all_named(given, wanted, f"{which}Offsets")
            return dict(given)
        case AtTimestamps(given):
            all_named(given, wanted, f"{which}OffsetsByTimestamp")
            return _at(cluster, given, or_latest)
        case AtTimestamp(timestamp_ms):
            return _at(cluster, dict.fromkeys(wanted, timestamp_ms), or_latest)


def _at(cluster: Cluster, timestamps_ms: Offsets, or_latest: bool) -> Offsets:
    found = cluster.at_timestamps(timestamps_ms)
    for partition, offset in found.items():
        if offset == LATEST and not or_latest:
            raise OptionError(
                f"{partition} has no record from timestamp {timestamps_ms[partition]} on; "
                "to start at its end, set startingOffsetsByTimestampStrategy to latest"
            )
    return found


def _checked(shape: Shape, schema: Any) -> Shape:
    """A schema that the user gave may leave columns out, and nothing else."""
    known = {field.name: field.dataType for field in schema_of(Shape(shape.raw, ())).fields}
    for field in schema.fields:
        if known.get(field.name) != field.dataType:
            raise OptionError(
                f"the schema of the penstock source is fixed: it has no column {field.name} of type "
                f"{field.dataType.simpleString()}; leave .schema(...) out, or name some of its columns"
            )
    return Shape(shape.raw, tuple(schema.names))


def _warned(options: SourceOptions) -> SourceOptions:
    for name in options.ignored:
        _log.warning("option-without-effect option=%s", name)
    return options
