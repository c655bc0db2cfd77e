"""Mark where a record came from, in a header that each link adds.

So no ring of links copies a record back to where it was.
"""

from collections.abc import Iterable
from typing import Final

from penstock.model.ids import TopicPartition
from penstock.records.record import Header

HEADER: Final = "penstock-mirror-origin"
_PART: Final = b":"


def origin(cluster_id: str, place: TopicPartition) -> bytes:
    """What comes before the offset."""
    return f"{cluster_id}:{place.topic}:{place.partition}:".encode()


class Guard:
    """Of a link to one cluster: which records were there before."""

    def __init__(self, target_id: str, target: TopicPartition) -> None:
        self._cluster = target_id.encode() + _PART
        self._place = origin(target_id, target)

    def was_there(self, headers: Iterable[Header]) -> bool:
        """Written there first, or on its way through it."""
        return any(
            key == HEADER and value is not None and value.startswith(self._cluster)
            for key, value in headers
        )

    def offset_there(self, headers: Iterable[Header]) -> int | None:
        """Where in this very partition it was; None: in another one."""
        for key, value in headers:
            if key == HEADER and value is not None and value.startswith(self._place):
                offset = value[len(self._place) :]
                return int(offset) if offset.isdigit() else None
        return None
