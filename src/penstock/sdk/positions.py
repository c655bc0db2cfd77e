"""Places in topics: times as milliseconds, where to begin, and librdkafka's own form."""

from datetime import datetime
from typing import Any

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.message import Place

Time = datetime | int


def epoch_ms(when: Time) -> int:
    """Milliseconds since 1970.

    >>> from datetime import UTC
    >>> epoch_ms(datetime(2026, 11, 15, tzinfo=UTC))
    1794700800000
    """
    return int(when.timestamp() * 1000) if isinstance(when, datetime) else int(when)


def reset_policy(reset: str | Time) -> str:
    """librdkafka's name for where to begin without an offset; a time is looked up by us."""
    if not isinstance(reset, str):
        return "earliest"
    policies = {"earliest": "earliest", "latest": "latest", "none": "error"}
    if reset not in policies:
        raise ConfigurationError(
            f"auto_offset_reset={reset!r}",
            remedy="give 'earliest', 'latest', 'none', a datetime, or milliseconds since 1970",
        )
    return policies[reset]


def partition(place: Place, offset: int | None = None) -> Any:
    """As librdkafka takes it."""
    from confluent_kafka import TopicPartition

    return TopicPartition(*place) if offset is None else TopicPartition(*place, offset)
