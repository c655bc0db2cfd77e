"""Real brokers for tests: `with Broker() as broker: broker.bootstrap`. Importing this loads no broker."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    """Late, because pytest imports this package for its plugin in every project that has Penstock."""
    if name == "Broker":
        from penstock.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
