"""Which names a topic may have: Kafka's rules."""

import re
from typing import Final

from penstock.metadata.image import ClusterImage
from penstock.model.errors import BrokerError, ErrorCode

MAX_LENGTH: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


class InvalidTopicName(BrokerError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


def check_topic_name(name: str) -> None:
    """Raises InvalidTopicName for a name that no topic can have."""
    if not name:
        raise InvalidTopicName("the topic name is empty")
    if name in (".", ".."):
        raise InvalidTopicName(f"the topic name cannot be {name!r}")
    if len(name) > MAX_LENGTH:
        raise InvalidTopicName(
            f"the topic name has {len(name)} characters; at most {MAX_LENGTH} are allowed"
        )
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicName(
            f"the topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'"
        )


def check_no_collision(image: ClusterImage, name: str) -> None:
    """In metrics `.` and `_` are the same, so two topics must not differ by them alone."""
    other = image.colliding_topic(name)
    if other is not None:
        raise InvalidTopicName(
            f"topic '{name}' collides with topic '{other}': '.' and '_' are the same in metrics"
        )
