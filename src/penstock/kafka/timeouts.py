"""How long an admin request may take."""

from penstock.broker.controller.cluster import DEFAULT_TIMEOUT_MS


def patience_ms(timeout_ms: int) -> int:
    """A client that will not wait (0) is answered when the work is done.

    Nothing is left half begun that way: librdkafka takes a timeout of such a request for success.
    """
    return timeout_ms if timeout_ms > 0 else DEFAULT_TIMEOUT_MS
