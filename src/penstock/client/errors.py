"""One exception for everything that can go wrong between us and a broker; its code says what to do next."""

from typing import Final

from penstock.model.errors import BrokerError, ErrorCode

RETRIABLE: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)


class ClientError(BrokerError):
    """What a broker answered, or why it could not be asked.

    `outcome_unknown` means that the request was sent and may have been carried out.
    """

    def __init__(self, message: str, code: ErrorCode, *, outcome_unknown: bool = False) -> None:
        super().__init__(message, code)
        self.message = message
        self.outcome_unknown = outcome_unknown

    @property
    def is_retriable(self) -> bool:
        return self.code in RETRIABLE


class ConnectionRefused(ClientError):
    """The machine answered that nobody listens there."""


def error_code(number: int) -> ErrorCode:
    """Kafka's code for `number`; one that we do not know yet is an UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(number: int, message: str | None, subject: str) -> None:
    """Raises for every code but NONE: the broker's own sentence, or `subject` and the code's name."""
    code = error_code(number)
    if code is not ErrorCode.NONE:
        raise ClientError(message or f"{subject}: {describe(number)}", code)


def describe(number: int) -> str:
    """`LEADER_NOT_AVAILABLE` as `leader not available`."""
    code = error_code(number)
    if code is ErrorCode.UNKNOWN_SERVER_ERROR and number != code:
        return f"error {number}"
    if code is ErrorCode.KAFKA_STORAGE_ERROR:
        return "its broker cannot use what it has on disk; see the broker's log"
    return code.name.removesuffix("_EXCEPTION").replace("_", " ").lower()
