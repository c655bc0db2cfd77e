"""What the operations of a window take and return."""

from enum import Enum
from typing import NamedTuple

from penstock.queues.locks import Owner
from penstock.queues.record_states import AckType, Delivery


class Settlement(NamedTuple):
    """Acquired offsets and how their owner settles them."""

    first: int
    end: int
    ack_type: AckType


class Blocked(Enum):
    """Why an owner acquires less than there is."""

    LOCKS = "max locks of the window are in use"
    OWNER_LOCKS = "max locks of the owner are in use"
    WINDOW = "the window has max offsets; the oldest must be settled first"
    UNCOMMITTED = "max changes wait for the state log"
    RETRIES = "max intervals wait for their retry delay"


class Acquired(NamedTuple):
    """`blocked` is None unless a limit of the window, not of the request, was reached."""

    deliveries: tuple[Delivery, ...]
    blocked: Blocked | None

    @property
    def offset_count(self) -> int:
        return sum(delivery.end - delivery.first for delivery in self.deliveries)


class Settled(NamedTuple):
    """`update_number` is the update that must be committed before the answer; None: answer now.

    The records in `archiving` need a dead letter; `Window.finish_archiving` ends that.
    """

    offset_count: int
    archiving: tuple[Delivery, ...]
    update_number: int | None


class OldestLock(NamedTuple):
    offset: int
    owner: Owner
    since_ms: int
