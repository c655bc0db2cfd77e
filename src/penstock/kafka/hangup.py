"""The one error that ends a connection instead of answering on it."""


class HangUp(Exception):
    """The connection cannot go on; the message says why."""
