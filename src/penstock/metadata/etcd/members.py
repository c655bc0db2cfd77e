"""The members of one etcd: whom to ask next, and what all of them have shown. Nobody may fall behind that."""

import re
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Final

from penstock.metadata.etcd.faults import Fault, Trouble
from penstock.metadata.store import StoreError

OLDEST_VERSION: Final = (3, 5, 13)
_LOSES_WRITES: Final = ((3, 5, 0), (3, 5, 1), (3, 5, 2))
_SHUNNED_S: Final = 5.0  # an election of etcd is over by then
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)")


class Members:
    def __init__(
        self, addresses: Sequence[str], first: int = 0, clock_s: Callable[[], float] = monotonic
    ) -> None:
        """`first`: with whom to begin, so that brokers spread over the members."""
        self._addresses = tuple(addresses)
        self._turn = first
        self._clock_s = clock_s
        self._shunned_until_s = dict.fromkeys(addresses, clock_s())
        self._cluster_id = 0
        self.known = (0, 0)  # the highest term and revision that any member has shown

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def current(self) -> str:
        return self._at(self._turn)

    def _at(self, turn: int) -> str:
        return self._addresses[turn % len(self._addresses)]

    def leave(self, member: str, *, is_silent: bool = False) -> None:
        """The next one, unless somebody else has moved on already.

        To ask who is silent costs time: it is passed over for a while if there is another. Who answers that it
        cannot help, such as without a leader, may soon.
        """
        now_s = self._clock_s()
        if is_silent:
            self._shunned_until_s[member] = now_s + _SHUNNED_S
        if member == self.current:
            later = range(self._turn + 1, self._turn + len(self))
            heard = (it for it in later if self._shunned_until_s[self._at(it)] <= now_s)
            self._turn = next(heard, self._turn + 1)

    def accept(self, member: str, header: Any, least: tuple[int, int] | None = None) -> None:
        """`least`: term and revision that were known when a linearizable question was asked."""
        self._cluster_id = self._cluster_id or header.cluster_id
        if header.cluster_id != self._cluster_id:
            raise StoreError(
                f"etcd {member} belongs to another cluster ({header.cluster_id:x}, the others to"
                f" {self._cluster_id:x}): correct the addresses of the metadata store"
            )
        found = header.raft_term, header.revision
        if least is not None and (found[0] < least[0] or found[1] < least[1]):
            raise Trouble(
                Fault.STALE,
                member,
                f"it is at term {found[0]}, revision {found[1]}, and has been at term {least[0]},"
                f" revision {least[1]}: it lags behind, or an old backup was restored",
            )
        self.known = max(self.known[0], found[0]), max(self.known[1], found[1])


def check_version(member: str, text: str) -> None:
    found = _VERSION.match(text)
    version = tuple(map(int, found.groups())) if found else (0, 0, 0)
    if version >= OLDEST_VERSION:
        return
    reason = "it may lose events and end leases too early"
    if version in _LOSES_WRITES:
        reason = "after a crash it may lose what it has committed"
    oldest = ".".join(map(str, OLDEST_VERSION))
    raise StoreError(
        f"etcd {member} is version {text or 'unknown'}: {reason}; upgrade it to {oldest} or later"
    )
