"""Penstock: a distributed message queue that every Kafka client can use. Types: __init__.pyi."""

__version__ = "0.1.0"  # the build reads this line, so it carries no annotation
__all__ = ["AsyncConsumer", "AsyncProducer", "Consumer", "Producer", "__version__"]


def __getattr__(name: str) -> object:
    """Late, and by name only: `penstock serve` has no use for a client, and no module of the broker may reach one."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("penstock.sdk"), name)
