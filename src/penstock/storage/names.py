"""Names in the data directory: a topic's never meet the broker's own, whatever the topic is called."""

import os
import re
from typing import Final, NamedTuple

from penstock.model.ids import TopicId, format_topic_id, parse_topic_id

DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"
_ESCAPE: Final = "~"  # no topic's name has it
_ASIDE: Final = "~~"
_OWN: Final = frozenset(
    (
        "ballast",
        "clean",
        "high-watermarks",
        "lock",
        "log-starts",
        "recovery-points",
        "running",
        "store-revision",
    )
)
_OWN_PREFIXES: Final = ("meta.", "metadata.")
_OWN_SUFFIXES: Final = (".tmp",)
_LOG_ASIDE: Final = re.compile(r"~partition-(\d+)~(\d+)\.([\w-]{22})(?:\.\d+)?-stray$")
_KEPT_LENGTH: Final = 180  # of a topic's name, so that the rest has room in a file name


def directory_of(topic: str) -> str:
    is_taken = topic in _OWN or topic.startswith(_OWN_PREFIXES) or topic.endswith(_OWN_SUFFIXES)
    return _ESCAPE + topic if is_taken else topic


def topic_of(directory: str) -> str:
    return directory[1:] if directory.startswith(_ESCAPE) else directory


def is_topic(directory: str) -> bool:
    """Whether a directory of that name is a topic's, and not one that was set aside."""
    return directory_of(topic_of(directory)) == directory


def is_aside(directory: str) -> bool:
    return directory.startswith(_ASIDE)


class LogAside(NamedTuple):
    """The log of one partition that was set aside."""

    topic_id: TopicId
    partition: int
    checkpoint: int  # number of the newest one at that time


def log_aside(directory: str) -> LogAside | None:
    """The log that a directory of that name holds; None if that is not one log of a known topic."""
    match = _LOG_ASIDE.search(directory) if is_aside(directory) else None
    return match and LogAside(parse_topic_id(match[3]), int(match[1]), int(match[2]))


def log_aside_path(
    root: str, topic: str, topic_id: TopicId | None, partition: int, checkpoint: int
) -> str:
    """Where the log of one partition waits to be removed; a path that is not taken."""
    log = f"{_ESCAPE}partition-{partition}{_ESCAPE}{checkpoint}"
    return set_aside_path(root, topic, topic_id, STRAY_SUFFIX, log)


def set_aside_path(
    root: str, topic: str, topic_id: TopicId | None, suffix: str, log: str = ""
) -> str:
    """Where a topic's files wait to be removed, or those of one log; a path that is not taken."""
    owner = format_topic_id(topic_id) if topic_id is not None else "unknown"
    stem, count = f"{root}/{_ASIDE}{topic[:_KEPT_LENGTH]}{log}.{owner}", 0
    path = f"{stem}{suffix}"
    while os.path.exists(path):
        count += 1
        path = f"{stem}.{count}{suffix}"
    return path
