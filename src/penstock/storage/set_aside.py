"""Marks of logs that were set aside while the checkpoints on disk still name them.

After a crash the new log of such a partition must not be measured by what the checkpoints say of the old one: it
would look damaged. A mark is an empty directory, because making one needs no descriptor.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from penstock.model.ids import TopicId
from penstock.storage import names

_MARK: Final = "unsaved"
_PARTITION: Final = "partition-"


def mark(aside: str) -> None:
    """Mark a directory that is about to take a log. Raises OSError."""
    os.mkdir(f"{aside}/{_MARK}")


def unmark(aside: str) -> None:
    """Remove the mark: the checkpoints on disk name the log no more."""
    with suppress(
        OSError
    ):  # it was removed with its directory, or the next start does more than it must
        os.rmdir(f"{aside}/{_MARK}")


def marked(root: str) -> Iterator[tuple[str, TopicId, int]]:
    """Yield the directory, the topic id and the partition of each log with a mark."""
    for name in os.listdir(root):
        aside = f"{root}/{name}"
        topic_id = names.owner_of(name) if names.is_aside(name) else None
        if topic_id is None or not os.path.isdir(f"{aside}/{_MARK}"):
            continue
        for log in os.listdir(aside):
            if log.startswith(_PARTITION):
                yield aside, topic_id, int(log.removeprefix(_PARTITION))
