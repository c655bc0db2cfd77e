"""What may go wrong between brokers and the store although both run: for some brokers, for some kinds of calls."""

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from tests.simulation.loop import World

CALLS: Final = ("snapshot", "read", "commit", "grant", "keep_alive", "revoke")
WATCH: Final = "watch"  # the delivery of changes
_LATE_S: Final = (0.9, 4.0)  # about as long as a caller waits for the store, or longer


class Way(Enum):
    """How a call goes wrong."""

    REFUSED = "refused"  # the store answers that it cannot do it
    LOST = "lost"  # the request does not arrive
    UNANSWERED = "unanswered"  # it is carried out, and the answer is lost
    LATE = "late"  # it is carried out when nobody waits for it any more
    SLOW = "slow"  # request and answer take their time


@dataclass(frozen=True)
class Trouble:
    hosts: frozenset[str]
    calls: frozenset[str]
    way: Way
    share: float = 1.0  # of those calls
    slow_s: float = 0.0


class Troubles:
    """Those that there are at the moment."""

    def __init__(self, world: World) -> None:
        self._rng: Random = world.rng
        self._now: list[Trouble] = []

    def begin(self, trouble: Trouble) -> None:
        self._now.append(trouble)

    def end(self, trouble: Trouble) -> None:
        self._now.remove(trouble)

    def of(self, host: str, call: str) -> Trouble | None:
        """What befalls this call."""
        for trouble in self._now:  # mostly none
            if host in trouble.hosts and call in trouble.calls:
                return trouble if self._rng.random() < trouble.share else None
        return None

    def late_s(self) -> float:
        """After how long a late request is carried out."""
        return self._rng.uniform(*_LATE_S)
