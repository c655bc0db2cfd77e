"""Brokers for tests: in-process or as a subprocess, and pytest fixtures."""
