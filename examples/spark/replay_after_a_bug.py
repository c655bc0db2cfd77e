"""A service wrote wrong results for an hour: read that hour again, compute it right, and send only what must be corrected.

    python examples/spark/replay_after_a_bug.py --since 2026-11-15T10:00:00Z --until 2026-11-15T11:00:00Z

Payments are `{"amount": "1.234,50"}`, keyed by their id; the service writes the amount in cents to a compacted topic, under the
same key. It took the comma for the end of the number. The broker kept the payments, so nothing is lost. Run it twice: the
second time there is nothing left to correct. `--dry-run` only shows what would be sent.
"""

import sys
from argparse import ArgumentParser, Namespace
from datetime import datetime
from typing import Any

from pyspark.sql import functions as F

from penstock.spark.job import explained
from penstock.spark.session import SessionSettings, open_session


def in_cents(payments: Any) -> Any:
    """The service's function, with the bug mended: '1.234,50' is 123450 cents."""
    amount = F.get_json_object(F.col("value").cast("string"), "$.amount")
    plain = F.translate(F.translate(amount, ".", ""), ",", ".")
    return payments.select("key", (plain.cast("decimal(18,2)") * 100).cast("long").alias("cents"))


def newest(records: Any) -> Any:
    """What a compacted topic says: the last value of each key, all of whose records are in one partition."""
    return (
        records.groupBy("key")
        .agg(F.max_by("value", "offset").alias("value"))
        .where("value IS NOT NULL")
        .select("key", F.col("value").cast("string").cast("long").alias("was"))
    )


def corrections(right: Any, results: Any) -> Any:
    """Only where the result is missing or wrong: sent twice, there is nothing to send."""
    return right.join(newest(results), "key", "left").where("NOT cents <=> was")


def read(spark: Any, bootstrap: str, topic: str, **limits: int) -> Any:
    reader = spark.read.format("penstock").option("kafka.bootstrap.servers", bootstrap)
    return reader.option("subscribe", topic).options(**limits).load()


def replay(spark: Any, options: Namespace) -> int:
    payments = read(
        spark,
        options.bootstrap,
        options.source,
        startingTimestamp=round(options.since.timestamp() * 1000),
        endingTimestamp=round(options.until.timestamp() * 1000),
    )
    wrong = corrections(in_cents(payments), read(spark, options.bootstrap, options.target)).cache()
    wrong.select(F.col("key").cast("string"), "was", "cents").orderBy("key").show(20)
    count = int(wrong.count())
    if count and not options.dry_run:
        (
            wrong.select("key", F.col("cents").cast("string").alias("value"))
            .write.format("penstock")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option("topic", options.target)
            .mode("append")
            .save()
        )
    return count


def read_options() -> Namespace:
    parser = ArgumentParser(description="Reads a stretch of time again, and sends corrections.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--since", required=True, type=datetime.fromisoformat, metavar="TIME")
    parser.add_argument("--until", required=True, type=datetime.fromisoformat, metavar="TIME")
    parser.add_argument("--from", dest="source", default="payments", metavar="TOPIC")
    parser.add_argument("--to", dest="target", default="amounts", metavar="TOPIC")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--master", default="local[*]", metavar="URL")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    settings = SessionSettings(name="replay", master=options.master)
    with open_session(settings) as spark, explained():
        count = replay(spark, options)
    verb = "would be" if options.dry_run else "were"
    sys.stdout.write(f"{count} corrections {verb} sent to {options.target}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
