"""The file `partition.metadata`: whose log a directory holds, and whether offsets may be missing in it."""

from typing import Final, NamedTuple

from penstock.model.ids import TopicId, format_topic_id, parse_topic_id
from penstock.storage import checksummed_json
from penstock.storage.files import Disk, read_small, write_atomically

FILE: Final = "partition.metadata"


class Identity(NamedTuple):
    topic_id: TopicId
    has_gaps: bool  # compaction took offsets out, here or at the leader it was copied from


def write(directory: str, identity: Identity, disk: Disk | None = None) -> str:
    """With `disk` it is durable; else it is with the next flush."""
    path = f"{directory}/{FILE}"
    content = {"topic_id": format_topic_id(identity.topic_id), "has_gaps": identity.has_gaps}
    write_atomically(path, checksummed_json.encode(FILE, content), disk=disk)
    return path


def read(directory: str) -> Identity | None:
    """None if the file is lost or damaged."""
    data = read_small(f"{directory}/{FILE}")
    if data is None:
        return None
    try:
        content = checksummed_json.decode(FILE, data)
        return Identity(parse_topic_id(content["topic_id"]), content["has_gaps"] is True)
    except (checksummed_json.Damaged, KeyError, TypeError, ValueError, AttributeError):
        return None
