"""Compare two sides: classify each offset, or each record. DataFrame -> DataFrame.

A side has the columns topic, partition, offset and digest. The left side is the reference, and the
right side is checked against it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from penstock.model.ids import TopicPartition

_PLACE: Final = ("topic", "partition", "offset")
_LIMITS: Final = (
    "topic string, partition int, left_first bigint, right_first bigint, right_after bigint, "
    "if_only_left string, if_only_right string, left_after bigint"
)


class Kind(StrEnum):
    AGREED = "agreed"
    MISSING = "missing"
    DUPLICATE = "duplicate"
    EXTRA = "extra"  # only the right side has it
    CHANGED = "changed"
    REORDERED = "reordered"  # it is there, at another place in the order
    BEHIND = "behind"  # the right side is not so far yet
    EXPIRED = "expired"  # one side has no longer what is so old
    COMPACTED = "compacted"
    UNCLAIMED = "unclaimed"  # not in the ledger
    UNACKNOWLEDGED = "unacknowledged"  # in the ledger without an offset, and there
    REPEATED = "repeated"  # by a producer that may do that


OFFENDING: Final = (Kind.MISSING, Kind.DUPLICATE, Kind.REORDERED, Kind.CHANGED, Kind.EXTRA)
LEGAL: Final = (
    *(Kind.BEHIND, Kind.EXPIRED, Kind.COMPACTED),
    *(Kind.UNCLAIMED, Kind.UNACKNOWLEDGED, Kind.REPEATED),
)
END: Final = (1 << 63) - 1


class Limits(NamedTuple):
    """Of one partition: between which offsets the sides can be asked for what they have."""

    left_first: int
    right_first: int
    right_after: int  # END: what is not there is missing, however late it is
    if_only_left: Kind = Kind.MISSING
    if_only_right: Kind = Kind.EXTRA
    left_after: int = (
        END  # what the right side alone has from here on can never have been on the left
    )


def digest(F: Any, *parts: Any) -> Any:
    """SHA-256 of byte strings, none of which can be taken for a part of its neighbour, nor null for empty."""

    def marked(part: Any) -> Any:
        size = F.encode(F.lpad(F.hex(F.octet_length(part)), 8, "0"), "UTF-8")
        return F.when(part.isNull(), F.lit(b"-")).otherwise(F.concat(F.lit(b"+"), size, part))

    return F.unhex(F.sha2(F.concat(*map(marked, parts)), 256))


def by_offset(left: Any, right: Any, limits: Mapping[TopicPartition, Limits]) -> Any:
    """One row for each offset that a side has, with its kind: all but REORDERED, which `refined` finds."""
    from pyspark.sql import functions as F

    is_left = F.col("is_left")
    both = left.select(*_PLACE, "digest", F.lit(True).alias("is_left")).unionAll(
        right.select(*_PLACE, "digest", F.lit(False).alias("is_left"))
    )
    counted = both.groupBy(*_PLACE).agg(
        F.count_if(is_left).alias("lefts"),
        F.count_if(~is_left).alias("rights"),
        F.max(F.when(is_left, F.col("digest"))).alias("left_digest"),
        F.max(F.when(~is_left, F.col("digest"))).alias("right_digest"),
    )
    rows = [(*place, *limit) for place, limit in sorted(limits.items())]
    bounded = left.sparkSession.createDataFrame(rows, _LIMITS)
    joined = counted.join(F.broadcast(bounded), ["topic", "partition"])
    return joined.select(*_PLACE, "left_digest", "right_digest", _kind(F).alias("kind"))


def _kind(F: Any) -> Any:
    offset, lefts, rights = F.col("offset"), F.col("lefts"), F.col("rights")
    return (
        F.when(offset >= F.col("right_after"), Kind.BEHIND)
        .when((lefts > 1) | (rights > 1), Kind.DUPLICATE)
        .when((offset < F.col("left_first")) | (offset < F.col("right_first")), Kind.EXPIRED)
        .when(rights == 0, F.col("if_only_left"))
        .when((lefts == 0) & (offset >= F.col("left_after")), Kind.EXTRA)
        .when(lefts == 0, F.col("if_only_right"))
        .when(F.col("left_digest").eqNullSafe(F.col("right_digest")), Kind.AGREED)
        .otherwise(Kind.CHANGED)
    )


def written_again(classified: Any, claims: Any, *, may_repeat: bool) -> Any:
    """What no claim names, and yet has the content of one, is that record again.

    For each claim that was never acknowledged, one such record is allowed: the first ones.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    known = claims.groupBy("topic", F.col("digest").alias("right_digest")).agg(
        F.count_if(F.col("offset").isNull()).alias("doubtful")
    )
    joined = classified.join(known, ["topic", "right_digest"], "left").withColumn(
        "is_again",
        F.col("kind").isin(Kind.UNCLAIMED, Kind.EXTRA) & F.col("doubtful").isNotNull(),
    )
    alike = Window.partitionBy("topic", "right_digest", "is_again").orderBy("partition", "offset")
    again = Kind.REPEATED if may_repeat else Kind.DUPLICATE
    kind = (
        F.when(~F.col("is_again"), F.col("kind"))
        .when(F.row_number().over(alike) <= F.col("doubtful"), Kind.UNACKNOWLEDGED)
        .otherwise(again)
    )
    return joined.select(*_PLACE, "left_digest", "right_digest", kind.alias("kind"))


def refined(offending: Any) -> Any:
    """What is wrong at an offset, but right at another of the partition, is in disorder; `home` says where it belongs."""
    from pyspark.sql import functions as F

    kind = F.col("kind")
    homes = (
        offending.where(kind.isin(Kind.MISSING, Kind.CHANGED))
        .groupBy("topic", "partition", F.col("left_digest").alias("right_digest"))
        .agg(F.min("offset").alias("home"))
    )
    seen = (
        offending.where(kind.isin(Kind.EXTRA, Kind.CHANGED))
        .groupBy("topic", "partition", F.col("right_digest").alias("left_digest"))
        .agg(F.lit(True).alias("is_elsewhere"))
    )
    is_moved = (kind.isin(Kind.EXTRA, Kind.CHANGED) & F.col("home").isNotNull()) | (
        (kind == Kind.MISSING) & F.col("is_elsewhere")
    )
    return (
        offending.join(homes, ["topic", "partition", "right_digest"], "left")
        .join(seen, ["topic", "partition", "left_digest"], "left")
        .withColumn("kind", F.when(is_moved, Kind.REORDERED).otherwise(kind))
        .select(*_PLACE, "kind", "home")
    )


def by_content(left: Any, right: Any, *, is_complete: bool) -> Any:
    """One row for each record: the n-th of a content on the left belongs to the n-th of it on the right.

    The left side has a column `ordering` too: records of a partition that have the same must stay in order, in one
    partition; those for which it is null only where they are in one partition. `is_complete`: no record may be behind.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def numbered(side: Any, name: str) -> Any:
        nth = F.row_number().over(
            Window.partitionBy("topic", "digest").orderBy("partition", "offset")
        )
        own = [F.col(column).alias(f"{name}_{column}") for column in ("partition", "offset")]
        order = [F.col("ordering")] if name == "left" else []
        return side.select("topic", "digest", nth.alias("nth"), *own, *order)

    paired = numbered(left, "left").join(
        numbered(right, "right"), ["topic", "digest", "nth"], "full"
    )
    order = Window.partitionBy("topic", "left_partition", "ordering").orderBy("left_offset")
    known = F.max(F.col("left_offset").isNotNull()).over(Window.partitionBy("topic", "digest"))
    lagging = F.max("right_offset").over(
        Window.partitionBy("topic", "left_partition", "ordering", "right_partition")
        .orderBy("left_offset")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    first_partition = F.first("right_partition", ignorenulls=True).over(order)
    is_disordered = (F.col("right_offset") < lagging) | (
        F.col("ordering").isNotNull() & (F.col("right_partition") != first_partition)
    )
    kind = (
        F.when(F.col("right_offset").isNull(), Kind.MISSING)
        .when(F.col("left_offset").isNull() & known, Kind.DUPLICATE)
        .when(F.col("left_offset").isNull(), Kind.EXTRA)
        .when(is_disordered, Kind.REORDERED)
        .otherwise(Kind.AGREED)
    )
    classified = paired.withColumn("kind", kind)
    return (classified if is_complete else _excused(classified)).select(
        "topic",
        F.coalesce("left_partition", "right_partition").alias("partition"),
        F.coalesce("left_offset", "right_offset").alias("offset"),
        "kind",
        F.lit(None).cast("bigint").alias("home"),
    )


def _excused(paired: Any) -> Any:
    """What is newer than all that was found: the right side is not so far yet."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    is_pair = F.col("left_offset").isNotNull() & F.col("right_offset").isNotNull()
    per_left = Window.partitionBy("topic", "left_partition")
    last = F.max(F.when(is_pair, F.col("left_offset"))).over(per_left)
    is_behind = (F.col("kind") == Kind.MISSING) & (
        F.col("left_offset") > F.coalesce(last, F.lit(-1))
    )
    return paired.withColumn("kind", F.when(is_behind, Kind.BEHIND).otherwise(F.col("kind")))


def count_kinds(classified: Any) -> list[tuple[str, int, Kind, int]]:
    rows = classified.groupBy("topic", "partition", "kind").count().collect()
    return [(topic, partition, Kind(kind), count) for topic, partition, kind, count in rows]


class Offence(NamedTuple):
    topic: str
    partition: int
    offset: int
    kind: Kind
    home: int | None  # the offset at which the record belongs


def first_offences(offending: Any, wanted: int) -> list[Offence]:
    """Of each partition and kind, by offset."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    rank = F.row_number().over(Window.partitionBy("topic", "partition", "kind").orderBy("offset"))
    rows = (
        offending.withColumn("rank", rank)
        .where(F.col("rank") <= wanted)
        .select(*_PLACE, "kind", "home")
        .collect()
    )
    return sorted(Offence(t, p, o, Kind(kind), home) for t, p, o, kind, home in rows)


def is_any(counts: Iterable[tuple[str, int, Kind, int]]) -> bool:
    return any(kind in OFFENDING for _, _, kind, _ in counts)
