"""Logs on disk: synchronous, and without knowledge of any network."""
