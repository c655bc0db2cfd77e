"""Membership and offsets of groups, as pure state machines."""
