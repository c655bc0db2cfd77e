"""What a follower makes of its leader's answers: where to cut its log, what to append, when to begin anew. Pure.

A log is never cut to the high watermark (KIP-101), only to where the leader's own epochs say that the two
part (KIP-279), again and again until they agree.
"""

from typing import NamedTuple, Protocol


class EpochEnd(Protocol):
    """An epoch and one past its last offset."""

    @property
    def epoch(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class Ends(Protocol):
    """The follower's log: how far each epoch goes in it."""

    next_offset: int

    def end_offset_for(self, epoch: int) -> EpochEnd: ...


class Position(NamedTuple):
    """From where a follower fetched, as of which leader epoch."""

    leader_epoch: int
    offset: int


def is_current(asked: Position, leader_epoch: int, next_offset: int) -> bool:
    """F2: an answer counts only if neither the leader nor the end of the log changed since it was asked for."""
    return asked == Position(leader_epoch, next_offset)


def diverges(fetch_offset: int, last_fetched_epoch: int, end: EpochEnd) -> bool:
    """R4, at the leader: whether a log that ends at `fetch_offset` in that epoch is no prefix of its own.

    `end` is where the leader's own log has the end of that epoch.
    """
    return end.epoch < last_fetched_epoch or end.end_offset < fetch_offset


def truncation_point(log: Ends, leader_epoch: int, leader_end: int) -> int:
    """F1: where to cut, when the leader said that its log leaves `leader_epoch` at `leader_end`.

    The cut may not be deep enough yet if the follower knows none of that epoch: it then ends in an
    older one, fetches with that, and is told again.
    """
    own = log.end_offset_for(leader_epoch)
    if own.epoch < 0:  # nothing is known of that time or before it
        return min(leader_end, log.next_offset)
    if own.epoch != leader_epoch:
        return min(own.end_offset, log.next_offset)
    return min(own.end_offset, leader_end, log.next_offset)
