"""Partitions and their replicas on this broker: append, read, replicate, make durable."""
