"""Determine whether a batch was committed, and where a job starts to read.

Both follow from the offsets of the group, which each transaction commits.
"""

import json
from collections.abc import Mapping
from typing import Final

from penstock.model.ids import TopicPartition
from penstock.spark.errors import JobError
from penstock.spark.jobs.files import Files
from penstock.spark.offsets import Offsets, from_json
from penstock.spark.survey import Ranges, offsets_json
from penstock.spark.transactional import Committed

_START: Final = "penstock-start.json"
_EARLIEST: Final = -2


class Log:
    """What Spark writes down before a batch: up to where it goes."""

    def __init__(self, place: str, files: Files) -> None:
        self._place = place
        self._files = files

    def mark(self, batch: int) -> str:
        """Of a batch, the same each time it is tried; another checkpoint has other marks."""
        query = json.loads(self._files.read(f"{self._place}/metadata"))["id"]
        return f"query={query} batch={batch}"

    def end(self, batch: int) -> Offsets:
        path = f"{self._place}/offsets/{batch}"
        try:
            return from_json(json.loads(self._files.read(path).strip().splitlines()[-1]))
        except (OSError, ValueError, IndexError, AttributeError) as error:
            raise JobError(
                f"{path} does not say what the batch reads ({error}); delete the checkpoint to go on from "
                "where the group is"
            ) from error

    def unfinished(self) -> int | None:
        """The batch that an earlier run planned, and of which Spark does not know whether it was done."""
        done = set(self._files.names(f"{self._place}/commits"))
        planned = [
            int(name)
            for name in self._files.names(f"{self._place}/offsets")
            if name.isdigit() and name not in done
        ]
        return max(planned, default=None)

    def start(self, batch: int) -> Offsets:
        """Negative where it was not known yet."""
        return self.end(batch - 1) if batch else self.first()

    def remember(self, offsets: Mapping[TopicPartition, int]) -> str:
        """From where the first batch reads: decided once, since `latest` and times mean another offset later."""
        path = f"{self._place}/{_START}"
        self._files.create(path, offsets_json(offsets) + "\n")
        return self._files.read(path)

    def first(self) -> Offsets:
        return from_json(json.loads(self._files.read(f"{self._place}/{_START}")))


def starting(committed: Committed, ranges: Ranges, *, whole: bool, new_only: bool) -> Offsets:
    """Where the group is; what it has nothing of, from where the user wants it."""
    wanted = ranges.after if new_only else ranges.readable_first
    begin = dict.fromkeys(ranges.first, _EARLIEST) if whole else dict(wanted)
    return begin | {p: row.offset for p, row in committed.items() if p in begin}


def is_committed(
    committed: Committed,
    mark: str,
    *,
    group: str,
    start: Offsets,
    end: Offsets,
    was_tried: bool = False,
) -> bool:
    """Whether this batch is in the topic already; JobError if what the group has fits no run of this job.

    `was_tried`: by an earlier run, and not as the first of all. A group that has nothing then does not tell.
    """
    if not committed and was_tried:
        raise JobError(
            f"group {group} has no offsets any more (brokers forget those of idle groups), so nobody knows whether "
            f"the last batch was written ({mark}); look at the topic, then set the group and delete the checkpoint"
        )
    if any(row.metadata == mark for row in committed.values()):
        expected, known = end, True
    else:
        expected, known = {p: o for p, o in start.items() if o >= 0}, False
    for place, offset in expected.items():
        row = committed.get(place)
        if row is None and not known and not committed:
            continue  # the first batch of all, or a group that was forgotten between two batches
        if row is None or row.offset != offset:
            raise JobError(_strange(group, place, None if row is None else row.offset, offset))
    return known


def _strange(group: str, place: TopicPartition, found: int | None, expected: int) -> str:
    where = "nothing" if found is None else f"offset {found:,}"
    return (
        f"group {group} has {where} for {place}, and the checkpoint has {expected:,}: somebody moved the group, or "
        "another checkpoint was used; delete the checkpoint to go on from where the group is"
    )
