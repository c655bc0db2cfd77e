"""Places in topics: times as milliseconds, where to begin, and librdkafka's own forms."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from penstock.sdk.errors import ConfigurationError
from penstock.sdk.librdkafka import STATISTICS_INTERVAL_MS
from penstock.sdk.message import Place
from penstock.sdk.settings import FETCH_BACKOFF_MS, METADATA_REFRESH_MS, Role, translate

Time = datetime | int


def epoch_ms(when: Time) -> int:
    """Milliseconds since 1970. A datetime without a zone is local time, as everywhere in Python.

    >>> from datetime import UTC
    >>> epoch_ms(datetime(2026, 11, 15, tzinfo=UTC))
    1794700800000
    """
    if isinstance(when, datetime):
        return int(when.timestamp() * 1000)
    if isinstance(when, bool) or not isinstance(when, int | float):
        raise ConfigurationError(
            f"{when!r} is no time", remedy="give a datetime, or milliseconds since 1970"
        )
    return int(when)


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


def properties_of(
    bootstrap: str, group_id: str, reset: str | Time, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """What librdkafka is given for a Consumer."""
    given = translate(Role.CONSUMER, settings)
    return {
        "bootstrap.servers": bootstrap,
        "group.id": group_id,
        "statistics.interval.ms": STATISTICS_INTERVAL_MS,
        "fetch.queue.backoff.ms": FETCH_BACKOFF_MS,
        "topic.metadata.refresh.interval.ms": METADATA_REFRESH_MS,
        **given,
        "enable.auto.commit": False,  # we know what is finished; librdkafka does not
        "enable.auto.offset.store": False,
        "auto.offset.reset": reset_policy(reset),
    }


def partition(place: Place, offset: int | None = None) -> Any:
    """As librdkafka takes it."""
    from confluent_kafka import TopicPartition

    return TopicPartition(*place) if offset is None else TopicPartition(*place, offset)
