"""The controller: its decisions, their commits, and the requests that reach it."""
