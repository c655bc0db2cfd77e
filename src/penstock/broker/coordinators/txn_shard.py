"""One shard of transactional ids at work. A transaction's partitions are told only when its end is committed."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.broker.coordinators.shard import LogShard, PendingReply
from penstock.broker.partitions.partition import Partition
from penstock.model.clock import Clock
from penstock.model.errors import BrokerError
from penstock.model.features import TAGGED_STATE
from penstock.transactions.events import (
    Effect,
    Event,
    Markers,
    MarkersWritten,
    NeedProducerId,
    Outcome,
    Reply,
    SendMarkers,
    Write,
)
from penstock.transactions.records import untagged
from penstock.transactions.shard import Shard
from penstock.transactions.state import Now

_MARKERS_AGAIN_S: Final = 0.5  # to write down that they are written, if that cannot be done at once
Answer = Outcome | asyncio.Future[Outcome]
Send = Callable[["TxnShard", Markers], None]
NeedId = Callable[["TxnShard", str, NeedProducerId], None]


class _Then:
    """Something to be done, in place of an answer to be given."""

    __slots__ = ("_do",)

    def __init__(self, do: Callable[[Any], None]) -> None:
        self._do = do

    def answer(self, message: Any) -> None:
        self._do(message)

    def refuse(self, error: BrokerError) -> None:
        """The shard is lost: who rebuilds it does what is still to be done."""


class TxnShard(LogShard):
    """`send` writes markers and then calls `markers_written`; `need_id` calls `deliver` with an id."""

    def __init__(
        self,
        core: Shard,
        partition: Partition,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        lost: Callable[[BrokerError], None],
        *,
        send: Send,
        need_id: NeedId,
        level: Callable[[], int],
    ) -> None:
        super().__init__(partition, loop, clock, lost)
        self.core = core
        self.epoch = partition.leader_epoch  # of this coordinator; markers carry it
        self._send = send
        self._need_id = need_id
        self._level = level  # of transaction.version, which says what may be written

    @property
    def is_open(self) -> bool:
        return not self._closed

    def begin(self) -> None:
        """After a replay: finish what was decided."""
        super().begin()
        for transactional_id, effects in self.core.load(self.now()):
            self._do(transactional_id, effects)

    def now(self) -> Now:
        return Now(self._clock.monotonic_ms(), self._clock.wall_ms())

    def step(self, transactional_id: str, event: Callable[[PendingReply], Event]) -> Answer:
        """The answer, at once where nothing has to be waited for."""
        reply_to = PendingReply()
        self.deliver(transactional_id, event(reply_to))
        answer: Answer = self._answer_of(reply_to)
        return answer

    def deliver(self, transactional_id: str, event: Event) -> None:
        step, now = self.core.step, self.now()
        self._guarded(
            lambda happened: self._do(transactional_id, step(transactional_id, happened, now)),
            event,
        )

    def do(self, transactional_id: str, work: Callable[[Now], list[Effect]]) -> None:
        """Something nobody asked for: an id that is forgotten."""
        self._guarded(lambda now: self._do(transactional_id, work(now)), self.now())

    def markers_written(self, markers: Markers) -> None:
        """Complete the transaction; later, if the log takes no writes now."""
        if not self.is_open:
            return
        if self.is_writable:
            self.deliver(markers.transactional_id, MarkersWritten(markers.producer))
        else:
            self._loop.call_later(_MARKERS_AGAIN_S, self.markers_written, markers)

    def refuse(self, reply_to: object, error: BrokerError) -> None:
        assert isinstance(reply_to, PendingReply)
        self._waiting.discard(reply_to)
        reply_to.refuse(error)

    def _do(self, transactional_id: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write(key, value):
                    if value is not None and self._level() < TAGGED_STATE:
                        value = untagged(value)
                    self._write([(key, value)])
                case Reply(to, outcome):
                    assert isinstance(to, PendingReply)
                    self._reply(to, outcome)
                case SendMarkers(markers):
                    self._reply(_Then(self._send_markers), markers)
                case NeedProducerId():
                    self._need_id(self, transactional_id, effect)

    def _send_markers(self, markers: Markers) -> None:
        self._send(self, markers)
