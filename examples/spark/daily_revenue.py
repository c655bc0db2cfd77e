"""Orders become a table, and the table a report: revenue by day and country. Run it again: it adds new orders, and doubles none.

    penstock topic create orders -p 3
    python examples/spark/daily_revenue.py --sample 1000 --table /tmp/lake/orders

`--sample` writes so many orders first; every 100th is not JSON, and ends among the dead letters.
"""

import random
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import Producer
from pyspark.sql import functions as F

from penstock.spark.job import explained
from penstock.spark.session import SessionSettings, open_session

SCHEMA: Final = "id BIGINT, country STRING, amount DECIMAL(10,2), ordered_at TIMESTAMP"
FIRST_DAY: Final = datetime(2026, 11, 1, tzinfo=UTC)


def write_sample(bootstrap: str, topic: str, count: int) -> None:
    """The same orders every time, so that a report can be checked."""
    chance = random.Random(7)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(count):
        ordered_at = FIRST_DAY + timedelta(minutes=chance.randrange(7 * 24 * 60))
        country, cents = chance.choice(["AT", "DE", "FR"]), chance.randrange(500, 20_000)
        order = (
            f'{{"id": {number}, "country": "{country}", "amount": {cents / 100:.2f}, '
            f'"ordered_at": "{ordered_at.isoformat()}"}}'
        )
        producer.produce(topic, "oops" if number % 100 == 99 else order, key=str(number))
        producer.poll(0)
    if unsent := producer.flush(60):
        raise SystemExit(f"{unsent} orders were not acknowledged; is the broker up?")


def fill_lake(options: Namespace) -> None:
    """Every order exactly once; what is not JSON goes to the dead letters."""
    words = [
        *("pipeline", "lake", options.topic, "--table", options.table),
        *("--decode", "json", "--schema", SCHEMA),
        *("--bootstrap", options.bootstrap, "--master", options.master),
    ]
    if status := subprocess.run([sys.executable, "-m", "penstock", *words], check=False).returncode:
        raise SystemExit(status)


def daily_revenue(orders: Any) -> Any:
    """By the day on which an order was made, whenever it arrived. What was decoded is in the column value."""
    return (
        orders.select("value.*")
        .groupBy(F.to_date("ordered_at").alias("day"), "country")
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
        .orderBy("day", "country")
    )


def read_options() -> Namespace:
    parser = ArgumentParser(description="Orders become a table, and the table a report.")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", metavar="HOST:PORT")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--table", required=True, metavar="DIR")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="write N orders first")
    parser.add_argument("--report", metavar="DIR", help="also write the report there, as CSV")
    parser.add_argument("--master", default="local[*]", metavar="URL")
    return parser.parse_args()


def main() -> int:
    options = read_options()
    write_sample(options.bootstrap, options.topic, options.sample)
    fill_lake(options)
    settings = SessionSettings(name="daily revenue", master=options.master)
    with open_session(settings) as spark, explained():
        report = daily_revenue(spark.read.parquet(options.table))
        report.show(100)
        if options.report:
            report.coalesce(1).write.mode("overwrite").csv(options.report, header=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
