"""Routing: exchanges, their bindings, and the queues that a message goes to. Pure structures."""
