"""Rows of a micro-batch become part of a topic exactly once: one transaction holds them and how far the input was read.

1. A new epoch of the job's transactional id: an attempt before this one can write no more, and what it left is aborted.
2. Only then is asked how far the job is: what a transaction committed is told by the group's offsets and their metadata.
3. Each output partition is written by one task, which is never tried again within a transaction.
4. The input's offsets, with the batch's mark, join the transaction; then it is committed.

Whatever fails before 4 ends is aborted, at the latest by step 1 of the next run. Steps that tests kill at: DRIVER_STEPS and,
in Python workers, WORKER_STEPS.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from penstock.client import raw_transactions as transactions
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.raw_transactions import Fenced, OffsetToCommit, Session, TransactionLost
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.errors import BadOption, JobError
from penstock.spark.outgoing import Target, placing
from penstock.spark.sending import PATIENCE_MS
from penstock.spark.sink_options import SinkError, plan_sink
from penstock.spark.steps import reached
from penstock.spark.survey import ask

DRIVER_STEPS: Final = (
    *("transaction:wanted", "transaction:begun", "transaction:written", "transaction:offsets"),
    "transaction:committed",
)
WORKER_STEPS: Final = (
    *("transaction:task", "transaction:partition", "transaction:first-sent", "transaction:sent"),
)
CONFS: Final = {  # of an application whose tasks write in a transaction
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
    "spark.speculation": "false",
}
OVERDUE: Final = (
    "another run of this job has taken over, or the batch took longer than --transaction-timeout; nothing of it "
    "was committed: see that one runs only, give a smaller --batch-records or a longer timeout, and run it again"
)

_TOO_LONG: Final = (
    "longer than brokers allow; give a shorter one, or raise their transaction.max.timeout.ms"
)

Committed = Mapping[TopicPartition, OffsetToCommit]
T = TypeVar("T")


class Sent(NamedTuple):
    records: int
    size_bytes: int


class Transactions:
    """One after the other, of one job. Used by one thread at a time."""

    def __init__(
        self, bootstrap: str, *, transactional_id: str, group: str, timeout_ms: int
    ) -> None:
        self._bootstrap = bootstrap
        self._id = transactional_id
        self._group = group
        self._timeout_ms = timeout_ms
        self._session: Session | None = None

    def begin(self) -> Committed:
        """Shuts out whoever wrote before; how far the job is, which nobody else can change from here on."""
        reached("transaction:wanted")

        async def question(pool: Pool) -> tuple[Session, Committed]:
            session = await transactions.begin(
                pool,
                self._id,
                transaction_timeout_ms=self._timeout_ms,
                timeout_ms=PATIENCE_MS,
            )
            found = await transactions.committed_offsets(pool, self._group, timeout_ms=PATIENCE_MS)
            return session, found

        try:
            self._session, committed = ask(self._bootstrap, question)
        except ClientError as error:
            if error.code is not ErrorCode.INVALID_TRANSACTION_TIMEOUT:
                raise
            raise BadOption(f"--transaction-timeout {self._timeout_ms} ms: {_TOO_LONG}") from error
        reached("transaction:begun")
        return {place: row for place, row in committed.items() if row.offset >= 0}

    def write(self, result: Any, target: Target, offsets: Committed) -> Sent:
        """In the transaction that `begin` began: all of it, or an error and nothing. `result`: see `check_result`."""
        return self.within(
            lambda session: _send(as_rows(result), session, self._bootstrap, target), offsets
        )

    def within(self, work: Callable[[Session], T], offsets: Committed) -> T:
        """What `work` sends becomes part of the transaction that `begin` began, with these offsets, if there are any."""
        session, self._session = self._session, None
        assert session is not None, "begin comes first, each time"
        try:
            done = work(session)
            reached("transaction:written")
            if offsets:
                self._commit_offsets(session, offsets)
            reached("transaction:offsets")
        except BaseException:
            with suppress(
                ClientError, JobError
            ):  # if it has begun; the next run would abort it too
                self._end(session, committed=False)
            raise
        self._end(session, committed=True)
        reached("transaction:committed")
        return done

    def _commit_offsets(self, session: Session, offsets: Committed) -> None:
        async def question(pool: Pool) -> None:
            await transactions.commit_offsets(
                pool, session, self._group, offsets, timeout_ms=PATIENCE_MS
            )

        _explained(lambda: ask(self._bootstrap, question))

    def _end(self, session: Session, *, committed: bool) -> None:
        async def question(pool: Pool) -> None:
            await transactions.end(pool, session, committed=committed, timeout_ms=PATIENCE_MS)

        _explained(lambda: ask(self._bootstrap, question))


def _explained(work: Callable[[], None]) -> None:
    try:
        work()
    except (Fenced, TransactionLost) as error:
        raise JobError(f"{error.message}: {OVERDUE}") from error


# Rows of a query ---------------------------------------------------------------------------------


def check_confs(session: Any) -> None:
    """Settings of a cluster, or a user's, may not undo what keeps a task from being run twice in a transaction."""
    context = session.sparkContext
    if context.master.startswith("local") and not context.master.startswith("local-cluster"):
        return  # there no task is tried again
    for name, value in CONFS.items():
        found = context.getConf().get(name)
        if found != value:
            raise JobError(f"{name} is {found}; transactions need {value}: leave it out of --conf")


def check_result(result: Any, target: Target) -> None:
    """The columns are those of the sink, and `timestamp`; SinkError names the one that does not fit."""
    types = {field.name: field.dataType.simpleString() for field in result.schema.fields}
    plan_sink(types, {"topic": target.topic, "kafka.bootstrap.servers": "none:0"})
    if types.get("timestamp", "timestamp") != "timestamp":
        raise SinkError(
            f"column timestamp is {types['timestamp']}, and must be timestamp; cast it first"
        )


def as_rows(result: Any) -> Any:
    """DataFrame -> DataFrame: the columns of a sink, those that are missing as nulls, in one order and type."""
    from pyspark.sql import functions as F

    has = set(result.columns)

    def column(name: str, kind: str) -> Any:
        return (F.col(name) if name in has else F.lit(None)).cast(kind).alias(name)

    time_ms = F.unix_millis("timestamp") if "timestamp" in has else F.lit(None).cast("bigint")
    return result.select(
        column("key", "binary"),
        column("value", "binary"),
        column("headers", "array<struct<key:string,value:binary>>"),
        column("partition", "int"),
        time_ms.alias("timestamp_ms"),
    )


def in_order(rows: Any, target: Target) -> Any:
    """DataFrame -> DataFrame: one task has all rows of a partition, and in the order in which tasks had them before."""
    from pyspark.sql import functions as F

    writers = min(target.partitions, rows.sparkSession.sparkContext.defaultParallelism)
    place = F.udf(placing(target), "int", useArrow=False)
    numbered = rows.withColumn("row", F.monotonically_increasing_id())  # the task is its high part
    return (
        numbered.withColumn("target", place("key", "partition", "row"))
        .repartitionById(writers, (F.col("target") % F.lit(writers)).cast("int"))
        .sortWithinPartitions("target", "row")
        .select("target", "key", "value", "headers", "timestamp_ms")
    )


def _send(rows: Any, session: Session, bootstrap: str, target: Target) -> Sent:
    """Sends every row, each partition's by one task."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    from penstock.spark.transaction_sink import TransactionSink, sink_options

    rows.sparkSession.dataSource.register(TransactionSink)
    seen = Observation()
    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(
        F.octet_length("value"), F.lit(0)
    )
    counts = (F.count(F.lit(1)).alias("records"), F.sum(size).alias("size_bytes"))
    (
        in_order(rows, target)
        .observe(seen, *counts)
        .write.format(TransactionSink.name())
        .options(**sink_options(session, bootstrap, target))
        .mode("append")
        .save()
    )
    return Sent(int(seen.get["records"]), int(seen.get["size_bytes"] or 0))
