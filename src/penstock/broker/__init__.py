"""The engine: partitions, replicas, waiters, and the cluster they belong to."""
