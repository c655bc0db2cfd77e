"""Penstock: a distributed message queue that every Kafka client can use."""

__version__ = "0.1.0"  # the build reads this line, so it carries no annotation
