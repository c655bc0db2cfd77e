"""Where to begin in each partition: what people say, as offsets that are inside the log."""

from collections.abc import Sequence

from penstock.cli import values
from penstock.client import admin
from penstock.client.pool import Pool
from penstock.model.ids import TopicPartition

Offsets = dict[TopicPartition, admin.OffsetAt]


async def resolve(
    pool: Pool, partitions: Sequence[TopicPartition], position: values.Position
) -> dict[TopicPartition, int]:
    """Never before the first record that is there, nor past the newest."""
    first = await admin.list_offsets(pool, dict.fromkeys(partitions, admin.EARLIEST))
    last = await admin.list_offsets(pool, dict.fromkeys(partitions, admin.LATEST))
    wanted = await _wanted(pool, position, first, last)
    return {
        partition: min(max(wanted[partition], first[partition].offset), last[partition].offset)
        for partition in partitions
    }


async def _wanted(
    pool: Pool, position: values.Position, first: Offsets, last: Offsets
) -> dict[TopicPartition, int]:
    match position:
        case values.Start():
            return {partition: at.offset for partition, at in first.items()}
        case values.End():
            return {partition: at.offset for partition, at in last.items()}
        case values.Offset(offset):
            return dict.fromkeys(first, offset)
        case values.Instant(timestamp_ms):
            found = await admin.list_offsets(pool, dict.fromkeys(first, timestamp_ms))
            return {
                partition: last[partition].offset if at.offset < 0 else at.offset
                for partition, at in found.items()
            }
