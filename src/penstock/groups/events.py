"""What happens to a group, and what it asks to be done about it. Kafka's own messages are the vocabulary.

Effects are done in order, and a reply that follows a write waits until that write is committed.
What is made for every request is a tuple: three times as fast to make as a frozen dataclass.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from penstock.groups.records import Entry
from penstock.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from penstock.wire.messages.heartbeat import HeartbeatRequest
from penstock.wire.messages.join_group import JoinGroupRequest
from penstock.wire.messages.leave_group import LeaveGroupRequest
from penstock.wire.messages.sync_group import SyncGroupRequest
from penstock.wire.schema import Struct

ReplyTo: TypeAlias = object  # the caller that waits; passed back unchanged
TimerKey: TypeAlias = tuple[str, str]  # what it is about, and which member


class Client(NamedTuple):
    """Who sent a request, and what was drawn for it: cores have no randomness of their own."""

    id: str
    host: str
    version: int  # of the request
    fresh_id: str  # what a nameless member would be called


def sees_all(_: str) -> bool:
    return True


# What happens ------------------------------------------------------------------------------------


class Join(NamedTuple):
    reply_to: ReplyTo
    request: JoinGroupRequest
    client: Client


class Sync(NamedTuple):
    reply_to: ReplyTo
    request: SyncGroupRequest


class Heartbeat(NamedTuple):
    reply_to: ReplyTo
    request: HeartbeatRequest


class Leave(NamedTuple):
    reply_to: ReplyTo
    request: LeaveGroupRequest


class ConsumerHeartbeat(NamedTuple):
    """A member of a consumer group joins, lives or leaves (KIP-848)."""

    reply_to: ReplyTo
    request: ConsumerGroupHeartbeatRequest
    client: Client
    may_see: Callable[[str], bool] = sees_all  # which topics a pattern of this member may match


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """Nothing was heard of the member for its session timeout."""

    member: str


@dataclass(frozen=True, slots=True)
class InitialDelayOver:
    """A new group has waited for more members, for as long as it should or may."""

    delay_ms: int
    remaining_ms: int


@dataclass(frozen=True, slots=True)
class JoinDeadline:
    """Time is up: go on with the members that came back."""


@dataclass(frozen=True, slots=True)
class SyncDeadline:
    """Members of this generation that have not asked for their assignment are gone."""

    generation: int


@dataclass(frozen=True, slots=True)
class RevocationDeadline:
    """The member should have given up partitions, and so have left this epoch, by now."""

    member: str
    epoch: int


@dataclass(frozen=True, slots=True)
class MemberDeadline:
    """A classic member of a consumer group should have joined, or synced, by now."""

    member: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The group was read back from its log: its members have a whole session to show themselves."""


TimeEvent: TypeAlias = (
    SessionExpired
    | InitialDelayOver
    | JoinDeadline
    | SyncDeadline
    | RevocationDeadline
    | MemberDeadline
    | Loaded
)
Event: TypeAlias = Join | Sync | Heartbeat | Leave | ConsumerHeartbeat | TimeEvent


# What must be done -------------------------------------------------------------------------------


class Write(NamedTuple):
    """Put these records into the log, in this order. Whoever does stamps them with the time."""

    entries: list[Entry]


class WriteBytes(NamedTuple):
    """The same for records that are encoded already: keys and values, None for a tombstone."""

    records: list[tuple[bytes, bytes | None]]


class Reply(NamedTuple):
    to: ReplyTo
    message: Struct


class SetTimer(NamedTuple):
    """Deliver `event` at `at_ms`, instead of what the timer of that key was set to before."""

    key: TimerKey
    at_ms: int
    event: Event
    keep_earlier: bool = False  # leave a timer alone that is set already


class CancelTimer(NamedTuple):
    key: TimerKey


Effect: TypeAlias = Write | WriteBytes | Reply | SetTimer | CancelTimer
