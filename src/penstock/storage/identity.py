"""The file `partition.metadata`: whose log a directory holds."""

from typing import Final

from penstock.model.ids import TopicId, format_topic_id, parse_topic_id
from penstock.storage import sealed
from penstock.storage.files import write_atomically

FILE: Final = "partition.metadata"


def write(directory: str, topic_id: TopicId) -> str:
    path = f"{directory}/{FILE}"
    write_atomically(path, sealed.encode(FILE, {"topic_id": format_topic_id(topic_id)}))
    return path


def read(directory: str) -> TopicId | None:
    """None if the file is lost or damaged."""
    try:
        with open(f"{directory}/{FILE}", "rb") as file:
            return parse_topic_id(sealed.decode(FILE, file.read())["topic_id"])
    except (OSError, sealed.Damaged, KeyError, TypeError, ValueError, AttributeError):
        return None
