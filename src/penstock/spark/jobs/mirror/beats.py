"""Store how far a mirror is known to be, as offsets of a group without members at the target.

So the position outlives the source. The metadata of each offset holds the end of the source and the
time at which that was measured: all records that are older than this time are in the mirror.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.client import groups
from penstock.client.errors import ClientError
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition

PREFIX: Final = "penstock-mirror."


class Beat(NamedTuple):
    """Of one partition of a mirror."""

    offset: int  # where the mirror ended
    source_end: int
    at_ms: int  # when the source ended there
    of: str = ""  # topic ids: a topic that was created anew has nothing to do with it
    promoted_at_ms: int = 0  # 0: it is a mirror

    @property
    def behind(self) -> int:
        return max(0, self.source_end - self.offset)


def ids(source_id: bytes | str, mirror_id: bytes) -> str:
    """Of the topics at both ends."""
    source = source_id if isinstance(source_id, str) else source_id.hex()
    return f"{source}>{mirror_id.hex()}"


def group_of(source_id: str) -> str:
    return f"{PREFIX}{source_id}"


async def read_beats(target: Pool, source_id: str) -> dict[TopicPartition, Beat]:
    try:
        found = await groups.committed_with_metadata(target, group_of(source_id))
    except ClientError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        raise
    return {
        partition: parse(position.offset, position.metadata)
        for partition, position in found.items()
        if position.offset >= 0
    }


async def write_beats(target: Pool, source_id: str, beats: Mapping[TopicPartition, Beat]) -> None:
    await groups.set_offsets(
        target,
        group_of(source_id),
        {partition: beat.offset for partition, beat in beats.items()},
        {partition: text(beat) for partition, beat in beats.items()},
    )


def text(beat: Beat) -> str:
    facts: dict[str, Any] = {"source_end": beat.source_end, "at_ms": beat.at_ms, "of": beat.of}
    if beat.promoted_at_ms:
        facts["promoted_at_ms"] = beat.promoted_at_ms
    return json.dumps(facts)


def parse(offset: int, metadata: str) -> Beat:
    """What somebody else wrote tells nothing but the offset."""
    try:
        facts: Any = json.loads(metadata)
        return Beat(
            offset,
            int(facts["source_end"]),
            int(facts["at_ms"]),
            str(facts.get("of", "")),
            int(facts.get("promoted_at_ms", 0)),
        )
    except (ValueError, KeyError, TypeError):
        return Beat(offset, offset, 0)
