"""Decode the values of records. DataFrame → DataFrame.

The result has the decoded `value`, its bytes as RAW, and the reason of a failure as ERROR.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from penstock.spark.jobs.table.unknown import unknown

RAW: Final = "_raw"
ERROR: Final = "_error"
UNKNOWN: Final = "_unknown"  # names of fields that were left out
_CORRUPT: Final = "_corrupt"
_JSON: Final = {
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",  # JSON, and nothing that looks like it
    "allowNonNumericNumbers": "false",
}
_CASE: Final = "spark.sql.caseSensitive"
_SHOWN: Final = 500
DEEPEST: Final = 30  # objects and arrays in each other of which columns are made: Spark analyses 40 in 10 s, and 50 not at all


class Decoder(Protocol):
    can_fail: bool
    names_unknown: bool  # there is a column UNKNOWN
    version: int | None  # of the schema

    def prepare(self, records: Any) -> None:
        """Before a batch is decoded; may look at it."""

    def decode(self, records: Any) -> Any: ...


class RawDecoder:
    can_fail = False
    names_unknown = False
    version: int | None = None

    def prepare(self, records: Any) -> None:
        pass

    def decode(self, records: Any) -> Any:
        return records


def decode_json(records: Any, schema: Any) -> Any:
    """One object for each record.

    Each is put into an array: Spark's parser stops after the first thing that it finds, and a second object, or whatever
    else follows, would be lost without a word.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    shape = T.StructType(
        [T.StructField("r", T.ArrayType(schema)), T.StructField(_CORRUPT, T.StringType())]
    )
    return (
        records.withColumnRenamed("value", RAW)
        .withColumn("_parsed", F.from_json(_in_array(F), shape, _JSON))
        .withColumn(ERROR, _json_error(F))
        .withColumn("value", F.get("_parsed.r", F.lit(0)))
        .drop("_parsed")
    )


def name_unknown(decoded: Any, schema: Any, *, with_nulls: bool = True) -> Any:
    """With a column UNKNOWN."""
    from pyspark.sql import functions as F

    text = F.col(RAW).cast("string")
    return decoded.withColumn(UNKNOWN, unknown(text, schema.jsonValue(), with_nulls=with_nulls))


def reject_unknown(decoded: Any, schema: Any) -> Any:
    """A record with a field that the schema lacks is a bad one."""
    from pyspark.sql import functions as F

    said = F.concat(F.lit("has fields that the schema lacks: "), F.array_join(UNKNOWN, ", "))
    why = F.when(F.size(UNKNOWN) > 0, F.substring(said, 1, _SHOWN))
    return name_unknown(decoded, schema).withColumn(ERROR, F.coalesce(ERROR, why)).drop(UNKNOWN)


def _in_array(F: Any) -> Any:
    return F.concat(F.lit('{"r":['), F.col(RAW).cast("string"), F.lit("]}"))


def _json_error(F: Any) -> Any:
    text = F.col(RAW).cast("string")
    found = F.try_parse_json(_in_array(F))
    kind = F.schema_of_variant(F.try_variant_get(found, "$.r", "variant"))
    is_wrong = (
        F.col(f"_parsed.{_CORRUPT}").isNotNull()
        | (F.size("_parsed.r") != 1)
        | F.get("_parsed.r", F.lit(0)).isNull()
    )
    is_object = kind.startswith("ARRAY<OBJECT<") & (F.size("_parsed.r") == 1)
    shown = F.substring(kind, 7, _SHOWN)
    why = (
        F.when(F.trim(text) == "", "it is empty")
        .when(found.isNull(), "not valid JSON")
        .when(
            is_object,
            F.concat(F.lit("does not fit the schema: "), F.rtrim(shown, F.lit(">")), F.lit(">")),
        )
        .otherwise("not one JSON object")
    )
    return (
        F.when(F.col(RAW).isNull(), None)
        .when(~F.is_valid_utf8(text), "not valid UTF-8")
        .when(is_wrong, why)
    )


def infer_json(values: Any) -> Any:
    """The schema of what is valid JSON in the column `value`, and not too deep for a table; Spark's StructType."""
    from pyspark.sql import functions as F

    text = F.col("value").cast("string")
    valid = values.where(F.is_valid_utf8(text) & is_shallow(text)).select(text.alias("value"))
    reader = (
        values.sparkSession.read.options(**_JSON)
        .option("mode", "DROPMALFORMED")
        .option("dropFieldIfAllNull", "true")  # it has no type yet
    )
    with _each_case(values.sparkSession):
        return reader.json(valid).schema


@contextmanager
def _each_case(session: Any) -> Iterator[None]:
    """Spark takes `Id` and `id` for two names: else it keeps the one that it happens to meet first."""
    was = session.conf.get(_CASE)
    session.conf.set(_CASE, "true")
    try:
        yield
    finally:
        session.conf.set(_CASE, was)


def is_shallow(text: Any) -> Any:
    """Whether objects and arrays lie at most DEEPEST deep in each other: one record must not make a schema that nobody can handle."""
    from pyspark.sql import functions as F

    few = F.regexp_count(text, F.lit(r"[\[{]")) <= DEEPEST  # nearly all: nothing else is looked at
    return few | (_peeled(F, _brackets(F, text)) == "")


def _brackets(F: Any, text: Any) -> Any:
    """Those that are not within strings. Step by step: a pattern for whole strings has no bound on Java's stack."""
    unescaped = F.regexp_replace(text, r"\\.", "")
    return F.regexp_replace(F.regexp_replace(unescaped, r'"[^"]*+"', ""), r"[^\[\]{}]++", "")


def _peeled(F: Any, brackets: Any) -> Any:
    """What is left after the innermost pairs were taken away DEEPEST times."""
    times = F.sequence(F.lit(1), F.lit(DEEPEST))
    return F.aggregate(times, brackets, lambda left, _: F.regexp_replace(left, r"\[\]|\{\}", ""))
