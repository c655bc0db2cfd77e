"""Run as a program of its own: the same queries through Spark's own connector and through ours, as JSON on stdout.

A session takes jars only when its JVM starts, so that this cannot share the tests' session.
"""

import json
import sys
from typing import Any


def rows(frame: Any) -> list[list[Any]]:
    found = [
        [row["topic"], row["partition"], row["offset"], *_rest(row.asDict())]
        for row in frame.collect()
    ]
    return sorted(found, key=lambda row: row[:3])


def _rest(row: dict[str, Any]) -> list[Any]:
    headers = row.get("headers")
    return [
        _hex(row["key"]),
        _hex(row["value"]),
        row["timestamp"].timestamp(),
        row["timestampType"],
        headers and [[h["key"], _hex(h["value"])] for h in headers],
    ]


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()


def batch(spark: Any, source: str, options: dict[str, str]) -> dict[str, Any]:
    frame = spark.read.format(source).options(**options).load()
    return {"schema": frame.schema.json(), "rows": rows(frame)}


def stream(spark: Any, source: str, options: dict[str, str], home: str) -> dict[str, Any]:
    """Every batch by itself: limits must cut at the same offsets."""
    seen: list[list[list[Any]]] = []
    frame = spark.readStream.format(source).options(**options).load()
    query = (
        frame.writeStream.foreachBatch(lambda part, _: seen.append(rows(part)))
        .option("checkpointLocation", home)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"batches": seen}


def main() -> None:
    from pyspark.sql import SparkSession

    asked = json.load(sys.stdin)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.jars", ",".join(asked["jars"]))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    answers: dict[str, Any] = {}
    for name, query in asked["queries"].items():
        for source in ("kafka", "penstock"):
            answer = answers.setdefault(name, {})
            if query["kind"] == "batch":
                answer[source] = batch(spark, source, query["options"])
            else:
                home = f"{asked['home']}/{name}-{source}"
                answer[source] = stream(spark, source, query["options"], home)
    sys.stdout.write("\nANSWERS " + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
