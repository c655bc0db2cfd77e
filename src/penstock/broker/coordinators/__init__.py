"""The group and transaction coordinators, on the partitions that keep their state."""
