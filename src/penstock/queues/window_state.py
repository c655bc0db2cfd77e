"""The persisted state of a window: what ShareSnapshot and ShareUpdate records carry (KIP-932).

`WindowState.apply` is what the coordinator does with an update: a later update wins, and a lower state
epoch or leader epoch is fenced.
"""

from dataclasses import dataclass
from typing import Final

from penstock.model.errors import BrokerError, ErrorCode
from penstock.queues.changes import clip_batches
from penstock.queues.record_states import RecordState, StateBatch

MAX_OFFSET: Final = 2**63 - 1
_STORED: Final = frozenset(
    {
        RecordState.AVAILABLE,
        RecordState.ACQUIRED,
        RecordState.ACKNOWLEDGED,
        RecordState.ARCHIVING,
        RecordState.ARCHIVED,
    }
)
_NEVER_DELIVERED: Final = (RecordState.AVAILABLE, 0)
_MAX_STORED_COUNT: Final = 2**15 - 1


class DamagedState(Exception):
    """A persisted state that no window can have written. The operator must act."""


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """What changed since the update with the number before."""

    number: int  # in memory only
    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]
    settled_count: int  # settled offsets from the start up to the cursor (KIP-1226)
    cursor: int  # no offset from here on was ever delivered


@dataclass(frozen=True, slots=True)
class WindowState:
    """All that is known of a window. Offsets in no batch are available and were never delivered."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...] = ()
    cursor: int = 0

    def apply(self, update: StateUpdate) -> "WindowState":
        """Return the state after an update."""
        if update.leader_epoch < self.leader_epoch:
            raise BrokerError(
                f"leader epoch {update.leader_epoch} is below {self.leader_epoch}",
                ErrorCode.FENCED_LEADER_EPOCH,
            )
        if update.state_epoch < self.state_epoch:
            raise BrokerError(
                f"state epoch {update.state_epoch} is below {self.state_epoch}",
                ErrorCode.FENCED_STATE_EPOCH,
            )
        start = update.start_offset
        return WindowState(
            state_epoch=update.state_epoch,
            leader_epoch=update.leader_epoch,
            start_offset=start,
            batches=clip_batches(_override(self.batches, update.batches), start),
            cursor=update.cursor,
        )

    def check(self) -> None:
        """Reject a state that no window can have written."""
        if not 0 <= self.start_offset <= MAX_OFFSET:
            raise DamagedState(f"start offset {self.start_offset}: the state is not initialised")
        end = self.start_offset
        for batch in self.batches:
            if not end <= batch.first < batch.end <= MAX_OFFSET:
                raise DamagedState(
                    f"batch {batch.first} to {batch.end} after offset {end}: "
                    "batches are sorted and do not overlap"
                )
            if batch.state not in _STORED or not 0 <= batch.delivery_count <= _MAX_STORED_COUNT:
                raise DamagedState(
                    f"batch {batch.first} to {batch.end} has state {batch.state} "
                    f"and delivery count {batch.delivery_count}"
                )
            end = batch.end


def _override(old: tuple[StateBatch, ...], new: tuple[StateBatch, ...]) -> list[StateBatch]:
    """Return the batches of both; where they overlap, those of `new`. Both are sorted."""
    result = list(new)
    place = 0
    for batch in old:
        first = batch.first
        while place < len(new) and new[place].end <= first:
            place += 1
        covering = place
        while covering < len(new) and new[covering].first < batch.end:
            if first < new[covering].first:
                result.append(batch._replace(first=first, end=new[covering].first))
            first = max(first, new[covering].end)
            covering += 1
        if first < batch.end:
            result.append(batch._replace(first=first))
    result.sort()
    return [batch for batch in result if batch[2:] != _NEVER_DELIVERED]
