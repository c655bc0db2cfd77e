"""Send letters back in transactions that also record them in a ledger.

So each letter goes once, wherever the job is killed. The ledger is a compacted topic.

1. Start the producer. This ends what an earlier run left open, and fences that run.
2. Only then read the ledger, and leave out the letters that it names.
3. Send some letters and their ledger entries in each transaction.

Tests kill the job at each of STEPS, which are in order.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.sdk import dead_letters
from penstock.sdk.errors import PenstockError
from penstock.sdk.producer import Producer
from penstock.sdk.redrive_ledger import check_policy, entry, entry_value, transactional_id
from penstock.spark.errors import JobError
from penstock.spark.jobs.dlq.letters import PLACE
from penstock.spark.steps import reached
from penstock.spark.survey import ask, find_ranges

STEPS: Final = ("dlq:fenced", "dlq:read", "dlq:sent", "dlq:committed")
_AT_ONCE: Final = 500
_START_S: Final = 60.0


class Sent(NamedTuple):
    to: Counter[str]
    sent_before: int  # left out, as the ledger names them


class Outgoing(NamedTuple):
    topic: str
    partition: int
    offset: int
    target: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def send_back(
    session: Any,
    rows: Any,
    *,
    bootstrap: str,
    ledger: str,
    to: str | None,
    again: bool,
    between: Callable[[], None],
) -> Sent:
    """`rows`: repaired ones, one for each letter. `between` is called between transactions, and may raise."""
    from pyspark.sql import functions as F

    ensure_ledger(bootstrap, ledger)
    with (
        _errors(),
        Producer(
            bootstrap,
            transactional_id=transactional_id(ledger),
            client_id="penstock-pipeline",
            librdkafka={"log_level": 0},
        ) as producer,
    ):
        producer.ensure_transactions(_START_S)
        reached("dlq:fenced")
        target = F.lit(to) if to is not None else F.col("topic")
        named = rows.withColumn("target", target).withColumn(
            "entry", F.concat_ws("/", *PLACE, "target")
        )
        targets = [topic for (topic,) in named.select("target").distinct().collect()]
        check_topics(bootstrap, targets)
        known = sent_entries(session, bootstrap, ledger)
        fresh = named if again else named.join(known, "entry", "left_anti")
        before = 0 if again else named.join(known, "entry", "left_semi").count()
        reached("dlq:read")
        found = fresh.orderBy(*PLACE).select(*PLACE, "target", "key", "value", "headers")
        outgoing = (_outgoing(row) for row in found.toLocalIterator())
        sent = _send(producer, outgoing, ledger, between)
    return Sent(sent, before)


def _send(
    producer: Producer, letters: Iterator[Outgoing], ledger: str, between: Callable[[], None]
) -> Counter[str]:
    done: Counter[str] = Counter()
    while batch := list(islice(letters, _AT_ONCE)):
        with producer.transaction():
            _send_batch(producer, batch, ledger)
            producer.flush()
            reached("dlq:sent")
        reached("dlq:committed")
        done.update(letter.target for letter in batch)
        between()
    return done


def _send_batch(producer: Producer, batch: Sequence[Outgoing], ledger: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    for letter in batch:
        producer.send(
            letter.target, letter.value, letter.key, dead_letters.redriven(letter.headers)
        )
        name = entry(letter.topic, letter.partition, letter.offset, letter.target)
        producer.send(ledger, entry_value(now_ms), name.encode())


def _outgoing(row: Any) -> Outgoing:
    return Outgoing(
        *(row.topic, row.partition, row.offset, row.target),
        key=_bytes(row.key),
        value=_bytes(row.value),
        headers=[(one["key"], _bytes(one["value"])) for one in row.headers or ()],
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@contextmanager
def _errors() -> Iterator[None]:
    """What the SDK raises becomes a line for people."""
    try:
        yield
    except PenstockError as error:
        raise JobError(str(error)) from error


def check_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Raises for one that does not exist: a producer's own question might create it."""
    if topics:
        ask(bootstrap, lambda pool: admin.describe_topics(pool, topics))


def ensure_ledger(bootstrap: str, ledger: str) -> None:
    """Create the topic if it does not exist. JobError: it exists, and is not only compacted."""

    async def question(pool: Pool) -> str:
        try:
            await admin.create_topic(
                pool, ledger, partitions=1, settings={"cleanup.policy": "compact"}
            )
        except ClientError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
        settings = {row.name: row.value for row in await admin.topic_configs(pool, ledger)}
        return settings.get("cleanup.policy") or ""

    with _errors():
        check_policy(ledger, ask(bootstrap, question))


def ledger_exists(bootstrap: str, ledger: str) -> bool:
    async def question(pool: Pool) -> bool:
        (topic,) = (await pool.metadata([ledger])).topics
        return topic.error_code == ErrorCode.NONE

    return ask(bootstrap, question)


def sent_entries(session: Any, bootstrap: str, ledger: str) -> Any:
    """A column `entry`, of all that was ever sent back."""
    ranges = find_ranges(bootstrap, [ledger], read_committed=True)
    return (
        session.read.format("penstock")
        .options(**ranges.source_options(bootstrap))
        .option("columns", "key")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .selectExpr("cast(key as string) as entry")
        .distinct()
    )


def with_sent(letters: Any, entries: Any) -> Any:
    """DataFrame -> DataFrame: a column `is_sent` says whether a letter went to any topic."""
    from pyspark.sql import functions as F

    sent = entries.select(
        F.regexp_replace("entry", "/[^/]*$", "").alias("sent_letter"), F.lit(True).alias("is_sent")
    ).distinct()
    place = F.concat_ws("/", *PLACE)
    joined = letters.drop("is_sent").join(sent, place == F.col("sent_letter"), "left")
    return joined.drop("sent_letter").withColumn("is_sent", F.coalesce("is_sent", F.lit(False)))
