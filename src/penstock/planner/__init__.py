"""Capacity and cost planning: what a load needs, what it costs, what would cost less. Pure."""
