"""Penstock: a distributed message queue that every Kafka client can use."""

from typing import Final

__version__: Final = "0.1.0"
