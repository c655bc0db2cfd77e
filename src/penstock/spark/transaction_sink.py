"""The tasks' side of a transaction: each writes the partitions that it alone has, under the session that the driver began."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from penstock.client.raw_transactions import Fenced, Session, TransactionLost
from penstock.records.compression import Codec
from penstock.spark.errors import JobError
from penstock.spark.outgoing import RecordBatch, Target, outgoing
from penstock.spark.sending import refuse_second_attempt, send
from penstock.spark.steps import reached
from penstock.spark.transactional import OVERDUE

_OPTION: Final = "transaction"  # the only one: JSON


def sink_options(session: Session, bootstrap: str, target: Target) -> dict[str, str]:
    now_ms = time.time_ns() // 1_000_000
    return {_OPTION: json.dumps([session, bootstrap, target, now_ms])}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """Records by partition."""

    records: dict[int, int]


class TransactionSink(DataSource):
    """Only for transactional.py, whose rows are sorted and whose transaction is open."""

    @classmethod
    def name(cls) -> str:
        return "penstock-transaction"

    def writer(self, schema: Any, overwrite: bool) -> "TaskWriter":  # noqa: ARG002  # Spark's names
        return TaskWriter(self.options)


class TaskWriter(DataSourceArrowWriter):
    def __init__(self, options: Mapping[str, str]) -> None:
        session, self._bootstrap, target, self._now_ms = json.loads(options[_OPTION])
        self._session = Session(*session)
        self._target = Target(target[0], target[1], Codec(target[2]))

    def write(self, iterator: Iterator[RecordBatch]) -> Written:
        refuse_second_attempt()
        reached("transaction:task")
        ready = outgoing(self._target, iterator, now_ms=self._now_ms)
        try:
            records = asyncio.run(send(ready, self._session, self._bootstrap, self._target.topic))
        except (Fenced, TransactionLost) as error:
            raise JobError(f"{error.message}: {OVERDUE}") from error
        reached("transaction:sent")
        return Written(records)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Before the driver goes on: raises if two tasks wrote to one partition."""
        times = Counter(
            place for told in messages if isinstance(told, Written) for place in told.records
        )
        assert all(count == 1 for count in times.values()), "one task writes each partition"
