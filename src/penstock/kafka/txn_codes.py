"""What producers of each version are told: a code that they do not know is one that they act wrongly upon."""

from penstock.model.errors import ErrorCode


def told(code: ErrorCode, version: int, *, fenced_since: int) -> ErrorCode:
    """PRODUCER_FENCED came late (KIP-588); before, INVALID_PRODUCER_EPOCH said the same."""
    if code is ErrorCode.PRODUCER_FENCED and version < fenced_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
