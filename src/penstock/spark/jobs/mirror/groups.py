"""Copy the offsets of consumer groups, unchanged: a mirror has the same offsets as its source.

So a group that moves to the target continues exactly where it was. The job reads the offsets before
it copies records and writes them afterwards, so no group is ahead of its mirror.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.client import groups
from penstock.client.errors import ClientError
from penstock.client.groups import Committed
from penstock.client.pool import Pool
from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.spark.jobs.mirror.beats import PREFIX
from penstock.spark.steps import reached

Positions = Mapping[str, Mapping[TopicPartition, Committed]]

_TYPES: Final = ("classic", "consumer", "")  # the last: brokers that do not say


class Copied(NamedTuple):
    """What became of the groups."""

    written: tuple[str, ...]
    same: int
    active: tuple[str, ...]  # they have members at the target, and are left alone


async def read_groups(
    source: Pool, names: Mapping[str, str], pattern: str | None
) -> dict[str, dict[TopicPartition, Committed]]:
    """Positions in mirrored topics, by group, under the mirrors' `names`."""
    wanted = re.compile(pattern if pattern is not None else ".*", re.DOTALL)
    found: dict[str, dict[TopicPartition, Committed]] = {}
    for listed in await groups.list_groups(source):
        name = listed.name
        if listed.type not in _TYPES or name.startswith(PREFIX) or not wanted.fullmatch(name):
            continue
        try:
            positions = await groups.committed_with_metadata(source, name)
        except ClientError as error:
            if error.code is ErrorCode.GROUP_ID_NOT_FOUND:  # deleted since
                continue
            raise
        moved = {
            TopicPartition(names[place.topic], place.partition): position
            for place, position in positions.items()
            if place.topic in names and position.offset >= 0
        }
        if moved:
            found[name] = moved
    return found


async def write_groups(
    target: Pool,
    positions: Positions,
    ends: Mapping[TopicPartition, int],
    *,
    forward_only: bool = False,
) -> Copied:
    """`ends`: of the mirrors; a group does not go beyond. `forward_only`: nor back."""
    written, same, active = [], 0, []
    for name, wanted in positions.items():
        bounded = {
            place: at._replace(offset=min(at.offset, ends[place]))
            for place, at in wanted.items()
            if place in ends
        }
        has = await _committed(target, name)
        changed = {
            place: at
            for place, at in bounded.items()
            if has.get(place) != at
            and not (forward_only and place in has and has[place].offset >= at.offset)
        }
        if not changed:
            same += 1
        elif await _write(target, name, changed):
            written.append(name)
            reached("mirror:group")
        else:
            active.append(name)
    return Copied(tuple(written), same, tuple(active))


async def _committed(target: Pool, name: str) -> dict[TopicPartition, Committed]:
    try:
        return await groups.committed_with_metadata(target, name)
    except ClientError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return {}
        raise


async def _write(target: Pool, name: str, changed: Mapping[TopicPartition, Committed]) -> bool:
    """False: it has members there."""
    try:
        await groups.set_offsets(
            target,
            name,
            {place: at.offset for place, at in changed.items()},
            {place: at.metadata for place, at in changed.items()},
        )
    except ClientError as error:
        if error.code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.UNKNOWN_MEMBER_ID):
            return False
        raise
    return True
