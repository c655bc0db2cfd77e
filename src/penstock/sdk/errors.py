"""One tree of errors: each says whether the same call may succeed later (`retriable`), and what to do about it."""

from typing import Any, ClassVar, Final


class PenstockError(Exception):
    """Anything that a Producer or Consumer raises on purpose.

    >>> error = TimedOut("topic 'orders': no answer in 30 s", remedy="is the broker running?")
    >>> error.retriable, str(error)
    (True, "topic 'orders': no answer in 30 s; is the broker running?")
    """

    retriable: ClassVar[bool] = False
    default_remedy: ClassVar[str] = ""

    def __init__(self, fact: str, *, remedy: str | None = None, code: int | None = None) -> None:
        self.fact = fact
        self.remedy = self.default_remedy if remedy is None else remedy
        self.code = code
        super().__init__(f"{fact}; {self.remedy}" if self.remedy else fact)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.fact, self.remedy, self.code))


def _rebuild(kind: type[PenstockError], fact: str, remedy: str, code: int | None) -> PenstockError:
    return kind(fact, remedy=remedy, code=code)


class ConfigurationError(PenstockError, ValueError):
    """A setting or an argument that cannot work."""


class SerializationError(PenstockError, ValueError):
    """A key or value that its serializer cannot turn into bytes."""


class DeserializationError(PenstockError, ValueError):
    """Bytes that the deserializer cannot read: trying again would not help."""


class Closed(PenstockError):
    """The Producer or Consumer was closed before."""

    default_remedy = "make a new one"


class BufferExhausted(PenstockError):
    """The producer's buffer stayed full for `max_block_ms`."""

    retriable = True
    default_remedy = (
        "send slower, raise buffer_memory or max_block_ms, or check that the broker answers"
    )


class MessageTooLarge(PenstockError):
    """More bytes than the producer, the topic or the broker takes."""

    default_remedy = (
        "raise max_request_size and the topic's max.message.bytes, or give split_large=True"
    )


class TimedOut(PenstockError):
    """No answer in time. What was sent may or may not have arrived."""

    retriable = True
    default_remedy = "check that the brokers are up and reachable, or raise the timeout"


class ConnectionLost(PenstockError):
    """No broker could be reached."""

    retriable = True
    default_remedy = "check bootstrap, and that the brokers are up and reachable"


class Unavailable(PenstockError):
    """The cluster is there but cannot do it now: no leader, too few replicas, a coordinator that loads."""

    retriable = True
    default_remedy = "try again; if it lasts, check the health of the cluster"


class UnknownTopic(PenstockError):
    """A topic or partition that does not exist."""

    default_remedy = "create it with: penstock topic create NAME"


class AuthenticationFailed(PenstockError):
    """The broker does not believe who this is."""

    default_remedy = "check security_protocol, sasl_* and ssl_* settings"


class AuthorizationFailed(PenstockError):
    """The broker knows who this is, and refuses."""

    default_remedy = "ask the operator for the right on that topic, group or transactional id"


class NoOffset(PenstockError):
    """No committed offset, or one outside the log, and auto_offset_reset is 'none'."""

    default_remedy = "give auto_offset_reset='earliest', 'latest' or a time, or seek"


class CommitFailed(PenstockError):
    """The partitions belong to another member now; their messages will be handed out there again."""

    default_remedy = "process faster than max_poll_interval_ms, or raise it"


class Fenced(PenstockError):
    """Another instance with the same transactional_id or group_instance_id took over."""

    default_remedy = "end this instance: the newer one continues"


class TransactionTimedOut(PenstockError):
    """The transaction was open for longer than `transaction_timeout_ms`: the broker aborted it, and the producer is done."""

    default_remedy = "run it again with a new Producer; raise transaction_timeout_ms, or do less in a transaction"


class TransactionAborted(PenstockError):
    """Nothing of the transaction will be seen by read_committed consumers; run it again."""

    retriable = True
    default_remedy = "run the transaction again"


class ProcessingFailed(PenstockError):
    """A message failed every attempt, and there is no dead-letter topic to put it aside."""

    default_remedy = (
        "mend the handler, or give dead_letter='TOPIC'; the message will be handed out again"
    )


class BrokerRefused(PenstockError):
    """The broker answered with an error that has no class of its own: see `code`."""

    default_remedy = "the broker's log may say more"


_KINDS: Final[dict[type[PenstockError], str]] = {
    MessageTooLarge: "MSG_SIZE_TOO_LARGE RECORD_LIST_TOO_LARGE INVALID_MSG_SIZE",
    BufferExhausted: "_QUEUE_FULL",
    TimedOut: "_MSG_TIMED_OUT _TIMED_OUT _TIMED_OUT_QUEUE REQUEST_TIMED_OUT",
    ConnectionLost: "_ALL_BROKERS_DOWN _TRANSPORT _RESOLVE NETWORK_EXCEPTION _DESTROY_BROKER",
    Unavailable: "LEADER_NOT_AVAILABLE NOT_LEADER_FOR_PARTITION NOT_ENOUGH_REPLICAS _ISR_INSUFF _WAIT_COORD "
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND COORDINATOR_LOAD_IN_PROGRESS COORDINATOR_NOT_AVAILABLE NOT_COORDINATOR "
    "KAFKA_STORAGE_ERROR BROKER_NOT_AVAILABLE CONCURRENT_TRANSACTIONS _RETRY _IN_PROGRESS _PREV_IN_PROGRESS",
    UnknownTopic: "UNKNOWN_TOPIC_OR_PART _UNKNOWN_TOPIC _UNKNOWN_PARTITION UNKNOWN_TOPIC_ID",
    AuthenticationFailed: "_AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM",
    AuthorizationFailed: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    NoOffset: "_AUTO_OFFSET_RESET _NO_OFFSET OFFSET_OUT_OF_RANGE",
    CommitFailed: "ILLEGAL_GENERATION UNKNOWN_MEMBER_ID REBALANCE_IN_PROGRESS _ASSIGNMENT_LOST _MAX_POLL_EXCEEDED "
    "STALE_MEMBER_EPOCH FENCED_MEMBER_EPOCH",
    Fenced: "_FENCED INVALID_PRODUCER_EPOCH PRODUCER_FENCED FENCED_INSTANCE_ID",
    Closed: "_PURGE_QUEUE _PURGE_INFLIGHT _DESTROY",
    ConfigurationError: "_INVALID_ARG _NOT_CONFIGURED _CONFLICT",
}  # fmt: skip
_KIND_OF: Final = {name: kind for kind, names in _KINDS.items() for name in names.split()}


_REMEDIES: Final = {  # where the class's own would not help
    "INVALID_SESSION_TIMEOUT": "give a session_timeout_ms that the broker permits: group.min.session.timeout.ms "
    "to group.max.session.timeout.ms",
    "INVALID_TIMESTAMP": "give milliseconds since 1970 that the topic's message.timestamp.* settings permit",
    "TOPIC_EXCEPTION": "a topic's name has letters, digits, '.', '_' and '-' only",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "use a newer broker",
    "_UNKNOWN_PARTITION": "give a partition that the topic has, or none",
    "_PURGE_QUEUE": "close(), or the end of a transaction, gave it up: it was not sent",
    "_PURGE_INFLIGHT": "close(), or the end of a transaction, gave it up: it may have arrived",
    "_STATE": "it is too early or too late for this call: see its documentation",
}  # fmt: skip


def from_kafka(error: Any, place: str) -> PenstockError:
    """librdkafka's error as ours; `place` says what was attempted, such as "topic 'orders'"."""
    kind = _KIND_OF.get(error.name(), BrokerRefused)
    said = str(error.str()).replace("Broker: ", "").replace("Local: ", "")
    remedy = _REMEDIES.get(error.name(), kind.default_remedy)
    if place.startswith("topic '"):
        remedy = remedy.replace("NAME", place.removeprefix("topic '").partition("'")[0])
    return kind(f"{place}: {said} ({error.name()})", remedy=remedy, code=int(error.code()))
