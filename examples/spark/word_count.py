"""Counts words while they arrive: sentences of one topic in, the newest count of each word to another topic out.

    penstock topic create sentences && penstock topic create word-counts -c cleanup.policy=compact
    python examples/spark/word_count.py --checkpoint /tmp/word-count &
    echo 'the quick brown fox and the lazy dog' | penstock produce sentences
    penstock consume word-counts -f '%k %s\n'

The counts are in the checkpoint: ended and started again, it goes on counting. A batch that was interrupted is sent again, which does no harm:
the newest count of a word is the same.
"""

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from pyspark.sql import functions as F

from penstock.spark.job import explained
from penstock.spark.session import SessionSettings, open_session


def count_words(records: Any) -> Any:
    words = F.split(F.lower(F.col("value").cast("string")), r"[^\p{L}\p{N}']+")
    return (
        records.select(F.explode(words).alias("word")).where("word <> ''").groupBy("word").count()
    )


def as_records(counts: Any) -> Any:
    """What the sink takes: columns named key and value."""
    return counts.select(F.col("word").alias("key"), F.col("count").cast("string").alias("value"))


def start(spark: Any, options: Namespace) -> Any:
    sentences = (
        spark.readStream.format("penstock")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.source)
        .option("startingOffsets", "earliest")
        .option("groupId", "word-count")  # `penstock group describe word-count` shows the lag
        .load()
    )

    def send(changed: Any, _batch: int) -> None:
        (
            as_records(changed)
            .write.format("penstock")
            .option("kafka.bootstrap.servers", options.bootstrap)
            .option("topic", options.target)
            .mode("append")
            .save()
        )

    return (
        count_words(sentences)
        .writeStream.foreachBatch(send)  # Spark's sinks in Python know no update mode
        .option("checkpointLocation", options.checkpoint)
        .outputMode("update")  # only words whose count has changed
        .start()
    )


def read_options() -> Namespace:
    parser = ArgumentParser(description="Counts words while they arrive.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--from", dest="source", default="sentences", metavar="TOPIC")
    parser.add_argument("--to", dest="target", default="word-counts", metavar="TOPIC")
    parser.add_argument("--checkpoint", required=True, metavar="DIR")
    parser.add_argument("--master", default="local[*]", metavar="URL")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    settings = SessionSettings(name="word count", master=options.master)
    with open_session(settings) as spark, explained():
        query = start(spark, options)
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
