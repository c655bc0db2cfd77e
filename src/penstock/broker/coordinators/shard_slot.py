"""The shard of one partition in one leader epoch: its phase, the shard in use, and the timer of a reload.

Each leader epoch has a slot of its own, and a closed slot is never opened again. What was begun for an
epoch (a load, a timer, a shard) holds its slot and therefore cannot act on a later epoch. A slot has a
shard only while it is active, and closes that shard before it enters another phase.
"""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final, Generic, TypeVar

from penstock.broker.coordinators.shard import LogShard
from penstock.broker.partitions.partition import Partition

ShardT = TypeVar("ShardT", bound=LogShard)


class Phase(Enum):
    WAITING = "waiting"  # until a timer queues it
    QUEUED = "queued"
    LOADING = "loading"
    ACTIVE = "active"
    STOPPED = "stopped"  # its log cannot be read
    CLOSED = "closed"  # the epoch is over

    @property
    def is_before_use(self) -> bool:
        return self in _BEFORE_USE


_BEFORE_USE: Final = frozenset({Phase.WAITING, Phase.QUEUED, Phase.LOADING})


class ShardSlot(Generic[ShardT]):
    """Only the event loop calls it."""

    __slots__ = ("_loop", "_timer", "epoch", "partition", "phase", "reason", "shard")

    def __init__(self, partition: Partition, loop: asyncio.AbstractEventLoop) -> None:
        self.partition: Final = partition
        self.epoch: Final = partition.leader_epoch
        self.phase = Phase.WAITING
        self.shard: ShardT | None = None
        self.reason = ""  # why it was stopped
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return str(self.partition)

    @property
    def is_open(self) -> bool:
        return self.phase is not Phase.CLOSED

    def is_of(self, partition: Partition | None) -> bool:
        """Whether the slot is of that partition as it is led now."""
        return self.partition is partition and self.epoch == partition.leader_epoch

    def queue(self) -> None:
        self._enter(Phase.QUEUED)

    def load(self) -> None:
        assert self.phase is Phase.QUEUED, "a shard is loaded once at a time"
        self._enter(Phase.LOADING)

    def activate(self, shard: ShardT) -> None:
        assert self.phase in (Phase.QUEUED, Phase.LOADING), "a shard takes the place of no other"
        self._enter(Phase.ACTIVE)
        self.shard = shard

    def wait(self, delay_s: float, then: "Callable[[ShardSlot[ShardT]], None]") -> None:
        """Call `then` after the delay, unless the slot enters another phase before."""
        self._enter(Phase.WAITING)
        self._timer = self._loop.call_later(delay_s, then, self)

    def stop(self, reason: str) -> None:
        self._enter(Phase.STOPPED)
        self.reason = reason

    def close(self) -> None:
        self._enter(Phase.CLOSED)

    def _enter(self, phase: Phase) -> None:
        assert self.is_open, "the epoch is over"
        timer, self._timer = self._timer, None
        shard, self.shard = self.shard, None
        self.phase = phase
        if timer is not None:
            timer.cancel()
        if shard is not None:
            shard.close()
