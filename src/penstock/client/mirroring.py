"""Writing to mirrors: batches of another cluster's log go to the leader as they are, at their own offsets.

To send something again is harmless: a mirror leaves out what it has. So all of this is tried again until the deadline.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.client.admin import alter_topic_configs
from penstock.client.errors import ClientError, check, error_code
from penstock.client.pool import Broker, Deadline, Leader, Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from penstock.wire.messages.mirror_append import (
    MirrorAppendRequest,
    MirrorAppendResponse,
    MirrorPartition,
    MirrorPartitionResult,
    MirrorTopic,
    MirrorTopicResult,
)

MIRROR_SOURCE: Final = "penstock.mirror.source"
ANY_TOPIC_ID: Final = bytes(16)
_LONGEST_WAIT_MS: Final = 10_000  # for a commit; then we ask again, of whoever leads by then


class Position(NamedTuple):
    """How far a partition of a mirror is."""

    log_start_offset: int
    log_end_offset: int
    high_watermark: int


class MirrorState(NamedTuple):
    """A topic as the leaders of its partitions see it."""

    topic_id: bytes
    source: str | None  # None: it is no mirror
    partitions: Mapping[int, Position]


class NotAMirror(ClientError):
    """The topic is not, or no longer, in mirror mode: somebody promoted it, or it never was one."""


class MirrorDiverged(ClientError):
    """The mirror is no copy of the log that the batches come from: it must be made anew."""


class MirrorBehind(ClientError):
    """Something was left out: go on from the end of the mirror's log."""


async def supports_mirrors(pool: Pool) -> bool:
    """Whether every broker of the cluster takes MirrorAppend; those of other makes never do."""
    for broker_id in await pool.broker_ids():
        answer = await pool.ask(
            Broker(broker_id),
            ApiVersionsRequest(client_software_name="penstock", client_software_version="1"),
            ApiVersionsResponse,
        )
        if not any(api.api_key == MirrorAppendRequest.api_key for api in answer.api_keys):
            return False
    return True


async def append(
    pool: Pool,
    partition: TopicPartition,
    batches: bytes | bytearray | memoryview,
    *,
    continues_at: int,
    topic_id: bytes = ANY_TOPIC_ID,
    timeout_ms: int | None = None,
) -> Position:
    """Whole batches in the source's order; returns when all in-sync replicas have them.

    They are all that the source has from `continues_at` on: the offset that they were fetched from, or 0 when the
    source has nothing before them. A mirror that does not go so far refuses them (MirrorBehind): one at a time.
    With the `topic_id` of the mirror, one that was deleted and created anew is refused (INCONSISTENT_TOPIC_ID).
    """

    async def attempt(deadline: Deadline) -> Position:
        asked = MirrorPartition(
            index=partition.partition, continues_at=continues_at, records=memoryview(batches)
        )
        _, row = await _ask(pool, partition.topic, asked, topic_id, deadline)
        return _position(row)

    return await pool.retry(attempt, patient=True, timeout_ms=timeout_ms)


async def mirror_state(
    pool: Pool,
    topic: str,
    partitions: Iterable[int] | None = None,
    *,
    timeout_ms: int | None = None,
) -> MirrorState:
    """How far it is, asked of the leaders (None: all partitions). The next batch goes to the log's end."""
    indexes = await _indexes(pool, topic) if partitions is None else list(partitions)
    told: dict[int, tuple[MirrorTopicResult, Position]] = {}

    async def attempt(deadline: Deadline) -> None:
        for index in indexes:
            if index not in told:
                asked = MirrorPartition(index=index)
                found, row = await _ask(pool, topic, asked, ANY_TOPIC_ID, deadline)
                told[index] = found, _position(row)

    await pool.retry(attempt, patient=True, timeout_ms=timeout_ms)
    sources = {found.mirror_source for found, _ in told.values()}
    return MirrorState(
        next(found.topic_id for found, _ in told.values()),
        next((source for source in sources if source is not None), None),
        {index: position for index, (_, position) in sorted(told.items())},
    )


async def promote(pool: Pool, topic: str, *, timeout_ms: int | None = None) -> MirrorState:
    """Make a mirror a topic of its own: what the source left open is aborted, then clients may write.

    Returns when every partition takes writes. To promote again changes nothing.
    """
    is_removed = False

    async def attempt(deadline: Deadline) -> MirrorState:
        nonlocal is_removed
        if not is_removed:
            await alter_topic_configs(pool, topic, set_to={}, reset=[MIRROR_SOURCE])
            is_removed = True
        state = await mirror_state(pool, topic, timeout_ms=deadline.left_ms())
        if state.source is not None:
            raise ClientError(
                f"a leader of {topic!r} does not know yet that it is promoted",
                ErrorCode.LEADER_NOT_AVAILABLE,
            )
        return state

    return await pool.retry(attempt, patient=True, timeout_ms=timeout_ms)


async def _indexes(pool: Pool, topic: str) -> list[int]:
    answer = await pool.metadata([topic])
    (found,) = answer.topics
    check(found.error_code, None, f"topic {topic!r}")
    return sorted(row.partition_index for row in found.partitions)


async def _ask(
    pool: Pool, topic: str, asked: MirrorPartition, topic_id: bytes, deadline: Deadline
) -> tuple[MirrorTopicResult, MirrorPartitionResult]:
    partition = TopicPartition(topic, asked.index)
    request = MirrorAppendRequest(
        timeout_ms=min(_LONGEST_WAIT_MS, deadline.left_ms()),
        topics=[MirrorTopic(name=topic, topic_id=topic_id, partitions=[asked])],
    )
    answer = await pool.once(Leader(partition), request, MirrorAppendResponse, deadline)
    (told,) = answer.topics
    (row,) = told.partitions
    _check(row, partition)
    return told, row


def _check(row: MirrorPartitionResult, partition: TopicPartition) -> None:
    code = error_code(row.error_code)
    message = row.error_message or str(partition)
    if code is ErrorCode.POLICY_VIOLATION:
        raise NotAMirror(message, code)
    if code is ErrorCode.INVALID_RECORD:
        raise MirrorDiverged(message, code)
    if code is ErrorCode.OFFSET_OUT_OF_RANGE:
        raise MirrorBehind(message, code)
    check(row.error_code, row.error_message, str(partition))


def _position(row: MirrorPartitionResult) -> Position:
    return Position(row.log_start_offset, row.log_end_offset, row.high_watermark)
