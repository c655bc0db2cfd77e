"""A classic group: members that agree on a generation, an assignment made by one of them, in five states.

The numbers that decide (who is awaited, what all members support) are kept as members come and go, so
that no request costs more because the group is large.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from penstock.groups.events import ReplyTo, SessionExpired
from penstock.groups.protocol import CONSUMER_PROTOCOL, subscribed_topics
from penstock.groups.topics import Topics
from penstock.model.errors import ErrorCode
from penstock.model.group_configs import ConsumerTimes

Protocols = Sequence[tuple[str, bytes]]  # name and metadata, in order of preference

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000  # a first join is not kept waiting for longer


class State(Enum):
    EMPTY = "Empty"  # no members; offsets may remain
    PREPARING = "PreparingRebalance"  # collecting members until all are back or time is up
    COMPLETING = "CompletingRebalance"  # waiting for the leader's assignment
    STABLE = "Stable"  # everyone can know their partitions
    DEAD = "Dead"  # there is no such group (any more)


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING, State.DEAD}),
    State.PREPARING: frozenset({State.COMPLETING, State.EMPTY, State.DEAD}),
    State.COMPLETING: frozenset({State.STABLE, State.PREPARING, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING, State.DEAD}),
    State.DEAD: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings that groups obey, from the broker's configuration."""

    initial_rebalance_delay_ms: int = 0
    max_size: int = 2**31 - 1
    consumer_max_size: int = 2**31 - 1
    consumer_heartbeat_interval_ms: int = 5000
    consumer_session_timeout_ms: int = 45_000
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # the first is the default


@dataclass(frozen=True, slots=True)
class GroupContext:
    """What groups depend on: the broker's settings, and the topics of the cluster as they change."""

    rules: Rules
    topics: Topics
    own_times: Mapping[str, ConsumerTimes] = field(default_factory=dict)  # of groups with settings

    def times_of(self, group_id: str) -> ConsumerTimes:
        """The times of a consumer group: its own where they are set, else the broker's."""
        own = self.own_times.get(group_id)
        if own is not None:
            return own
        rules = self.rules
        return ConsumerTimes(
            rules.consumer_session_timeout_ms, rules.consumer_heartbeat_interval_ms
        )


class Member:
    """One member of a classic group. At most one of its requests waits at a time, per kind."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "expiry",
        "id",
        "instance_id",
        "is_new",
        "join",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        id: str,
        *,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.id = id
        self.expiry = SessionExpired(id)  # made once: every heartbeat sets a timer to it
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False  # it has not been part of a generation yet
        self.join: ReplyTo | None = None  # its parked JoinGroup
        self.sync: ReplyTo | None = None  # its parked SyncGroup

    @property
    def is_excused(self) -> bool:
        """A member that waits for an answer from us need not send heartbeats, unless it is new (KAFKA-6400)."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: frozenset[str]) -> str | None:
        return next((name for name, _ in self.protocols if name in candidates), None)


class ClassicGroup:
    """Only `groups.machine` changes it, through the methods here that keep the counts right."""

    __slots__ = (
        "_support",
        "awaited",
        "context",
        "generation",
        "id",
        "initial",
        "leader",
        "members",
        "newcomer",
        "pending",
        "protocol",
        "protocol_type",
        "since_ms",
        "since_wall_ms",
        "state",
        "static",
        "subscribed",
        "unsynced",
    )

    def __init__(self, id: str, context: GroupContext, *, now_ms: int = 0) -> None:
        self.id = id
        self.context = context
        self.state = State.EMPTY
        self.since_ms = now_ms  # in this state, on the monotonic clock
        self.since_wall_ms = -1  # likewise, as it was read back; -1: since then
        self.generation = 0
        self.protocol_type: str | None = None  # None: offsets without membership
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static: dict[str, str] = {}  # member ids by instance id
        self.pending: set[str] = set()  # ids that were given out and have not joined yet
        self.unsynced: set[str] = set()  # members that have not asked for their assignment
        self.awaited = 0  # members whose join does not wait here
        self.initial = False  # this rebalance began with an empty group
        self.newcomer = False  # someone joined during the initial delay
        self.subscribed: frozenset[str] | None = None  # None: not known
        self._support: dict[str, int] = {}  # protocols, and how many members can do them

    def move_to(self, state: State, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"{self.id}: {self.state} -> {state}"
        self.initial = state is State.PREPARING and self.state is State.EMPTY
        self.state = state
        self.since_ms, self.since_wall_ms = now_ms, -1

    def restore(self, state: State, generation: int) -> None:
        """As it was, in a log or as a group of another kind: not a transition of this one."""
        self.state = state
        self.generation = generation

    # Members -----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    @property
    def is_complete(self) -> bool:
        """Every member has joined, and so has everyone who was promised a place."""
        return not self.awaited and not self.pending

    @property
    def waiting_count(self) -> int:
        return len(self.members) - self.awaited

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def add(self, member: Member, protocol_type: str) -> None:
        assert member.id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self.members[member.id] = member
        self.awaited += member.join is None
        self._count_support(member.protocols, 1)
        self.pending.discard(member.id)

    def remove(self, member: Member) -> None:
        assert member.join is None, "its join was answered before"
        assert member.sync is None, "its sync was answered before"
        del self.members[member.id]
        self.awaited -= 1
        self._count_support(member.protocols, -1)
        if member.instance_id is not None:
            del self.static[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        self.unsynced.discard(member.id)

    def rename(self, member: Member, new_id: str) -> None:
        """A static member came back: the same place in the group under a new id."""
        assert member.instance_id is not None
        del self.members[member.id]
        self.unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = new_id
        member.id = new_id
        member.expiry = SessionExpired(new_id)
        self.members[new_id] = member
        self.static[member.instance_id] = new_id

    def park_join(self, member: Member, reply_to: ReplyTo) -> None:
        assert member.join is None
        member.join = reply_to
        self.awaited -= 1

    def release_join(self, member: Member) -> ReplyTo | None:
        """Who waits for the answer to the member's join; it waits no longer."""
        reply_to, member.join = member.join, None
        self.awaited += reply_to is not None
        return reply_to

    # Protocols ---------------------------------------------------------------------------------

    @property
    def is_consumer(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL

    def change_protocols(self, member: Member, protocols: Protocols) -> None:
        self._count_support(member.protocols, -1)
        member.protocols = protocols
        self._count_support(protocols, 1)

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these could be in the group."""
        if self.state is State.EMPTY:
            return bool(protocol_type) and bool(protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._support.get(name, 0) == count for name, _ in protocols
        )

    def chosen_protocol(self) -> str:
        """What most members prefer, of what all of them support."""
        count = len(self.members)
        candidates = frozenset(name for name, n in self._support.items() if n == count)
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = member.vote(candidates)
            if vote is not None:
                votes[vote] = votes.get(vote, 0) + 1
        assert votes, f"{self.id}: only members with a common protocol are let in"
        return max(votes, key=votes.__getitem__)

    def compute_subscribed(self) -> frozenset[str] | None:
        """The topics that some member subscribes to, as far as its metadata says."""
        if not self.is_consumer:
            return None
        return subscribed_topics(m.metadata(self.protocol) for m in self.members.values())

    def _count_support(self, protocols: Protocols, change: int) -> None:
        for name in {name for name, _ in protocols}:
            count = self._support.get(name, 0) + change
            if count:
                self._support[name] = count
            else:
                del self._support[name]

    # Who may speak for whom --------------------------------------------------------------------

    def refusal(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if this is a member, and the one that holds the instance id if it names one."""
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID
