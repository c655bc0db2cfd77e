"""One number for each partition of a broker, in one file: recovery points, high watermarks, log starts, sizes.

A damaged file is treated as lost, and a partition that it does not name is then unknown, never 0.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from penstock.model.ids import TopicId, format_topic_id, parse_topic_id
from penstock.storage import checksummed_json
from penstock.storage.files import Disk, read_small, write_atomically

RECOVERY_POINTS: Final = "recovery-points"
HIGH_WATERMARKS: Final = "high-watermarks"
LOG_STARTS: Final = "log-starts"
LOG_SIZES: Final = "meta.log-sizes"  # bytes of all segments, at the end of a run that ended well

Offsets = Mapping[
    TopicId, Mapping[int, int]
]  # by topic id, so that a topic made anew inherits nothing


class Checkpoint(NamedTuple):
    offsets: dict[TopicId, dict[int, int]]
    is_complete: bool  # no partition was ever forgotten by damage: one that is not named has none
    number: int = 0  # of the checkpoint that wrote the file; 0: an older version did, or none

    def get(self, topic_id: TopicId, partition: int) -> int | None:
        return self.offsets.get(topic_id, {}).get(partition)

    def forget(self, topic_id: TopicId, partition: int | None = None) -> None:
        if partition is None:
            self.offsets.pop(topic_id, None)
        else:
            self.offsets.get(topic_id, {}).pop(partition, None)

    def updated(self, changes: Iterable[tuple[TopicId, int, int]]) -> "Checkpoint":
        offsets = {topic_id: dict(found) for topic_id, found in self.offsets.items()}
        for topic_id, partition, offset in changes:
            offsets.setdefault(topic_id, {})[partition] = offset
        return self._replace(offsets=offsets)


def encode(name: str, checkpoint: Checkpoint) -> bytes:
    topics = {format_topic_id(key): value for key, value in checkpoint.offsets.items() if value}
    content = {
        "complete": checkpoint.is_complete,
        "number": checkpoint.number,
        "topics": topics,
    }
    return checksummed_json.encode(name, content)


def write(directory: str, name: str, checkpoint: Checkpoint, disk: Disk) -> None:
    """Waits for the disk: for a thread."""
    write_atomically(f"{directory}/{name}", encode(name, checkpoint), disk=disk)


def read(directory: str, name: str) -> Checkpoint:
    lost = Checkpoint({}, is_complete=False)
    data = read_small(f"{directory}/{name}")
    if data is None:
        return lost
    try:
        content = checksummed_json.decode(name, data)
        offsets = {
            parse_topic_id(topic_id): {int(index): int(offset) for index, offset in found.items()}
            for topic_id, found in content["topics"].items()
        }
        return Checkpoint(offsets, content["complete"] is True, int(content.get("number", 0)))
    except (checksummed_json.Damaged, KeyError, TypeError, ValueError, AttributeError):
        return lost
