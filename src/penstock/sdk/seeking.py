"""Where partitions continue: the seeks that are still to be done before the next fetch.

`go_to` and `rewind` only note a target, so they cannot fail, and may be called while an exception is on its way. `apply`
does the seeks; one that fails stays noted and is repeated. The rule about positions is stated in `penstock.sdk.shelf`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.sdk.committing import Commits
from penstock.sdk.librdkafka import errors_of
from penstock.sdk.message import Place
from penstock.sdk.positions import partition
from penstock.sdk.shelf import Shelf

if TYPE_CHECKING:
    from penstock.sdk.assignment import Assignment


class Target(NamedTuple):
    """Where a partition continues: at `offset`, or at `unless_committed` if the group committed exactly that."""

    offset: int
    unless_committed: int | None = None


class Seeks:
    """The targets of one consumer. The client is given when there is one."""

    def __init__(self, shelf: Shelf, commits: Commits, assigned: "Assignment") -> None:
        self.client: Any = None
        self.in_transaction: dict[Place, int] = {}  # the newest offsets given to a transaction
        self._shelf = shelf
        self._commits = commits
        self._assigned = assigned
        self._targets: dict[Place, Target] = {}
        self._is_unsure = False

    def offsets(self) -> dict[Place, int]:
        """Where partitions will continue, as far as it is known."""
        return {place: to.offset for place, to in self._targets.items() if to.offset >= 0}

    def go_to(self, offsets: Mapping[Place, int]) -> None:
        """Continue at these offsets with the next fetch."""
        for place, offset in offsets.items():
            self._targets[place] = Target(offset)
            self._move(place, offset)

    def rewind(self) -> None:
        """Continue where each partition was after the last commit."""
        origins = self._shelf.origins.items()
        self.go_to({place: at for place, at in origins if not self._is_in_doubt(place)})

    def rewind_in_doubt(self) -> None:
        """As `rewind`, but ask the group first: a partition continues behind the transaction if that was committed."""
        attempted = {
            place: end
            for place, end in self.in_transaction.items()
            if place in self._shelf.origins and not self._is_in_doubt(place)
        }
        self.rewind()
        for place, end in attempted.items():
            self._targets[place] = Target(self._targets[place].offset, end)

    def seek(self, offsets: Mapping[Place, int]) -> None:
        """Continue at these offsets. A partition whose seek fails stays where it is."""
        for place, offset in offsets.items():
            self._seek(place, offset)
            self._targets.pop(place, None)
            self._move(place, offset)

    def forget(self, place: Place) -> None:
        self._targets.pop(place, None)

    def doubt(self) -> None:
        """A fetch raised: librdkafka may have handed over messages that nobody got."""
        self._is_unsure = True

    def apply(self) -> None:
        """Seek where a target is noted."""
        if self._is_unsure:
            self._find_lost()
            self._is_unsure = False
        if not self._targets:
            return
        assigned = {(one.topic, one.partition) for one in self.client.assignment()}
        for place, target in list(self._targets.items()):
            if place in assigned:
                self._seek(place, self._resolved(place, target))
            self._targets.pop(place, None)

    def _resolved(self, place: Place, target: Target) -> int:
        if target.unless_committed is None:
            return target.offset
        is_committed = self._assigned.committed_of(place) == target.unless_committed
        offset = target.unless_committed if is_committed else target.offset
        self._shelf.origins[place] = offset
        return offset

    def _find_lost(self) -> None:
        """Note a target where librdkafka is ahead of what came. What was handed out stays noted as such."""
        ours = self._shelf.origins | self._shelf.positions()
        ahead: dict[Place, Target] = {}
        with errors_of("positions"):
            positions = self.client.position(self.client.assignment())
        for one in positions:
            place = (one.topic, one.partition)
            begin = ours.get(place)
            if one.offset >= 0 and begin is None:
                begin = self._assigned.start_of(place, one.offset)
            if one.offset >= 0 and begin is not None and begin < one.offset:
                ahead[place] = Target(begin)
        self._shelf.drop_waiting(set(ahead))
        self._targets.update(ahead)

    def _is_in_doubt(self, place: Place) -> bool:
        """The group was not asked yet after an earlier transaction, so nothing was handed out since."""
        return place in self._targets and self._targets[place].unless_committed is not None

    def _move(self, place: Place, offset: int) -> None:
        """Nothing that was fetched of this partition counts any more."""
        self._shelf.forget({place})
        self._commits.forget(place)
        if offset >= 0:
            self._shelf.origins[place] = offset

    def _seek(self, place: Place, offset: int) -> None:
        with errors_of(f"seek to {offset} in {place[0]}-{place[1]}"):
            self.client.seek(partition(place, offset))
