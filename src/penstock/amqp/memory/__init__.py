"""Queues in the memory of one broker: transient and exclusive ones, and the backend of tests."""
