"""A consumer group (KIP-848): the coordinator assigns, and each member moves to its target at its own pace.

A partition belongs to one member until that member has said that it gave it up, or is gone.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from penstock.groups.assignment import NOTHING, Assignment, TopicIndex
from penstock.groups.patterns import Pattern
from penstock.groups.protocol import CONSUMER_PROTOCOL
from penstock.groups.state import GroupContext, Protocols
from penstock.groups.topics import TopicShape

LEAVING: Final = -1  # the epoch with which a member leaves
RESTLESS_MS: Final = 30_000  # for so long after a change members are asked to be heard often
RESTLESS_INTERVAL_MS: Final = 1000
LEAVING_FOR_A_WHILE: Final = -2  # and a static member that means to come back


class GroupState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class Phase(IntEnum):
    """Where a member is on its way to its target. The numbers are stored."""

    STABLE = 0
    REVOKING = 1  # it must give up partitions before it can go on
    WAITING = 2  # it is at the target's epoch; some partitions are still with others


class ClassicSide(NamedTuple):
    """What a member said that still speaks the classic protocol."""

    session_timeout_ms: int
    protocols: Protocols


class Profile(NamedTuple):
    """What a member says of itself: the part of it that is stored as one record."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    classic: ClassicSide | None = None


class ConsumerMember:
    __slots__ = ("assigned", "epoch", "id", "phase", "previous_epoch", "profile", "revoking")

    def __init__(self, id: str, profile: Profile | None = None) -> None:
        self.id = id
        self.profile = profile or Profile()
        self.epoch = 0
        self.previous_epoch = -1
        self.phase = Phase.STABLE
        self.assigned: Assignment = NOTHING
        self.revoking: Assignment = NOTHING

    @property
    def is_new(self) -> bool:
        """It has not been part of any epoch."""
        return self.previous_epoch < 0

    @property
    def is_classic(self) -> bool:
        return self.profile.classic is not None

    @property
    def holds(self) -> Assignment:
        return self.assigned | self.revoking if self.revoking else self.assigned

    def enter(self, epoch: int, phase: Phase) -> None:
        self.previous_epoch, self.epoch = self.epoch, epoch
        self.phase = phase

    def is_at(self, epoch: int) -> bool:
        return self.phase is Phase.STABLE and self.epoch == epoch


class ConsumerGroup:
    """Only `groups.machine` and the replay of its log change it."""

    __slots__ = (
        "assignment_epoch",
        "context",
        "epoch",
        "id",
        "matches",
        "members",
        "owners",
        "patterns",
        "restless_until_ms",
        "shapes",
        "static",
        "target",
        "topics_version",
    )

    protocol_type: Final = CONSUMER_PROTOCOL

    def __init__(self, id: str, context: GroupContext) -> None:
        self.id = id
        self.context = context
        self.epoch = 0
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}  # member ids by instance id
        self.target: dict[str, Assignment] = {}
        self.owners: dict[
            TopicIndex, str
        ] = {}  # who must give a partition up before another has it
        self.shapes: dict[str, TopicShape] = {}  # of the topics that members subscribe to
        self.matches: dict[str, frozenset[str]] = {}  # topics, by pattern of some member
        self.patterns: dict[str, Pattern] = {}  # those that have been compiled
        self.restless_until_ms = 0  # it changed a moment ago, and may well change again
        self.topics_version = -1  # of the cluster's topics that `shapes` was made from

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> GroupState:
        """For people: nothing depends on it."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        if all(member.is_at(self.assignment_epoch) for member in self.members.values()):
            return GroupState.STABLE
        return GroupState.RECONCILING

    @property
    def subscribed(self) -> frozenset[str]:
        topics: set[str] = set()
        for member in self.members.values():
            topics |= self.topics_of(member.profile)
        return frozenset(topics)

    def bump(self, now_ms: int) -> None:
        """A new epoch: what members should work on is to be decided anew."""
        self.epoch += 1
        self.restless_until_ms = now_ms + RESTLESS_MS

    def heartbeat_interval_ms(self, member: ConsumerMember, now_ms: int) -> int:
        """Shorter while something moves: a member hears of its part in it only by its own heartbeat."""
        usual_ms = self.context.times_of(self.id).heartbeat_interval_ms
        calm = now_ms >= self.restless_until_ms and member.is_at(self.epoch)
        return usual_ms if calm else min(usual_ms, RESTLESS_INTERVAL_MS)

    def topics_of(self, profile: Profile) -> frozenset[str]:
        """The names a member subscribes to, by name and by pattern."""
        if profile.pattern is None:
            return profile.topics
        return profile.topics | self.matches.get(profile.pattern, frozenset())

    def preferred_assignor(self) -> str:
        """What most members ask for; else the default."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.profile.assignor
            if name is not None:
                votes[name] = votes.get(name, 0) + 1
        return max(sorted(votes), key=votes.__getitem__, default=self.default_assignor)

    @property
    def default_assignor(self) -> str:
        return self.context.rules.consumer_assignors[0]

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        if instance_id is None:
            return None
        holder = self.static.get(instance_id)
        return None if holder is None else self.members[holder]

    def classic_protocol_counts(self) -> tuple[int, Mapping[str, int]]:
        """How many members speak the classic protocol, and how many support each of its names."""
        counts: dict[str, int] = {}
        classic = [m.profile.classic for m in self.members.values() if m.profile.classic]
        for side in classic:
            for name in {name for name, _ in side.protocols}:
                counts[name] = counts.get(name, 0) + 1
        return len(classic), counts

    # Changes -----------------------------------------------------------------------------------

    def put(self, member: ConsumerMember) -> None:
        self.members[member.id] = member
        if member.profile.instance_id is not None:
            self.static[member.profile.instance_id] = member.id

    def remove(self, member: ConsumerMember) -> None:
        del self.members[member.id]
        self.release(member)
        self.target.pop(member.id, None)
        instance_id = member.profile.instance_id
        if instance_id is not None and self.static.get(instance_id) == member.id:
            del self.static[instance_id]

    def release(self, member: ConsumerMember) -> None:
        """Its partitions are nobody's."""
        for partition in member.holds:
            if self.owners.get(partition) == member.id:
                del self.owners[partition]

    def claim(self, member: ConsumerMember) -> None:
        for partition in member.holds:
            self.owners[partition] = member.id
