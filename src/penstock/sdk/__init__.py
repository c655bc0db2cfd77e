"""Producer and Consumer for applications, over librdkafka. Importing this loads neither."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.sdk.aio import AsyncConsumer, AsyncProducer
    from penstock.sdk.consumer import Consumer
    from penstock.sdk.errors import PenstockError
    from penstock.sdk.exactly_once import Output
    from penstock.sdk.message import Message
    from penstock.sdk.producer import Producer
    from penstock.sdk.retrying import RetryTopics

__all__ = [
    "AsyncConsumer",
    "AsyncProducer",
    "Consumer",
    "Message",
    "Output",
    "PenstockError",
    "Producer",
    "RetryTopics",
]
_HOMES: Final = {
    "AsyncConsumer": "aio",
    "AsyncProducer": "aio",
    "Consumer": "consumer",
    "Message": "message",
    "Output": "exactly_once",
    "PenstockError": "errors",
    "Producer": "producer",
    "RetryTopics": "retrying",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock.sdk.{_HOMES[name]}"), name)
