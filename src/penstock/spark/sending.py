"""Ready batches of partitions that one writer alone has, sent under a session that somebody else began and will end."""

from collections.abc import Callable, Iterable
from typing import Final

from penstock.client import raw_transactions as transactions
from penstock.client.pool import Pool
from penstock.client.raw_transactions import Session
from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.outgoing import Outgoing
from penstock.spark.steps import reached

PATIENCE_MS: Final = 120_000
_CLIENT_ID: Final = "penstock-pipeline"


def refuse_second_attempt() -> None:
    """In a task of Spark's, before it sends: its sequences would begin at 0 again."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "it runs in a task"
    if context.attemptNumber():
        raise JobError(
            "Spark tried to write a part of a transaction again, which is not allowed; "
            "nothing of it was committed: run the job again"
        )


def _nobody(sent: Outgoing, base_offset: int) -> None:  # noqa: ARG001  # most do not ask where it went
    return


async def send(
    batches: Iterable[Outgoing],
    session: Session,
    bootstrap: str,
    topic: str,
    told: Callable[[Outgoing, int], None] = _nobody,
) -> dict[int, int]:
    """Records by partition, all acknowledged. The sequence of a partition's batches begins at 0 in each epoch.

    `told`: of each batch its first offset, -1 where nobody remembers it.
    """
    counts: dict[int, int] = {}
    async with Pool(bootstrap, client_id=_CLIENT_ID, timeout_ms=PATIENCE_MS) as pool:
        for batch in batches:
            partition, records, data = batch
            place = TopicPartition(topic, partition)
            if partition not in counts:
                await transactions.add_partitions(pool, session, [place])
                reached("transaction:partition")
            before = counts.get(partition, 0)
            transactions.sign(data, session, before)
            told(batch, await transactions.produce(pool, session, place, data))
            reached("transaction:first-sent")
            counts[partition] = before + records
    return counts
