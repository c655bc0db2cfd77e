"""Read a few records of a log, and take even samples of what is too much to ask for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from penstock.client.errors import check
from penstock.client.pool import Deadline, Leader, Pool
from penstock.doctor.cluster_facts import KeySample
from penstock.model.errors import CorruptBatch
from penstock.model.ids import TopicPartition
from penstock.records.batch import BatchHeader, split_batches
from penstock.records.record import decode_records
from penstock.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

_LAST_WITH_NAMES: Final = 12  # later versions of Fetch want topic ids
_TIMEOUT_MS: Final = 5_000
_OPENED_BYTES: Final = 16 << 20  # of one batch, decompressed
_COMMONEST: Final = 3

T = TypeVar("T")


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, spread over all of them, in order."""
    if len(items) <= most:
        return list(items)
    return [items[index * len(items) // most] for index in range(most)]


async def fetch(
    pool: Pool, partition: TopicPartition, offset: int, max_bytes: int
) -> list[tuple[BatchHeader, memoryview]]:
    """The whole, valid batches from the one that holds `offset` on; at least one, if there is any."""
    asked = FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[FetchTopic(topic=partition.topic, partitions=[asked])],
    )
    answer = await pool.once(
        Leader(partition),
        request,
        FetchResponse,
        Deadline(_TIMEOUT_MS),
        at_most=_LAST_WITH_NAMES,
        repeatable=True,
    )
    check(answer.error_code, None, str(partition))
    data = answer.responses[0].partitions[0]
    check(data.error_code, None, str(partition))
    records = data.records
    return list(split_batches(records)) if isinstance(records, memoryview) else []


def newest_of_first_batch(batches: Iterable[tuple[BatchHeader, memoryview]]) -> int | None:
    """The newest timestamp of the first batch: what is unread from there on is at most that young."""
    for header, _ in batches:
        return header.max_timestamp_ms if header.max_timestamp_ms >= 0 else None
    return None


def count_keys(batches: Iterable[tuple[BatchHeader, memoryview]], most: int) -> KeySample:
    """Count the keys of the first `most` messages. A batch that cannot be opened is left out."""
    counts: Counter[bytes | None] = Counter()
    messages = 0
    for header, batch in batches:
        if header.is_control:
            continue
        try:
            records = decode_records(batch, header, _OPENED_BYTES)
        except CorruptBatch:
            continue
        for record in records[: most - messages]:
            counts[record.key] += 1
            messages += 1
        if messages >= most:
            break
    return KeySample(messages, tuple(counts.most_common(_COMMONEST)))
