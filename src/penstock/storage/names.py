"""Names in the data directory: a topic's never meet the broker's own, whatever the topic is called."""

import os
import re
from typing import Final

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
_OWNER: Final = re.compile(r"\.([\w-]{22})(?:\.\d+)?(?:-delete|-stray)$")  # the id of a topic
_KEPT_LENGTH: Final = 200  # of a topic's name, so that the id has room in a file name


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


def owner_of(aside: str) -> TopicId | None:
    """The topic id in the name of a directory that was set aside; None if there is none."""
    match = _OWNER.search(aside)
    return None if match is None else parse_topic_id(match[1])


def set_aside_path(root: str, topic: str, topic_id: TopicId | None, suffix: str) -> str:
    """Where a topic's files wait to be removed; a path that is not taken."""
    owner = format_topic_id(topic_id) if topic_id is not None else "unknown"
    stem, count = f"{root}/{_ASIDE}{topic[:_KEPT_LENGTH]}.{owner}", 0
    path = f"{stem}{suffix}"
    while os.path.exists(path):
        count += 1
        path = f"{stem}.{count}{suffix}"
    return path
