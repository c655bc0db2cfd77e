"""Create, read and write the topic at the target that stores the state of a link.

Writes belong to the transactions that copy records.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Final

from penstock.client import admin
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.client.raw_transactions import Fenced, Session, TransactionLost
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.records.compression import Codec
from penstock.records.record import Record, decode_records
from penstock.spark.cluster import Cluster
from penstock.spark.errors import JobError
from penstock.spark.fetching import Fetched, RangeReader
from penstock.spark.jobs.mirror.beats import group_of
from penstock.spark.jobs.mirror.translate.links import Entry, LinkState, log_name
from penstock.spark.offsets import OffsetRange
from penstock.spark.options import parse_batch
from penstock.spark.outgoing import Outgoing, batched
from penstock.spark.sending import send
from penstock.spark.steps import reached
from penstock.spark.survey import ask
from penstock.spark.transactional import OVERDUE, Transactions
from penstock.wire.messages.metadata import MetadataResponseTopic

_REPLICAS: Final = 3
_SETTINGS: Final = {"cleanup.policy": "compact"}
_ATTEMPTS: Final = (
    100  # for what is decided (a topic, the end of a transaction) to be known everywhere
)
_PAUSE_S: Final = 0.1


async def ensure_log(pool: Pool, name: str, brokers: int) -> None:
    try:
        await admin.create_topic(
            pool,
            name,
            partitions=1,
            replication_factor=min(_REPLICAS, brokers),
            settings=_SETTINGS,
        )
    except ClientError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
    await known_topic(pool, name)


async def known_topic(pool: Pool, name: str) -> MetadataResponseTopic:
    """One that was just created: brokers of other makes may hear of it after the controller has answered."""
    for _ in range(_ATTEMPTS):
        try:
            return await admin.ensure_topic(pool, name, create=False)
        except ClientError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        await asyncio.sleep(_PAUSE_S)
    raise JobError(f"topic {name!r} was created, and its brokers still do not know it; try again")


def read_log(bootstrap: str, name: str, state: LinkState, *, whole: bool) -> None:
    """What was committed since `state` was read. `whole`: the caller has begun, so nothing of it can be undecided."""
    place = TopicPartition(name, 0)
    first, end = _ends(bootstrap, place, whole=whole)
    if end < state.next_offset:
        raise JobError(
            f"topic {name!r} at {bootstrap} has lost records: it tells which offset is where, and cannot be done "
            "without; delete the mirrors and it, and begin anew"
        )
    start = max(first, state.next_offset)
    if start < end:
        _read(bootstrap, OffsetRange(place, start, end), state)
    state.next_offset = end


def _ends(bootstrap: str, place: TopicPartition, *, whole: bool) -> tuple[int, int]:
    async def question(pool: Pool) -> tuple[int, int, int]:
        first = await admin.list_offsets(pool, {place: admin.EARLIEST})
        latest = await admin.list_offsets(pool, {place: admin.LATEST})
        decided = await admin.list_offsets(pool, {place: admin.LATEST}, read_committed=True)
        return first[place].offset, latest[place].offset, decided[place].offset

    for _ in range(_ATTEMPTS):
        first, latest, decided = ask(bootstrap, question)
        if decided >= latest or not whole:
            return first, decided
        time.sleep(_PAUSE_S)
    raise JobError(
        f"topic {place.topic!r} at {bootstrap} has a transaction of somebody else's, and only this link may write "
        "there; see: penstock txn list"
    )


def _read(bootstrap: str, wanted: OffsetRange, state: LinkState) -> None:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": wanted.partition.topic,
        "kafka.isolation.level": "read_committed",
    }
    how = parse_batch(options).fetching
    cluster = Cluster(how)
    location = cluster.locate(wanted.partition)
    cluster.close()
    if location is None:
        raise JobError(f"topic {wanted.partition.topic!r} is gone; run it again")
    position = wanted.start
    with RangeReader(wanted, location, how) as fetches:
        for fetched in fetches:
            position = _apply(fetched, position, wanted.end, state)


def _apply(fetched: Fetched, position: int, end: int, state: LinkState) -> int:
    from penstock.records.column_runs import Aborted, Batches  # loads numpy

    batches = Batches(fetched.records, position, end, Aborted(fetched.aborted))
    for at, upto, header in batches:
        for record in decode_records(fetched.records[at:upto], header):
            if record.offset >= position and record.key is not None:
                state.apply(record.key, record.value)
    return batches.next_offset


class OpenLink:
    """A link that this process writes to. Whoever begins last is the only one who can commit."""

    def __init__(self, target: str, source_id: str, *, timeout_ms: int) -> None:
        self.name = log_name(source_id)
        self.state = LinkState()
        self._target = target
        self._transactions = Transactions(
            target,
            transactional_id=group_of(source_id),
            group=group_of(source_id),
            timeout_ms=timeout_ms,
        )

    def refresh(self) -> None:
        read_log(self._target, self.name, self.state, whole=False)

    def begin(self) -> None:
        """From here on `state` is true until this, or another, process commits."""
        self._transactions.begin()
        read_log(self._target, self.name, self.state, whole=True)

    def commit(self, work: Callable[[Session], list[Entry]]) -> None:
        """What `work` sends, and what it wants to be known of it: in one transaction, after `begin`."""

        def write(session: Session) -> list[Entry]:
            entries = work(session)
            asyncio.run(send(_batches(entries), session, self._target, self.name))
            reached("mirror:mapped")
            return entries

        try:
            entries = self._transactions.within(write, {})
        except (Fenced, TransactionLost) as error:
            raise JobError(f"{error.message}: {OVERDUE}") from error
        for key, value in entries:
            self.state.apply(key, value)


def _batches(entries: Iterable[Entry]) -> Iterable[Outgoing]:
    now_ms = time.time_ns() // 1_000_000
    return batched(((0, Record(0, now_ms, key, value)) for key, value in entries), Codec.NONE)
