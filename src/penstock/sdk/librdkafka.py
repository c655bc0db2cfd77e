"""The one door to confluent-kafka: loaded when the first client is made, its refusals turned into our errors."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from penstock.sdk.errors import ConfigurationError, from_kafka

LOGGER: Final = logging.getLogger("penstock.sdk")
STATISTICS_INTERVAL_MS: Final = 5_000
CONNECTION: Final = (  # beginnings of the names of settings that say how to reach a cluster
    "bootstrap.",
    "broker.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
)


def connect(make: Callable[..., Any], properties: Mapping[str, Any]) -> Any:
    """A librdkafka client; what it says goes to the logger `penstock.sdk`."""
    from confluent_kafka import KafkaException

    try:
        return make(dict(properties), logger=LOGGER)
    except KafkaException as error:
        raise ConfigurationError(str(error.args[0].str()), code=error.args[0].code()) from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(str(error)) from None


@contextmanager
def errors_of(place: str) -> Iterator[None]:
    """What librdkafka raises inside comes out as ours."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise from_kafka(error.args[0], place) from None


def client_id(settings: Mapping[str, Any]) -> str:
    return str(settings.get("client_id") or f"penstock-{uuid4().hex[:8]}")
