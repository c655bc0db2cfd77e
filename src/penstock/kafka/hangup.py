"""The one error that ends a connection instead of answering on it."""


class HangUp(Exception):
    """The connection cannot go on; the message says why."""

    def without_frames(self) -> "HangUp":
        """Drop the traceback, and the errors behind it: their frames keep the request in memory."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)
