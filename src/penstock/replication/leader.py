"""What a partition's leader knows of its followers, and what follows: the high watermark, who is in sync. Pure.

A change of the in-sync replicas counts only once the controller has committed it. Until then both the old
and the new members hold the high watermark back: whichever of the two states the cluster ends up with,
every member of it has all that was ever told to be committed.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

NEVER_MS: Final = -(1 << 62)


class Follower:
    """The last that was heard of a follower in this leader epoch."""

    __slots__ = ("broker_epoch", "caught_up_ms", "end_at_fetch", "fetched_ms", "next_offset")

    def __init__(self) -> None:
        self.next_offset = -1  # it has everything below; -1: it has not fetched yet, or not anew
        self.broker_epoch = -1
        self.fetched_ms = NEVER_MS
        self.end_at_fetch = -1  # the leader's log end at that time
        self.caught_up_ms = NEVER_MS  # when it last had all that the leader had


class IsrState(NamedTuple):
    """The in-sync replicas as the controller committed them."""

    members: tuple[int, ...]
    partition_epoch: int


class Leadership:
    """One partition, for as long as this broker leads it in one epoch. The event loop is its only caller."""

    __slots__ = (
        "_added_in",
        "_followers",
        "broker_id",
        "epoch",
        "is_doubted",
        "isr",
        "proposed",
        "replicas",
        "settled_count",
        "start_offset",
    )

    def __init__(
        self, broker_id: int, epoch: int, start_offset: int, replicas: Sequence[int], isr: IsrState
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.start_offset = start_offset  # where the epoch begins
        self.replicas = tuple(replicas)
        self.settled_count = len(self.replicas)  # without those that are being added
        self.isr = isr
        self.proposed: tuple[int, ...] | None = None  # asked for, and not known to be committed
        self.is_doubted = False  # a replica knows of a later epoch (B6)
        self._added_in: dict[int, int] = {}  # the session in which each proposed addition caught up
        self._followers: dict[int, Follower] = {}

    def follower(self, broker_id: int) -> Follower | None:
        """None: it is no replica, or has not fetched in this epoch."""
        return self._followers.get(broker_id)

    def followers(self) -> list[tuple[int, Follower]]:
        """Those that have fetched in this epoch."""
        return list(self._followers.items())

    @property
    def maximal(self) -> tuple[int, ...]:
        """Everyone who may turn out to be in sync."""
        if self.proposed is None:
            return self.isr.members
        more = [member for member in self.proposed if member not in self.isr.members]
        return (*self.isr.members, *more)

    # Fetches -----------------------------------------------------------------------------------

    def fetched(
        self, broker_id: int, broker_epoch: int, offset: int, log_end: int, now_ms: int
    ) -> bool:
        """A follower asked for what comes at `offset`, so it has all below. Whether that is news."""
        if broker_id not in self.replicas or broker_id == self.broker_id:
            return False
        follower = self._followers.get(broker_id)
        if follower is None:
            follower = self._followers[broker_id] = Follower()
        if offset >= log_end:
            follower.caught_up_ms = max(follower.caught_up_ms, now_ms)
        elif 0 <= follower.end_at_fetch <= offset:
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        is_news = offset != follower.next_offset or broker_epoch != follower.broker_epoch
        follower.next_offset = offset
        follower.broker_epoch = broker_epoch
        follower.fetched_ms = now_ms
        follower.end_at_fetch = log_end
        return is_news

    def began_session(self, broker_id: int, broker_epoch: int) -> None:
        """A follower is there anew, and may have lost what it had before: until it fetches, nothing of that counts."""
        follower = self._followers.get(broker_id)
        if follower is not None and follower.broker_epoch != broker_epoch:
            follower.next_offset = follower.end_at_fetch = -1

    # The high watermark ------------------------------------------------------------------------

    def high_watermark(
        self,
        present: int,
        own_end: int,
        *,
        min_isr: int,
        awaited: Callable[[int, Follower], bool] | None = None,
    ) -> int:
        """Up to where every replica that counts has the log; never less than `present`.

        It stands still while fewer are in sync than the topic asks for. `awaited` says for whom
        else to wait: a replica that is about to catch up never would, did the mark run ahead of it.
        """
        if len(self.isr.members) < min_isr:
            return present
        counting = self.maximal
        lowest = own_end
        for member in counting:
            if member != self.broker_id:
                follower = self._followers.get(member)
                lowest = min(lowest, -1 if follower is None else follower.next_offset)
        if awaited is not None:
            for member, follower in self._followers.items():
                if member not in counting and awaited(member, follower):
                    lowest = min(lowest, follower.next_offset)
        return max(present, lowest)

    # Who is in sync ----------------------------------------------------------------------------

    def expanded(self, broker_id: int, high_watermark: int) -> tuple[int, ...] | None:
        """The in-sync replicas with that follower among them, if it has what it takes and no change is under way."""
        follower = self._followers.get(broker_id)
        if follower is None or self.proposed is not None or broker_id in self.isr.members:
            return None
        if follower.next_offset < max(high_watermark, self.start_offset):
            return None
        return (*self.isr.members, broker_id)

    def shrunk(
        self, log_end: int, *, now_ms: int, lag_ms: int, since_ms: int
    ) -> tuple[int, ...] | None:
        """The in-sync replicas without those that have not been up to date for too long, if there are any.

        `since_ms`: when this broker began to lead; nobody is late before its time has run once.
        """
        if self.proposed is not None:
            return None
        late = self.late(log_end, now_ms=now_ms, lag_ms=lag_ms, since_ms=since_ms)
        return tuple(it for it in self.isr.members if it not in late) if late else None

    def late(self, log_end: int, *, now_ms: int, lag_ms: int, since_ms: int) -> list[int]:
        """Those in sync who have not been up to date for so long."""
        return [
            member
            for member in self.isr.members
            if member != self.broker_id
            and self._is_late(member, log_end, now_ms=now_ms, lag_ms=lag_ms, since_ms=since_ms)
        ]

    def _is_late(
        self, member: int, log_end: int, *, now_ms: int, lag_ms: int, since_ms: int
    ) -> bool:
        follower = self._followers.get(member)
        if follower is None:
            return now_ms - since_ms > lag_ms
        if follower.next_offset >= log_end:
            return False
        return now_ms - max(follower.caught_up_ms, since_ms) > lag_ms

    def propose(self, members: tuple[int, ...]) -> None:
        assert self.proposed is None, "one change at a time"
        self.proposed = members
        self._added_in = {
            member: follower.broker_epoch
            for member, follower in self._followers.items()
            if member in members and member not in self.isr.members
        }

    def session_of(self, broker_id: int) -> int | None:
        """The session of a follower that makes it a member (KIP-903); None: it has not fetched.

        Of a proposed addition it is the one in which it had caught up, however often it came back since: in a later
        one it may lack that, and the request may be repeated.
        """
        if broker_id in self._added_in:
            return self._added_in[broker_id]
        follower = self._followers.get(broker_id)
        return None if follower is None else follower.broker_epoch

    def _end_proposal(self) -> None:
        self.proposed = None
        self._added_in = {}

    def committed(self, isr: IsrState, replicas: Sequence[int]) -> bool:
        """What the controller has committed, by its answer or by metadata. Whether that was news.

        Older news than what is known changes nothing: answers and metadata overtake each other.
        """
        if isr.partition_epoch < self.isr.partition_epoch:
            return False
        is_news = isr != self.isr or tuple(replicas) != self.replicas
        if isr.partition_epoch > self.isr.partition_epoch:
            self._end_proposal()  # committed, or overtaken by another change
        self.isr = isr
        self.replicas = tuple(replicas)
        for gone in [member for member in self._followers if member not in self.replicas]:
            del self._followers[gone]
        return is_news

    def refused(self) -> None:
        """The controller will never commit the proposal: the committed state alone counts again."""
        self._end_proposal()
