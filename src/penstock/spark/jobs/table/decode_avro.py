"""Decode Avro values with fastavro, in Spark's Python workers."""

import io
import json
from collections.abc import Callable
from typing import Any, Final

from penstock.spark.jobs.table.decode import ERROR, RAW
from penstock.spark.jobs.table.versions import Version

_MAGIC: Final = b"\x00"
_PREFIX_BYTES: Final = 5  # magic, and the schema's number in a registry


def decode_avro(records: Any, version: Version) -> Any:
    """Return the records with the columns value, RAW and ERROR, as `decode_json` does."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    shape = T.StructType(
        [
            T.StructField("value", T.StructType.fromJson(version.schema)),
            T.StructField("error", T.StringType()),
        ]
    )
    parse = F.udf(parser(version.avro, version.framing or ""), shape, useArrow=False)
    return (
        records.withColumnRenamed("value", RAW)
        .withColumn("_parsed", parse(RAW))
        .withColumn(ERROR, F.col("_parsed.error"))
        .withColumn("value", F.col("_parsed.value"))
        .drop("_parsed")
    )


def parser(schema: Any, framing: str) -> Callable[[Any], tuple[Any, str | None]]:
    """Return a function that decodes bytes to a value, or to the reason of a failure.

    Spark's workers run it.
    """

    text = json.dumps(schema)

    def parse(value: Any) -> tuple[Any, str | None]:
        if value is None:
            return None, None
        try:
            return _read(text, framing, bytes(value)), None
        except Exception as error:  # noqa: BLE001  # whatever a record does, it is a dead letter
            return None, f"not Avro of the schema: {type(error).__name__}: {error}"[:500]

    return parse


def _read(schema: str, framing: str, value: bytes) -> Any:
    from fastavro import schemaless_reader

    if framing == "confluent":
        if len(value) < _PREFIX_BYTES or value[:1] != _MAGIC:
            raise ValueError("no registry's prefix; for Avro without one: --avro-framing none")
        value = value[_PREFIX_BYTES:]
    stream = io.BytesIO(value)
    found = schemaless_reader(stream, _parsed(schema), None)
    if rest := len(value) - stream.tell():
        raise ValueError(f"{rest} bytes are left over")
    return found


_schemas: Final[dict[str, Any]] = {}


def _parsed(text: str) -> Any:
    """Parse each schema once per worker."""
    if text not in _schemas:
        from fastavro import parse_schema

        _schemas[text] = parse_schema(json.loads(text))
    return _schemas[text]
