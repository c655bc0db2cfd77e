"""Penstock beside its peers: what is run, how often, and what may be said about it."""
