"""What happens to a transactional id, and what it asks to be done about it.

Effects are done in order. Whatever follows a write waits until that write is committed: a transaction
is decided in the log before anybody hears of it, and before any partition is told.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.model.errors import ErrorCode
from penstock.model.ids import TopicPartition
from penstock.transactions.state import NO_EPOCH, NO_ID, Producer

ReplyTo: TypeAlias = object  # the caller that waits; passed back unchanged

# What happens ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Initialize:
    """A producer begins to use the id, or goes on with a new epoch after an error (KIP-360)."""

    reply_to: ReplyTo
    timeout_ms: int
    expected: Producer | None = None  # who it says that it is
    fresh_id: int = NO_ID  # a producer id that nobody has; see NeedProducerId


@dataclass(frozen=True, slots=True)
class Add:
    """Partitions become a part of the transaction, which the first of them begins."""

    reply_to: ReplyTo
    producer: Producer
    partitions: frozenset[TopicPartition]
    version: int = 0  # of transactions, that the client knows


@dataclass(frozen=True, slots=True)
class End:
    reply_to: ReplyTo
    producer: Producer
    committed: bool
    version: int = 0
    fresh_id: int = NO_ID


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Every partition knows how the transaction of this producer ended."""

    producer: Producer


@dataclass(frozen=True, slots=True)
class Overdue:
    """It is time to see whether the transaction has lasted too long."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The state was read back from the log: what was prepared must be finished."""


Request: TypeAlias = Initialize | Add | End
Event: TypeAlias = Request | MarkersWritten | Overdue | Loaded


# What must be done -------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What a producer is told."""

    code: ErrorCode
    producer: Producer = Producer(NO_ID, NO_EPOCH)


class Markers(NamedTuple):
    """How a transaction ended, for the partitions that took part in it."""

    transactional_id: str
    producer: Producer
    committed: bool
    partitions: tuple[TopicPartition, ...]
    ends_epoch: bool  # the producer has an epoch of its own: what it marks is of an older one


@dataclass(frozen=True, slots=True)
class Write:
    """Put this record into the log; a value of None forgets the key."""

    key: bytes
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Reply:
    to: ReplyTo
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class SendMarkers:
    """Tell the partitions, again and again until each has it, then say MarkersWritten."""

    markers: Markers


@dataclass(frozen=True, slots=True)
class NeedProducerId:
    """Deliver the request again, with an id that nobody has."""

    request: Initialize | End


Effect: TypeAlias = Write | Reply | SendMarkers | NeedProducerId
