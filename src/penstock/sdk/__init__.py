"""Producer and Consumer for applications, over librdkafka. Importing this loads neither."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.sdk.consumer import Consumer
    from penstock.sdk.producer import Producer

__all__ = ["Consumer", "Producer"]
_HOMES: Final = {"Consumer": "consumer", "Producer": "producer"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"penstock.sdk.{_HOMES[name]}"), name)
