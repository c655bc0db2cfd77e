"""Delivery state of single messages: acknowledgements, dead letters, delays."""
