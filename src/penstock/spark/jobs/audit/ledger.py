"""Read a producer's ledger of what it wrote, as rows of topic, partition, offset and digest.

A ledger is CSV, JSON lines or Parquet. A row without an offset, or with a negative one, stands for
a record that was sent and never acknowledged.
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from penstock.spark.errors import JobError
from penstock.spark.jobs.audit.compare import digest
from penstock.spark.jobs.files import for_spark

_FORMATS: Final = {
    **{".csv": "csv", ".jsonl": "json", ".json": "json", ".ndjson": "json"},
    **{".parquet": "parquet", "": "parquet"},  # a directory of files
}
_OPTIONS: Final = {
    "csv": {"header": "true"},
    "json": {"primitivesAsString": "true", "mode": "FAILFAST"},
    "parquet": {},
}
_PLACE: Final = {"topic": "string", "partition": "int", "offset": "bigint"}
_CONTENTS: Final = ("key", "value", "hash")
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "string")
_TEXTS: Final = ("string", "binary")
_TYPES: Final = {
    **{"topic": ("string",), "partition": _NUMBERS, "offset": _NUMBERS},
    **dict.fromkeys(_CONTENTS, _TEXTS),
}


class Ledger(NamedTuple):
    place: str
    rows: Any  # of the topics that are audited
    told: tuple[str, ...]  # what of a record it tells, beside where it is
    unacknowledged: int
    others: int  # rows of other topics

    @property
    def tells_contents(self) -> bool:
        """Enough to know a record again, wherever it is."""
        return "key" in self.told and len(self.told) > 1


def read_ledger(session: Any, place: str, topics: Sequence[str]) -> Ledger:
    from pyspark.sql import functions as F

    rows = _load(session, place)
    counted = rows.select(
        (F.col("topic").isin(*topics) & F.col("topic").isNotNull()).alias("is_ours"),
        F.col("offset").isNull().alias("is_doubtful"),
        (F.col("offset").isNotNull() & F.col("partition").isNull()).alias("is_lost"),
    )
    ours, doubtful, lost, all_ = counted.agg(
        F.count_if("is_ours"),
        F.count_if(F.col("is_ours") & F.col("is_doubtful")),
        F.count_if(F.col("is_ours") & F.col("is_lost")),
        F.count(F.lit(1)),
    ).first()
    if lost:
        raise JobError(f"{place}: {lost} rows have an offset and no partition; say which it was")
    if not ours:
        raise JobError(f"{place} has no row of {', '.join(topics)}; give the ledger of that topic")
    told = tuple(name for name in _CONTENTS if name in rows.columns)
    mine = rows.where(F.col("topic").isin(*topics))
    return Ledger(place, mine, told, doubtful, all_ - ours)


def _load(session: Any, place: str) -> Any:
    from pyspark.sql import functions as F

    suffix = PurePath(place).suffix.lower()
    if suffix not in _FORMATS:
        raise JobError(
            f"{place}: a ledger is called .csv, .jsonl or .parquet, or is a directory of Parquet files"
        )
    kind = _FORMATS[suffix]
    rows = session.read.format(kind).options(**_OPTIONS[kind]).load(for_spark(place))
    _check_columns(place, {field.name: field.dataType.simpleString() for field in rows.schema})
    rows = rows.withColumns({name: rows[name].cast(kind) for name, kind in _PLACE.items()})
    return rows.withColumn("offset", F.when(F.col("offset") >= 0, F.col("offset")))


def _check_columns(place: str, types: dict[str, str]) -> None:
    if missing := [name for name in _PLACE if name not in types]:
        raise JobError(
            f"{place} has no column {', '.join(missing)}; a ledger has topic, partition and offset, and may have "
            "key, value and hash (SHA-256 of the value, hexadecimal)"
        )
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise JobError(
                f"{place}: column {name} is {types[name]}, and must be {' or '.join(allowed)}"
            )


def claims(ledger: Ledger) -> Any:
    """Rows with digests of what the ledger tells; offset is null where nothing was acknowledged."""
    from pyspark.sql import functions as F

    def part(name: str) -> Any:
        is_text = ledger.rows.schema[name].dataType.simpleString() == "string"
        if name == "hash" and is_text:
            return F.unhex(F.trim("hash"))
        return F.col(name).cast("binary")

    return ledger.rows.select(*_PLACE, _digest(F, [part(name) for name in ledger.told]))


def as_claims(records: Any, told: tuple[str, ...]) -> Any:
    """Records of the topic, with the digests that such a ledger has of them."""
    from pyspark.sql import functions as F

    parts = [F.unhex(F.sha2("value", 256)) if name == "hash" else F.col(name) for name in told]
    return records.select(*_PLACE, _digest(F, parts))


def _digest(F: Any, parts: list[Any]) -> Any:
    return (digest(F, *parts) if parts else F.lit(None).cast("binary")).alias("digest")


def notes(ledger: Ledger) -> list[str]:
    """What was not looked at, and why."""
    found = []
    if not ledger.told:
        found.append("the ledger has neither key, value nor hash: only offsets were compared")
    if ledger.unacknowledged:
        known = (
            "each may be in the topic once, or not at all"
            if ledger.tells_contents
            else "they may be in the topic or not; whether one is there more than once was not looked at, for that needs "
            "key and value, or key and hash"
        )
        found.append(f"{ledger.unacknowledged} rows of the ledger were never acknowledged: {known}")
    if ledger.others:
        found.append(f"{ledger.others} rows of the ledger are of other topics, and were left out")
    return found
