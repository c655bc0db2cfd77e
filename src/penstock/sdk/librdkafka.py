"""The one door to confluent-kafka: loaded when the first client is made, its refusals turned into our errors."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

from penstock.sdk.errors import Closed, ConfigurationError, from_kafka
from penstock.sdk.settings import in_our_words

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
_REMEDY: Final = "settings are described in librdkafka's CONFIGURATION.md"
_QUIET_S: Final = 10.0


class Repeats(logging.Filter):
    """Lets the same sentence pass once in a while: a broker that is away is tried many times a second."""

    def __init__(self, quiet_s: float = _QUIET_S) -> None:
        super().__init__()
        self._quiet_s = quiet_s
        self._said: dict[str, float] = {}  # by the time it may be said again

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        now_s = record.created
        if now_s < self._said.get(said, 0.0):
            return False
        self._said = {text: until for text, until in self._said.items() if now_s < until}
        self._said[said] = now_s + self._quiet_s
        return True


LOGGER.addFilter(Repeats())


def connect(make: Callable[..., Any], properties: Mapping[str, Any]) -> Any:
    """A librdkafka client; what it says goes to the logger `penstock.sdk`."""
    from confluent_kafka import KafkaException

    try:
        return make(dict(properties), logger=LOGGER)
    except KafkaException as error:
        said = error.args[0]
        raise ConfigurationError(
            in_our_words(said.str()), remedy=_REMEDY, code=said.code()
        ) from None
    except (TypeError, ValueError) as error:
        raise ConfigurationError(in_our_words(str(error)), remedy=_REMEDY) from None


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


class ClosedClient:
    """In place of librdkafka's client after `close`: whatever is asked of it, it says so."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __getattr__(self, name: str) -> Any:
        raise Closed(f"this {self._what} is closed")
